"""Collectives in an nsys export: NCCL's own NVTX ranges with their kernels, else DeepSpeed's ranges around a call.

NCCL marks each call in its domain, and newer ones say the message's size; the kernel that a call launched is the one
whose launch lies within the call's range on its thread. (Calls within ``ncclGroupStart`` and ``ncclGroupEnd`` are
launched by the latter: their kernels are not told apart.) Over another backend DeepSpeed's ranges are all there is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.lookup import ints
from zeropeak.parse.nsys_export import open_export

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from zeropeak.parse.nsys_export import Export
    from zeropeak.parse.sink import Sink

    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]

INT, TEXT = pa.int64(), pa.string()

SENT: Final = ("ncclAllGather", "ncclAllReduce", "ncclBroadcast", "ncclBcast", "ncclReduce", "ncclSend", "ncclAlltoAll")
RECEIVED: Final = ("ncclReduceScatter", "ncclAllReduce", "ncclBroadcast", "ncclBcast", "ncclReduce", "ncclRecv")
"""Calls whose message size is that of the input, and of the output, of this rank."""

CALLS: Final = {
    "NCCL": tuple(sorted({*SENT, *RECEIVED, "ncclGather", "ncclScatter"})),
    "DeepSpeed": ("allgather_fn", "reduce_scatter_fn"),
}
"""Ranges that are one call each, by who makes them; the first that made any are taken."""

_RANGES: Final = "eventType IN (59, 60) AND start IS NOT NULL"

_SIZE: Final = re.compile(r"Message size[^\d]{0,24}(\d{1,18})(?!\d)")
_GROUP: Final = re.compile(r"communicator ID[^\d]{0,8}(0x[0-9a-fA-F]{1,16}|\d{1,20})")
_KERNEL: Final = "(s.value LIKE 'ncclDevKernel%' OR s.value LIKE 'ncclKernel%')"


def find_calls(export: Export) -> str | None:
    """Whose ranges tell of collectives: NCCL's, else DeepSpeed's; None when neither are there."""
    wheres = {whose: where for whose in CALLS if (where := _condition(export, whose))}
    if not wheres or not _any(export, f"({' OR '.join(wheres.values())})"):  # one look at all rows, not one for each
        return None
    return next((whose for whose, where in wheres.items() if _any(export, where)), None)


def tells_collectives(path: Path) -> bool:
    """Whether :func:`read_collectives` will find any in a file."""
    with open_export(path) as export:
        return find_calls(export) is not None


def read_collectives(export: Export, sink: Sink, rank_of: Callable[[Any], pa.Array]) -> None:
    """Write the collectives of an export, if it tells of any.

    Args:
        export: the export.
        sink: takes rows of ``collectives``.
        rank_of: ranks of process ids.
    """
    whose = find_calls(export)
    if whose is None:
        return
    columns = [
        ("start", INT), ("end", INT), ("text", TEXT), ("*textId", TEXT), ("jsonText", TEXT), ("*jsonTextId", TEXT),
        ("globalTid", INT),
    ]  # fmt: skip
    kernels = _Kernels(export) if whose == "NCCL" else None
    total = ran = 0
    for rows in export.batches("NVTX_EVENTS", columns, f"{_RANGES} AND {_condition(export, whose)}"):
        names = pc.coalesce(rows["text"], rows["textId"]).to_pylist()
        told = pc.coalesce(rows["jsonText"], rows["jsonTextId"]).to_pylist()
        sizes = [None if text is None else int(text) for text in (_found(_SIZE, text) for text in told)]
        tid, start, end = ints(rows["globalTid"]), ints(rows["start"]), ints(rows["end"])
        place = kernels.launched_in(tid, start, end) if kernels is not None else np.full(len(tid), -1)
        total += len(tid)
        ran += int((place >= 0).sum())
        written = pa.table(
            {
                "rank": rank_of(pa.array((tid >> 24) & 0xFFFFFF)),
                "name": pa.array(names, TEXT),
                "start_ns": start if kernels is None else np.where(place >= 0, kernels.start[place], start),
                "end_ns": pa.array(
                    end if kernels is None else np.where(place >= 0, kernels.end[place], end), INT, mask=end < 0
                ),
                "launched_ns": start,
                "thread_id": tid & 0xFFFFFF,
                "in_bytes": pa.array(_for(SENT, names, sizes), INT),
                "out_bytes": pa.array(_for(RECEIVED, names, sizes), INT),
                "group": pa.array([_found(_GROUP, text) for text in told], TEXT),
                "stream": pa.nulls(len(tid), INT) if kernels is None else pa.array(
                    kernels.stream[place], INT, mask=place < 0),
                "source": pa.repeat(pa.scalar("nsys"), len(tid)),
            }
        )  # fmt: skip
        sink.write("collectives", written.filter(written["rank"].is_valid()))
    sink.count("collective_ranges", total, "info", f"calls of collectives that {whose}'s ranges tell of")
    if kernels is not None:
        sink.count("collectives_with_kernel", ran, "info", "of them whose kernel was recorded with its launch")


def _any(export: Export, where: str) -> bool:
    return bool(export.rows(f'SELECT 1 FROM "{export.table("NVTX_EVENTS")}" WHERE {_RANGES} AND {where} LIMIT 1'))


def _condition(export: Export, whose: str) -> str | None:
    """SQL for the ranges of these calls; None when no range can have such a name."""
    names = ", ".join(f"'{name}'" for name in CALLS[whose])
    some = [f"text IN ({names})"] if export.has("NVTX_EVENTS", "text") else []
    if "StringIds" in export.columns and export.has("NVTX_EVENTS", "textId"):
        ids = export.rows(f"SELECT id FROM StringIds WHERE CAST(value AS TEXT) IN ({names})")
        some += [f"textId IN ({', '.join(str(int(row[0])) for row in ids)})"] if ids else []
    return f"({' OR '.join(some)})" if some else None


class _Kernels:
    """NCCL's kernels with their launches, in order of thread and launch.

    Attributes:
        start, end, stream: of the kernel; one more row than kernels, so that row -1 can be taken.
    """

    def __init__(self, export: Export) -> None:
        found = np.array(_kernel_rows(export), np.int64).reshape(-1, 5)
        found = found[np.lexsort((found[:, 1], found[:, 0]))]
        self._tid, self._launch = found[:, 0], found[:, 1]
        padded = np.vstack([found, np.zeros((1, 5), np.int64)])
        self.start, self.end, self.stream = padded[:, 2], padded[:, 3], padded[:, 4]

    def launched_in(self, tid: Ints, start: Ints, end: Ints) -> Ints:
        """Row of the one kernel launched by a thread between two moments; -1 for none or several."""
        first, last = (self._before(tid, ts) for ts in (start, end))
        return np.where((last - first == 1) & (end >= 0), first, -1)

    def _before(self, tid: Ints, ts: Ints) -> Ints:
        """Number of launches before a moment on a thread, all of lower threads included."""
        place = np.empty(len(tid), np.int64)
        for thread in np.unique(tid):
            low, high = np.searchsorted(self._tid, thread), np.searchsorted(self._tid, thread, "right")
            here = tid == thread
            place[here] = low + np.searchsorted(self._launch[low:high], ts[here])
        return place


def _kernel_rows(export: Export) -> Sequence[tuple[Any, ...]]:
    """Thread, launch, begin, end and stream of each kernel of NCCL whose launch was recorded."""
    kernel, runtime = (export.table(f"CUPTI_ACTIVITY_KIND_{name}") for name in ("KERNEL", "RUNTIME"))
    need = {
        "KERNEL": ("start", "end", "streamId", "shortName", "correlationId", "globalPid"),
        "RUNTIME": ("start", "correlationId", "globalTid"),
    }
    known = all(export.has(f"CUPTI_ACTIVITY_KIND_{name}", column) for name, some in need.items() for column in some)
    if not known or "StringIds" not in export.columns:
        return []
    # The inner table gets an index of sqlite's own: it is the smaller by far.
    return export.rows(
        f'SELECT r.globalTid, r.start, k.start, k."end", coalesce(k.streamId, 0) FROM "{runtime}" r CROSS JOIN '
        '(SELECT k.start, k."end", k.streamId, k.correlationId AS correlation, k.globalPid >> 24 AS process '
        f'FROM "{kernel}" k JOIN StringIds s ON s.id = k.shortName WHERE {_KERNEL} AND k.start IS NOT NULL '
        'AND k."end" IS NOT NULL) k ON k.correlation = r.correlationId AND k.process = r.globalTid >> 24 '
        "WHERE r.start IS NOT NULL"
    )


def _found(pattern: re.Pattern[str], text: str | None) -> str | None:
    found = pattern.search(text) if text else None
    return found[1] if found else None


def _for(calls: Sequence[str], names: Sequence[str | None], sizes: Sequence[int | None]) -> list[int | None]:
    return [size if name in calls else None for name, size in zip(names, sizes, strict=True)]
