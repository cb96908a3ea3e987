"""The law of the composition, checked on every parse: parts sum to what was measured, and none is negative."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

if TYPE_CHECKING:
    import pyarrow as pa

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
    summed = rows.group_by(key).aggregate([("size_bytes", "sum")])
    return {_moment(row, key): row["size_bytes_sum"] for row in summed.to_pylist()}


def _moment(row: dict[str, Any], key: list[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in key)
