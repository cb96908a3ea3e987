"""Packets of trace events to Arrow batches of the tables that they fill."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zeropeak.parse.kineto.columns import address, batch, constant, int_column, integer, integers, text_column
from zeropeak.parse.kineto.launches import FILLED, Launches
from zeropeak.parse.kineto.times import microseconds

if TYPE_CHECKING:
    import pyarrow as pa

    from zeropeak.parse.kineto.columns import Flags, Ints
    from zeropeak.parse.kineto.packets import Packet
    from zeropeak.parse.sink import Sink

READER: Final = "kineto"

LAUNCH_ROWS: Final = 1_000_000
"""Collectives seen at their launch that are kept until it is clear that no kernel tells of them."""

YEAR_NS: Final = 366 * 86_400 * 10**9
"""No trace is longer: a time or duration beyond it is a profiler's overflow or another clock."""

UNIX_FROM_NS: Final = 10**18
"""Times below (before 2001) count from the machine's start: none is up for 30 years."""

DEVICES: Final = {
    0: "cpu",
    1: "cuda",
    2: "mkldnn",
    3: "opengl",
    4: "opencl",
    5: "ideep",
    6: "hip",
    7: "fpga",
    8: "maia",
    9: "xla",
    10: "vulkan",
    11: "metal",
    12: "xpu",
    13: "mps",
    14: "meta",
    15: "hpu",
    16: "ve",
    17: "lazy",
    18: "ipu",
    19: "mtia",
    20: "privateuseone",
}
"""c10::DeviceType."""

DTYPES: Final = {
    "Byte": ("uint8", 1),
    "Char": ("int8", 1),
    "Short": ("int16", 2),
    "Int": ("int32", 4),
    "Long": ("int64", 8),
    "Half": ("float16", 2),
    "Float": ("float32", 4),
    "Double": ("float64", 8),
    "BFloat16": ("bfloat16", 2),
    "Bool": ("bool", 1),
    "ComplexHalf": ("complex32", 4),
    "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
    "Float8_e5m2": ("float8_e5m2", 1),
    "Float8_e4m3fn": ("float8_e4m3fn", 1),
    "Float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
    "Float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
}
"""c10::ScalarType as the profiler prints it: torch's name and bytes an element."""

_MIN: Final = -(1 << 63)


