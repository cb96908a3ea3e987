"""Reader of ``torch.cuda.memory`` snapshots: lifetimes, allocated and reserved bytes, and annotations.

The history in a snapshot says what was asked for, is a ring whose oldest entries are gone without a mark, and can miss
more. What is certain is the dump at its end: segments, and the blocks in them with their true sizes. So sizes are
found by the allocator's own rules, totals are those of the dump less what happened since, and every contradiction is
settled for the dump and counted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from zeropeak.parse.sink import Source
from zeropeak.parse.snapshot.annotations import read_annotations
from zeropeak.parse.snapshot.device import count_device, read_device
from zeropeak.parse.snapshot.entries import columns, nothing_recorded, usable
from zeropeak.parse.snapshot.machine import Trace
from zeropeak.parse.snapshot.rows import block_rows, event_rows
from zeropeak.parse.snapshot.segments import no_dump, read_segments
from zeropeak.parse.snapshot.sizes import read_settings
from zeropeak.parse.snapshot.unpickle import MAX_PICKLE_BYTES, collector_off, load
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.parse.sink import Sink
    from zeropeak.parse.snapshot.entries import Entries

READER: Final = "snapshot"
_RANK: Final = re.compile(r"(?:^|[^a-z])(?:rank|r)[_\-]?(\d+)(?![\d])", re.IGNORECASE)
_NOT_READ: Final = ("host_traces", "host_segments")


def read(
    path: Path,
    sink: Sink,
    *,
    rank: int | None = None,
    max_bytes: int = MAX_PICKLE_BYTES,
    memory_bytes: int | None = None,
) -> Source:
    """Read a snapshot's tables memory_events, memory_blocks and nvtx_ranges.

    Times are Unix nanoseconds. A file without times (torch before 2.1) gives the order only: its times count the
    entries, its clock is ``session`` with no start, and it cannot be laid beside another source.

    Args:
        path: ``.pickle``, ``.pickle.gz``, ``.pkl`` (the content decides).
        sink: takes the rows and the counts; per device, the start of the known history (``history_starts_ns:cuda:0``)
            and the peak (``peak_allocated_bytes:cuda:0``) are among them.
        rank: global rank; by default the one in the file's name, if any.
        max_bytes: largest pickle, unpacked.
        memory_bytes: memory that loading may take; by default 80 % of what is available.

    Raises:
        TraceError: not a snapshot, damaged, over a limit, or a pickle that asks for a class.
    """
    with collector_off():
        snapshot = load(path, max_bytes=max_bytes, memory_bytes=memory_bytes)
        dumps = read_segments(snapshot.get("segments", []))
        absent = no_dump() if "segments" in snapshot else None
        traces = [_entries(trace) for trace in snapshot.get("device_traces", [])]
        settings = read_settings(snapshot.get("allocator_settings"))
        annotations = snapshot.get("external_annotations")
        ranges = read_annotations(annotations if isinstance(annotations, list) else [], sink)
        for key in _NOT_READ:
            rows = snapshot.get(key)
            sink.count(f"{key}_not_read", len(rows) if isinstance(rows, list) else 0, "info", "pinned host memory")
        snapshot.clear()
    histories = {device: entries for device, entries in enumerate(traces) if len(entries)}
    devices = sorted(histories.keys() | dumps.keys())
    if not devices:
        raise TraceError(path, "holds no segments and no history: the process had allocated nothing on the GPU")
    timed = all(entries.has_times for entries in histories.values())
    if ranges is not None and timed:
        sink.write("nvtx_ranges", ranges)
    blocks, partial = 0, False
    for device in devices:
        entries = histories.get(device, nothing_recorded())
        found = read_device(entries, dumps.get(device, absent), settings)
        name = f"cuda:{device}"
        if len(entries):
            sink.write("memory_events", event_rows(found.curve, name))
        rows = block_rows(entries, found.lives, name, blocks)
        sink.write("memory_blocks", rows)
        blocks += rows.num_rows
        partial |= count_device(name, entries, found, sink)
    if not timed:
        sink.count(
            "entries_without_times",
            sum(map(len, traces)),
            "lost",
            "the file has no times (torch before 2.1): times count the entries, only their order is known",
        )
    return Source(
        READER,
        path,
        rank=rank if rank is not None else rank_in_name(path),
        clock="unix" if timed else "session",
        partial=partial,
        device=f"cuda:{max(devices, key=lambda device: len(histories.get(device, ())))}",
    )


def rank_in_name(path: Path) -> int | None:
    """Rank that the file's name or its folder's gives.

    >>> from pathlib import Path
    >>> [rank_in_name(Path(name)) for name in ("snap_r3.pickle.gz", "rank-2/snapshot.pickle", "memory.pickle")]
    [3, 2, None]
    """
    for name in (path.name, path.parent.name):
        if match := _RANK.search(name):
            return int(match[1])
    return None


def _entries(trace: Any) -> Entries:
    if isinstance(trace, Trace):
        return usable(trace.columns())
    return usable(columns(trace if isinstance(trace, list) else []))
