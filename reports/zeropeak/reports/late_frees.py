"""Releases that did not end a parameter's memory, ranked by bytes times time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.reports.columns import ABSENT, ints
from zeropeak.reports.names import pattern

if TYPE_CHECKING:
    from zeropeak.reports.run import Run

UNKNOWN: Final = "unknown"
_COLUMNS: Final = (
    "step", "module", "param_id", "storage_id", "size_bytes", "decided_ns", "held_ns", "cause", "holder",
)  # fmt: skip


@dataclass(frozen=True)
class Late:
    """Late frees of one cause, of modules whose names differ in layer numbers only.

    Attributes:
        cause: as in the table; :data:`UNKNOWN` when it could not be told.
        module: that let go, layer numbers as ``*``; '' for the release of everything.
        decisions: how many.
        most_bytes: highest bytes of them in one step.
        longest_ns: longest hold.
        byte_seconds: bytes times time; a storage that several decisions found alive counts each moment once.
        holder: the autograd node, when all that were found are one.
    """

    cause: str
    module: str
    decisions: int
    most_bytes: int
    longest_ns: int
    byte_seconds: float
    holder: str | None


def late_frees(run: Run, rank: int) -> list[Late]:
    """Of one rank, the most byte-seconds first; empty when all releases freed in time, or nothing was released."""
    rows = run.arrow("delayed_frees", rank, list(_COLUMNS))
    if not rows.num_rows:
        return []
    modules = pc.dictionary_encode(pc.fill_null(rows["module"], "")).combine_chunks()
    patterns = [pattern(name) for name in modules.dictionary.to_pylist()]
    names = pa.array(patterns).take(modules.indices)
    table = pa.table(
        {
            "cause": pc.fill_null(rows["cause"], UNKNOWN),
            "module": names,
            "step": rows["step"],
            "size_bytes": rows["size_bytes"],
            "held_ns": rows["held_ns"],
            "byte_seconds": pa.array(_once(rows)),
            "holder": rows["holder"],
        }
    )
    by_step = table.group_by(["cause", "module", "step"]).aggregate([("size_bytes", "sum")])
    most = by_step.group_by(["cause", "module"]).aggregate([("size_bytes_sum", "max")]).to_pylist()
    highest = {(row["cause"], row["module"]): row["size_bytes_sum_max"] for row in most}
    summed = table.group_by(["cause", "module"]).aggregate(
        [("size_bytes", "count"), ("held_ns", "max"), ("byte_seconds", "sum"), ("holder", "min"), ("holder", "max")]
    )
    found = [
        Late(
            row["cause"],
            row["module"],
            row["size_bytes_count"],
            highest[row["cause"], row["module"]],
            row["held_ns_max"],
            row["byte_seconds_sum"],
            row["holder_min"] if row["holder_min"] == row["holder_max"] else None,
        )
        for row in summed.to_pylist()
    ]
    return sorted(found, key=lambda late: (-late.byte_seconds, late.cause, late.module))


def _once(rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Byte-seconds of each row up to the next decision about the same parameter in the same storage."""
    param, storage = ints(rows, "param_id"), ints(rows, "storage_id")
    decided, held = ints(rows, "decided_ns"), np.maximum(ints(rows, "held_ns", 0), 0)
    order = np.lexsort((decided, param, storage))
    same = (storage[order][1:] == storage[order][:-1]) & (param[order][1:] == param[order][:-1])
    same &= storage[order][1:] != ABSENT
    until = np.diff(decided[order])
    held[order[:-1][same]] = np.minimum(held[order[:-1][same]], until[same])
    return ints(rows, "size_bytes", 0) * (held / 1e9)