class Rows:
    """Turns packets into batches and hands them to a sink.

    Args:
        sink: where they go.
        counts: takes what was left out or changed.
        base_ns: added to every time.

    Attributes:
        devices: events by device of the allocator.
        boot: the times count from the machine's start, not from 1970; None before the first row.
    """

    def __init__(self, sink: Sink, counts: Counter[str], base_ns: int) -> None:
        self.devices: Counter[str] = Counter()
        self.boot: bool | None = None
        self._sink, self._counts, self._base_ns = sink, counts, base_ns
        self._reference: int | None = None
        self._launches: list[Packet] = []
        self._launched_by = Launches()
        self._launches_count = False
        self._kernels_tell = False

    def take(self, packet: Packet) -> None:
        """Hand a packet's rows over."""
        if packet.kind == "memory":
            self._memory(packet)
        elif packet.kind == "kernels":
            self._kernels(packet)
        elif packet.kind == "ranges":
            self._ranges(packet)
        elif packet.kind == "launches":
            self._launched(packet)
        elif self._launches_count:
            self._counts["collective_kernels_unused"] += packet.count
        else:
            # A kernel tells when a collective ran; its launch would count it twice.
            self._kernels_tell = True
            self._counts["collective_launches"] += sum(waiting.count for waiting in self._launches)
            self._launches = []
            self._collectives(packet)

    def finish(self) -> None:
        """Hand over what waited for the end of the trace."""
        for packet in self._launches:
            self._collectives(packet)
        self._launches = []

    def _launched(self, packet: Packet) -> None:
        for name in ("in_address", "out_address"):
            packet.integers[name] = [address(value) for value in packet.integers[name]]
        relative, timed = microseconds(packet.times["ts"], packet.count)
        names = ("external_id", "thread_id", *FILLED)
        told = {name: integers(packet.integers[name], Counter()) for name in names}
        self._launched_by.add(relative + self._base_ns, timed & (relative != 0), told)
        if self._kernels_tell:
            self._counts["collective_launches"] += packet.count
            return
        self._launches.append(packet)
        if self._launches_count or sum(waiting.count for waiting in self._launches) >= LAUNCH_ROWS:
            self._launches_count = True
            self.finish()

    def _memory(self, packet: Packet) -> None:
        ts, keep = self._starts(packet)
        size, sized = integers(packet.integers["size"], self._counts)
        good = (size > _MIN) if sized is None else sized & (size > _MIN)
        self._counts["memory_events_unreadable"] += int((keep & ~good).sum())
        keep &= good
        indices, pairs = packet.texts["device"]
        which, names = np.frombuffer(indices, np.int32), [self._device(pair) for pair in pairs]
        self.devices.update(
            {
                name: int(count)
                for name, count in zip(names, np.bincount(which[keep], minlength=len(names)), strict=True)
                if name is not None and count
            }
        )
        # The totals are the allocator's own only on an accelerator; on the CPU the profiler makes them up.
        owned = np.array([name is not None and name != "cpu" for name in names], bool)[which]
        action = np.where(np.array(packet.integers["oom"], bool), 2, (size < 0).astype(np.int64))
        self._write(
            "memory_events",
            keep,
            {
                "device": text_column(which, names),
                "ts_ns": int_column(ts),
                "action": text_column(action, ["alloc", "free", "oom"]),
                "size_bytes": int_column(np.abs(size)),
                **self._int_columns(packet, "address", "thread_id"),
                **{name: self._owned(packet, name, owned) for name in ("allocated_bytes", "reserved_bytes")},
            },
        )

    def _kernels(self, packet: Packet) -> None:
        spans, keep = self._spans(packet)
        self._write(
            "kernels",
            keep,
            {
                **_text_columns(packet),
                **spans,
                **self._int_columns(packet, "device", "stream", "correlation_id", "size_bytes"),
            },
        )

    def _ranges(self, packet: Packet) -> None:
        spans, keep = self._spans(packet)
        self._write(
            "nvtx_ranges",
            keep,
            {
                **self._int_columns(packet, "pid", "thread_id", "event_id"),
                **_text_columns(packet),
                **spans,
                "style": constant("record_function", packet.count),
            },
        )

    def _collectives(self, packet: Packet) -> None:
        spans, keep = self._spans(packet)
        indices, dtypes = packet.texts["dtype"]
        known = [DTYPES.get(str(dtype), (dtype, None)) for dtype in dtypes]
        packet.texts["dtype"] = indices, [name for name, _ in known]
        for numel in ("in_numel", "out_numel"):
            numbers = [integer(value, self._counts) for value in packet.integers[numel]]
            packet.integers[numel] = list(numbers)
            packet.integers[numel.replace("numel", "bytes")] = [
                None if number is None or known[index][1] is None else number * (known[index][1] or 0)
                for number, index in zip(numbers, indices, strict=True)
            ]
        if packet.kind == "collectives":
            for name in ("in_address", "out_address"):
                packet.integers[name] = [address(value) for value in packet.integers[name]]
            own = {name: integers(packet.integers.pop(name), self._counts) for name in FILLED}
            del packet.integers["thread_id"]  # a kernel's is its stream
            launch = self._launched_by.columns(integers(packet.integers.pop("external_id"), Counter()), own)
        else:
            del packet.integers["external_id"]
            launch = {"launched_ns": spans["start_ns"]}
        columns = {**_text_columns(packet), **spans, **launch, **self._int_columns(packet, *packet.integers)}
        self._write("collectives", keep, columns)

    def _int_columns(self, packet: Packet, *names: str) -> dict[str, pa.Array]:
        return {name: int_column(*integers(packet.integers[name], self._counts)) for name in names}

    def _owned(self, packet: Packet, name: str, owned: Flags) -> pa.Array:
        values, valid = integers(packet.integers[name], self._counts)
        return int_column(values, owned if valid is None else owned & valid)

    def _write(self, table: str, keep: Flags, columns: dict[str, pa.Array]) -> None:
        rows = batch({**columns, "source": constant(READER, len(keep))}, keep)
        if rows.num_rows:
            self._sink.write(table, rows)

    def _device(self, pair: Any) -> str | None:
        """Name of a device; the allocator of the CPU has no index."""
        kind, index = (integer(value, self._counts) for value in pair)
        name = None if kind is None else DEVICES.get(kind, f"device{kind}")
        return f"{name}:{index}" if name not in (None, "cpu") and index is not None and index >= 0 else name

    def _starts(self, packet: Packet) -> tuple[Ints, Flags]:
        """Absolute times and which of them can be right; the others are counted."""
        relative, good = microseconds(packet.times["ts"], packet.count)
        self._counts["times_unreadable"] += int((~good).sum())
        zero = good & (relative == 0)
        self._counts["times_zero"] += int(zero.sum())
        good &= ~zero
        times = relative + self._base_ns
        if self._reference is None and good.any():
            self._reference = int(np.median(times[good]))
            self.boot = self._reference < UNIX_FROM_NS
        if self._reference is not None:
            far = good & (np.abs(times - self._reference) > YEAR_NS)
            self._counts["times_on_another_clock"] += int(far.sum())
            good &= ~far
        return times, good

    def _spans(self, packet: Packet) -> tuple[dict[str, pa.Array], Flags]:
        """Columns start_ns and end_ns (null without a sensible duration), and which begins are right."""
        start, good = self._starts(packet)
        length, known = microseconds(packet.times["dur"], packet.count)
        bad = known & ((length < 0) | (length > YEAR_NS))
        self._counts["durations_absurd"] += int(bad.sum())
        return {"start_ns": int_column(start), "end_ns": int_column(start + length, known & ~bad)}, good


def _text_columns(packet: Packet) -> dict[str, pa.Array]:
    return {
        name: text_column(np.frombuffer(indices, np.int32), values) for name, (indices, values) in packet.texts.items()
    }
