"""The law of the composition, checked on every parse: parts sum to what was measured, and none is negative.

``unattributed`` is what is left of a measured figure, so the sums hold by how the rows are made: they catch a mistake
in making them, and blocks that exceed what was measured, but no wrong figure. Laws that can fail are asked in
:mod:`zeropeak.parse.lives`.

What neither sees: a block of the wrong category; one that neither profiler nor event log ever saw; a free that was
mended to a wrong time on CPU, whose allocator has no counters; and, where the curve is of counters alone, blocks that
are missing (unattributed says how much they are).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.lookup import ints

if TYPE_CHECKING:
    from zeropeak.parse.stats import StatsScope

UNATTRIBUTED: Final = "unattributed"
MOST_UNATTRIBUTED: Final = 0.01
"""Share of what was measured above which the report says what would explain the rest."""


def check(measured: pa.Table, parts: pa.Table, blocks: pa.Table, key: list[str], stats: StatsScope) -> None:
    """Count moments that break the law.

    Args:
        measured: rows of peaks or marks with their ``allocated_bytes``.
        parts: rows of peak_composition or mark_composition.
        blocks: rows of peak_blocks or mark_blocks.
        key: columns that tell moments apart.
        stats: takes the counts: errors, so that a zero is said, too.
    """
    total = {
        _moment(row, key): row["allocated_bytes"] for row in measured.select([*key, "allocated_bytes"]).to_pylist()
    }
    for what, rows in (("composition", parts), ("blocks", blocks)):
        sums = _sums(rows, key)
        wrong = [moment for moment, size in sums.items() if total.get(moment) != size]
        stats.count(f"{what}_sum_differs", len(wrong), "error", f"moments whose {what} do not sum to what was measured")
    negative = pc.and_(pc.less(parts["size_bytes"], 0), pc.not_equal(parts["category"], UNATTRIBUTED))
    stats.count("category_negative", pc.sum(negative).as_py() or 0, "error", "categories with less than no bytes")
    over = parts.filter(pc.and_(pc.less(parts["size_bytes"], 0), pc.equal(parts["category"], UNATTRIBUTED)))
    stats.count(
        "more_attributed_than_measured", over.num_rows, "error", "moments with more in known blocks than measured"
    )
    if over.num_rows:
        stats.count("more_attributed_than_measured_bytes", -pc.min(over["size_bytes"]).as_py(), "error", "the most")
    left = parts.filter(pc.equal(parts["category"], UNATTRIBUTED)).select([*key, "size_bytes"]).to_pylist()
    much = sum(row["size_bytes"] > MOST_UNATTRIBUTED * (total.get(_moment(row, key)) or 0) for row in left)
    stats.count("unattributed_above_1_percent", much, "info", "moments with more than 1 % that nothing explains")


def _sums(rows: pa.Table, key: list[str]) -> dict[tuple[Any, ...], int]:
    """Sizes by moment. (``group_by`` would do, and import what takes as long as all checks of a short parse.)"""
    code = np.zeros(rows.num_rows, np.int64)
    for name in key:
        encoded = rows[name].combine_chunks().dictionary_encode(null_encoding="encode")
        code = code * len(encoded.dictionary) + encoded.indices.to_numpy()
    _, first, place = np.unique(code, return_index=True, return_inverse=True)
    sums = np.zeros(len(first), np.int64)
    np.add.at(sums, place, ints(rows["size_bytes"]))
    moments = rows.select(key).take(pa.array(first)).to_pylist()
    return {_moment(row, key): size for row, size in zip(moments, sums.tolist(), strict=True)}


def _moment(row: dict[str, Any], key: list[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in key)
