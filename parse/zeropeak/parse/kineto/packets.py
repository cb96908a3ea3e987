"""Decoded trace events to compact columns of plain Python, which a process can hand to another.

Nothing here needs numpy or pyarrow: importing them takes half as long as scanning a real trace, so a scanning process
does without (see ``scan``).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from zeropeak.profile.labels import NVTX_DOMAIN, RECORD_PREFIX

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

PACKET_ROWS: Final = 16_384
"""Rows of one kind that are kept before they are handed on."""

MEMORY: Final = "[memory]"
OUT_OF_MEMORY: Final = "[OutOfMemory]"

CATEGORIES: Final = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
}
"""Column ``category`` of table kernels by category of the trace."""

NOT_COLLECTIVES: Final = frozenset({"wait"})
"""Names under which record_param_comms records something that moves no data."""


class Packet(Struct, gc=False):
    """Rows of one kind: memory, kernels, ranges, collectives (told by a kernel) or launches (of collectives).

    Attributes:
        kind: what the rows are.
        count: rows.
        times: columns of microseconds as they stand in JSON, joined by newlines; empty where there is none.
        integers: columns of int64: ``array("q")``, or a list when some values are none.
        texts: columns of a few different values: an index a row, and the values.
    """

    kind: str
    count: int
    times: dict[str, bytes]
    integers: dict[str, Any]
    texts: dict[str, tuple[Any, list[object]]]


class _Columns(Struct):
    """Rows of one kind in the making."""

    kind: str
    count: int = 0
    times: dict[str, list[bytes]] = field(default_factory=dict)
    integers: dict[str, list[Any]] = field(default_factory=dict)
    texts: dict[str, list[Any]] = field(default_factory=dict)

    def add(
        self,
        count: int,
        times: dict[str, Sequence[Any]],
        integers: dict[str, Sequence[Any]],
        texts: dict[str, Sequence[Any]],
    ) -> None:
        """Append rows; every call has the same columns."""
        if not count:
            return
        self.count += count
        for name, values in times.items():
            self.times.setdefault(name, []).append(_joined(values))
        for store, columns in ((self.integers, integers), (self.texts, texts)):
            for name, values in columns.items():
                store.setdefault(name, []).extend(values)

    def take(self) -> Packet:
        """What was added; empties the columns."""
        packet = Packet(
            self.kind,
            self.count,
            {name: b"\n".join(parts) for name, parts in self.times.items()},
            {name: _packed(values) for name, values in self.integers.items()},
            {name: _indexed(values) for name, values in self.texts.items()},
        )
        self.count, self.times, self.integers, self.texts = 0, {}, {}, {}
        return packet


class Packets:
    """Collects kept events and hands them on in packets.

    Args:
        counts: takes what was left out.
        hand_on: takes the packets.

    Attributes:
        pids: processes that events on the host named.
    """

    def __init__(self, counts: Counter[str], hand_on: Callable[[Packet], None]) -> None:
        self.pids: set[int] = set()
        self._counts, self._hand_on = counts, hand_on
        kinds = ("memory", "kernels", "ranges", "launches", "collectives")
        self._columns = {kind: _Columns(kind) for kind in kinds}

    def memory(self, events: Sequence[Any]) -> None:
        """Take ``[memory]`` and ``[OutOfMemory]`` events; other instant events are passed over."""
        some = [one for one in events if one.name == MEMORY or one.name == OUT_OF_MEMORY]
        good = [one for one in some if one.args is not None]
        self._counts["memory_events_unreadable"] += len(some) - len(good)
        args = [one.args for one in good]
        self._columns["memory"].add(
            len(good),
            {"ts": [one.ts for one in good]},
            {
                "oom": [one.name != MEMORY for one in good],
                "thread_id": [one.tid for one in good],
                "size": [one.size for one in args],
                "address": [one.address for one in args],
                "allocated_bytes": [one.allocated for one in args],
                "reserved_bytes": [one.reserved for one in args],
            },
            {"device": [(one.device_type, one.device_id) for one in args]},
        )
        self._saw_pids(good)

    def kernels(self, events: Sequence[Any], category: str) -> None:
        """Take kernels, copies and fills, and the collectives among them."""
        full = [one for one in events if one.args is not None]
        bare = [one for one in events if one.args is None] if len(full) < len(events) else []
        for some, args in ((full, [one.args for one in full]), (bare, [])):
            known = bool(args)
            self._columns["kernels"].add(
                len(some),
                {"ts": [one.ts for one in some], "dur": [one.dur for one in some]},
                {
                    # Device and stream stand in for process and thread.
                    "device": [
                        one.pid if arg.device is None else arg.device for one, arg in zip(some, args, strict=True)
                    ]
                    if known
                    else [one.pid for one in some],
                    "stream": [
                        one.tid if arg.stream is None else arg.stream for one, arg in zip(some, args, strict=True)
                    ]
                    if known
                    else [one.tid for one in some],
                    "correlation_id": [arg.correlation for arg in args] if known else [None] * len(some),
                    "size_bytes": [arg.size for arg in args] if known else [None] * len(some),
                },
                {"name": [one.name for one in some], "category": [CATEGORIES[category]] * len(some)},
            )
        collectives = [one for one in full if one.args.collective is not None]
        self._collectives("collectives", collectives, [one.args for one in collectives])

    def ranges(self, events: Sequence[Any], args: Sequence[Any], category: str) -> None:
        """Take annotations; ``category`` tells those of the host from their mirrors on the device."""
        host = not category.startswith("gpu_")
        ours = [host and isinstance(one.name, str) and one.name.startswith(RECORD_PREFIX) for one in events]
        nothing = [None] * len(events)
        self._columns["ranges"].add(
            len(events),
            {"ts": [one.ts for one in events], "dur": [one.dur for one in events]},
            {
                "pid": [one.pid for one in events] if host else nothing,
                "thread_id": [one.tid for one in events] if host else nothing,
                "event_id": [
                    arg.event_id if own and arg is not None else None for arg, own in zip(args, ours, strict=True)
                ],
            },
            {
                "name": [
                    one.name[len(RECORD_PREFIX) :] if own else one.name for one, own in zip(events, ours, strict=True)
                ],
                "domain": [NVTX_DOMAIN if own else "" for own in ours],
                "category": [category] * len(events),
            },
        )
        if host:
            self._saw_pids(events)

    def ops(self, events: Sequence[Any], args: Sequence[Any]) -> None:
        """Take the operators that are ranges of ours or launches of collectives, with their arguments."""
        both = list(zip(events, args, strict=True))
        ours = [pair for pair in both if pair[0].name.startswith(RECORD_PREFIX)]
        if ours:
            self.ranges([one for one, _ in ours], [arg for _, arg in ours], "cpu_op")
        comms = [pair for pair in both if not pair[0].name.startswith(RECORD_PREFIX)]
        named = [pair for pair in comms if pair[1] is not None and pair[1].collective is not None]
        self._counts["collectives_without_args"] += len(comms) - len(named)
        moving = [pair for pair in named if pair[1].collective not in NOT_COLLECTIVES]
        self._collectives("launches", [one for one, _ in moving], [arg for _, arg in moving])
        self._saw_pids([one for one, _ in comms])

    def hand_on(self, least: int = PACKET_ROWS) -> None:
        """Hand on what has become a packet: at least so many rows. Launches go before the kernels that ask for them."""
        if self._columns["collectives"].count >= least and self._columns["launches"].count:
            self._hand_on(self._columns["launches"].take())
        for columns in self._columns.values():
            if columns.count >= least:
                self._hand_on(columns.take())

    def _collectives(self, kind: str, events: Sequence[Any], args: Sequence[Any]) -> None:
        self._columns[kind].add(
            len(events),
            {"ts": [one.ts for one in events], "dur": [one.dur for one in events]},
            {
                "stream": [getattr(arg, "stream", None) for arg in args],
                "external_id": [arg.external for arg in args],
                "thread_id": [one.tid for one in events],
                "in_numel": [arg.in_numel for arg in args],
                "out_numel": [arg.out_numel for arg in args],
                "group_size": [arg.group_size for arg in args],
                "sequence": [arg.sequence for arg in args],
                "in_address": [arg.in_address for arg in args],
                "out_address": [arg.out_address for arg in args],
            },
            {
                "name": [arg.collective for arg in args],
                "dtype": [arg.dtype for arg in args],
                "group": [arg.group_description if arg.group is None else arg.group for arg in args],
            },
        )

    def _saw_pids(self, events: Sequence[Any]) -> None:
        self.pids.update(pid for pid in {one.pid for one in events} if type(pid) is int and 0 < pid < 1 << 31)


def _joined(texts: Sequence[Any]) -> bytes:
    joined = b"\n".join(texts)
    if joined.count(b"\n") != len(texts) - 1:  # one is not a number but a list or object over several lines
        joined = b"\n".join(bytes(text).replace(b"\n", b" ") for text in texts)
    return joined


def _packed(values: list[Any]) -> array[int] | list[object]:
    try:
        return array("q", values)
    except (TypeError, OverflowError):
        return values


def _indexed(values: list[Any]) -> tuple[array[int], list[object]]:
    table: dict[object, int] = {}
    return array("i", [table.setdefault(value, len(table)) for value in values]), list(table)
