"""Reader of torch.profiler's traces (kineto's chrome trace JSON): one pass, bounded memory, whatever the layout.

Fills memory_events, kernels, nvtx_ranges and collectives; operators and the rest are counted.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from zeropeak.parse.kineto.part import MAX_BYTES, MAX_RATIO, Limits
from zeropeak.parse.kineto.rows import READER, Rows
from zeropeak.parse.kineto.scan import scan
from zeropeak.parse.sink import Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zeropeak.parse.kineto.packets import Packet
    from zeropeak.parse.kineto.scan import Begin, Progress, Scan, Take
    from zeropeak.parse.sink import Severity, Sink

_BY_CATEGORY: Final[tuple[Severity, str | None]] = ("info", None)

COUNTED: Final[dict[str, tuple[Severity, str | None]]] = {
    "events": ("info", "events in the trace"),
    "events_dropped": ("lost", "damaged events that could not be mended"),
    "events_cut": ("lost", "event in which the file ends"),
    "events_mended": ("mended", "damaged events that were mended"),
    "mended_utf8": ("mended", "invalid UTF-8, replaced by U+FFFD"),
    "mended_control_characters": ("mended", "control characters in a name, replaced by spaces"),
    "mended_not_a_number": ("mended", "inf or NaN where a number belongs, taken as unknown"),
    "mended_escapes": ("mended", "backslashes that begin no escape"),
    "mended_quotes": ("mended", "missing quotes, or quotes within a name"),
    "commas_missing": ("mended", "commas missing between events"),
    "args_unreadable": ("lost", "events whose args are no object; the rest of them was kept"),
    "integers_too_large": ("lost", "numbers beyond 64 bits, taken as unknown"),
    "memory_events_unreadable": ("lost", "[memory] events without a size"),
    "times_unreadable": ("lost", "events without a time"),
    "times_zero": ("lost", "events at time 0, which the profiler writes when it knows none"),
    "times_on_another_clock": ("lost", "events more than a year from the rest: another clock or an overflow"),
    "durations_absurd": ("mended", "negative durations or durations over a year: the end was taken as unknown"),
    "collectives_without_args": ("info", "record_param_comms without a collective's name (older torch)"),
    "collective_launches": ("info", "record_param_comms whose kernel stands for the collective"),
    "collective_kernels_unused": ("info", "collectives told by kernels after a million told by launches"),
    "list_not_closed": ("info", "the list of events has no end"),
    "second_event_lists": ("lost", "a second traceEvents: only the first was read"),
    "metadata_damaged": ("mended", "metadata that is not JSON: only rank and base time were looked for"),
    "trailing_bytes": ("info", "bytes after the trace's end"),
    "stream_trailing_bytes": ("info", "bytes after the compressed stream's end"),
    "stream_damaged": ("lost", "the compressed stream is cut or damaged"),
}
"""What may be counted, besides ``events.<category>``."""


def read(
    path: Path,
    sink: Sink,
    *,
    max_bytes: int = MAX_BYTES,
    max_ratio: int = MAX_RATIO,
    progress: Callable[[int, int], None] | None = None,
    scanner: Scanner = scan,
) -> Source:
    """Read a trace into the tables memory_events, kernels, nvtx_ranges and collectives.

    Times are the trace's base time plus its microseconds, exactly, in int64 ns. Rows of a category come in the order
    of the file.

    Args:
        path: ``.json``, plain or compressed by gzip, xz or zstd (told by content).
        sink: takes the rows and counts.
        max_bytes: limit on the decompressed size.
        max_ratio: limit on decompressed / compressed size.
        progress: called with (bytes done, bytes in all) after each read.
        scanner: reads the file; :class:`zeropeak.parse.kineto.workers.Workers` does it in other processes.

    Returns:
        Rank and world size where the trace has them; ``partial`` when the file ends before the trace does.

    Raises:
        TraceError: not a trace (named, where it is something known), empty, or beyond a limit.
    """
    tables = _Tables(sink)
    done = scanner(path, tables.begin, tables.take, Limits(max_bytes, max_ratio), progress)
    return tables.finish(path, done)


class Scanner(Protocol):
    """What :func:`zeropeak.parse.kineto.scan.scan` does."""

    def __call__(
        self,
        path: Path,
        begin: Begin,
        take: Take,
        limits: Limits = ...,
        progress: Progress | None = ...,
    ) -> Scan:
        """Read a trace."""


class _Tables:
    """The receiving end of a scan."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._counts: Counter[str] = Counter()
        self._rows = Rows(sink, self._counts, 0)

    def begin(self, metadata: dict[str, Any]) -> None:
        base = metadata.get("baseTimeNanoseconds", 0)
        if type(base) is not int or abs(base) >= 1 << 62:
            self._counts["metadata_damaged"] += 1
            base = 0
        self._rows = Rows(self._sink, self._counts, base)

    def take(self, packet: Packet) -> None:
        self._rows.take(packet)

    def finish(self, path: Path, done: Scan) -> Source:
        self._rows.finish()
        self._counts.update(done.counts)
        if done.problem is not None:
            self._sink.count("stream_damaged", 1, "lost", done.problem)
        for what, count in sorted(self._counts.items()):
            if count or what == "events":
                self._sink.count(what, count, *COUNTED.get(what, _BY_CATEGORY))
        distributed = done.metadata.get("distributedInfo")
        distributed = distributed if isinstance(distributed, dict) else {}
        accelerators = Counter({name: count for name, count in self._rows.devices.items() if name != "cpu"})
        busiest = (accelerators or self._rows.devices).most_common(1)
        schema = done.metadata.get("schemaVersion")
        told = {
            "CUDA runtime": _cuda(done.metadata.get("cuda_runtime_version")),
            "CUDA driver": _cuda(done.metadata.get("cuda_driver_version")),
            "NCCL": _short(distributed.get("nccl_version")),
        }
        return Source(
            reader=READER,
            path=path,
            rank=_natural(distributed.get("rank")),
            world_size=_natural(distributed.get("world_size")),
            pids=tuple(sorted(done.pids)),
            clock="boot" if self._rows.boot else "unix",
            partial=done.partial,
            version=None if schema is None else f"schema {schema}",
            device=busiest[0][0] if busiest else None,
            host=_short(done.metadata.get("host_name")),
            backend=_short(distributed.get("backend")),
            versions={name: text for name, text in told.items() if text},
        )


def _natural(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 31 else None


def _short(value: object) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= 256 and value.isprintable() else None


def _cuda(value: object) -> str | None:
    """CUDA writes 12.4 as 12040."""
    number = _natural(value)
    return f"{number // 1000}.{number % 1000 // 10}" if number else None
