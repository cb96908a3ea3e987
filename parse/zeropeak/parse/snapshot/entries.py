"""The entries of one device's history as arrays, in the order in which the allocator wrote them."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]
    Codes = NDArray[np.uint8]

ALLOC: Final = 0
FREE_REQUESTED: Final = 1
FREE_COMPLETED: Final = 2
SEGMENT_ALLOC: Final = 3
SEGMENT_FREE: Final = 4
SEGMENT_MAP: Final = 5
SEGMENT_UNMAP: Final = 6
OOM: Final = 7
SNAPSHOT: Final = 8
OTHER: Final = 9

ACTIONS: Final = {
    "alloc": ALLOC,
    "free_requested": FREE_REQUESTED,
    "free_completed": FREE_COMPLETED,
    "segment_alloc": SEGMENT_ALLOC,
    "segment_free": SEGMENT_FREE,
    "segment_map": SEGMENT_MAP,
    "segment_unmap": SEGMENT_UNMAP,
    "oom": OOM,
    "snapshot": SNAPSHOT,
}
"""Actions as torch writes them, and our codes."""

MAX_SIZE: Final = 1 << 48
"""A size from here on (256 TiB) is damage; it also keeps sums of many sizes within int64."""

MAX_TIME_US: Final = (1 << 63) // 1000 - 1
"""Largest time that fits int64 nanoseconds."""

MISSING: Final = -1
"""A number that an entry lacks."""


@dataclass(frozen=True)
class Columns:
    """Entries as they are in the file; a number that is missing or no number is MISSING."""

    action: Codes
    address: Ints
    size: Ints
    stream: Ints
    time_us: Ints
    lost: int = 0
    """Items of the trace that are no entries at all."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Actions that are none of ours."""
    oom_device_free: tuple[int, ...] = ()
    """Bytes that the device had free at each out-of-memory error."""


@dataclass(frozen=True)
class Entries:
    """Usable entries; every array has one item an entry.

    ``address`` is 0 where an entry has none (oom, snapshot). ``size`` is what was asked for, before the allocator's
    rounding. ``ts_ns`` never decreases; it counts the entries where the file has no times.
    """

    action: Codes
    address: Ints
    size: Ints
    stream: Ints
    ts_ns: Ints
    has_times: bool = True
    damaged: int = 0
    """Entries left out: no dict, or no usable address or size."""
    unknown: tuple[tuple[str, int], ...] = ()
    """Actions that are none of ours and how often each occurs; left out."""
    retimed: int = 0
    """Entries that took the time of a neighbour: they had none, or one before their predecessor's."""
    oom_device_free: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.action)


def numbers(entries: Sequence[dict[str, Any]], key: str) -> Ints:
    """One whole number that is not negative of every entry, MISSING where there is none.

    >>> numbers([{"size": 3}, {"size": "x"}, {}], "size").tolist()
    [3, -1, -1]
    """
    try:
        values = np.frombuffer(array("q", [entry[key] for entry in entries]), np.int64)
    except (KeyError, TypeError, OverflowError):
        found = [entry.get(key) for entry in entries]
        values = np.array([value if type(value) is int and 0 <= value < 1 << 63 else MISSING for value in found],
                          np.int64)  # fmt: skip
    return values if not len(values) or values.min() >= MISSING else np.maximum(values, MISSING)


def columns(trace: list[Any]) -> Columns:
    """Turn one device's trace, as unpickled, into arrays."""
    entries: list[dict[str, Any]] = trace
    unknown: Counter[str] = Counter()
    try:
        codes = bytes(map(ACTIONS.__getitem__, map(itemgetter("action"), entries)))
    except (KeyError, TypeError):
        entries = [entry for entry in trace if isinstance(entry, dict)]
        names = [str(entry.get("action"))[:60] for entry in entries]
        codes = bytes([ACTIONS.get(name, OTHER) for name in names])
        unknown = Counter(name for name in names if name not in ACTIONS)
    action = np.frombuffer(codes, np.uint8)
    return Columns(
        action,
        numbers(entries, "addr"),
        numbers(entries, "size"),
        numbers(entries, "stream"),
        numbers(entries, "time_us"),
        lost=len(trace) - len(entries),
        unknown=unknown,
        oom_device_free=tuple(numbers([entries[at] for at in np.flatnonzero(action == OOM)], "device_free").tolist()),
    )


def join(parts: Sequence[Columns]) -> Columns:
    """Parts of one trace in order."""
    if len(parts) == 1:
        return parts[0]
    none = np.empty(0, np.int64)
    return Columns(
        np.concatenate([none.astype(np.uint8), *(part.action for part in parts)]),
        np.concatenate([none, *(part.address for part in parts)]),
        np.concatenate([none, *(part.size for part in parts)]),
        np.concatenate([none, *(part.stream for part in parts)]),
        np.concatenate([none, *(part.time_us for part in parts)]),
        lost=sum(part.lost for part in parts),
        unknown=sum((part.unknown for part in parts), Counter()),
        oom_device_free=tuple(free for part in parts for free in part.oom_device_free),
    )


def usable(found: Columns) -> Entries:
    """Leave out and count what cannot be used, and put the times in order.

    >>> trace = [{"action": "alloc", "addr": 512, "size": 8, "time_us": 7}, {"action": "alloc", "addr": 1024}]
    >>> entries = usable(columns(trace))
    >>> entries.ts_ns.tolist(), entries.damaged
    ([7000], 1)
    """
    action, address, size, stream, time_us = found.action, found.address, found.size, found.stream, found.time_us
    nowhere = (action == OOM) | (action == SNAPSHOT)
    bad = ((address == MISSING) & ~nowhere) | (size == MISSING) | (size >= MAX_SIZE)
    known = action != OTHER
    if bad.any() or not known.all():
        keep = known & ~bad
        action, address, size, stream, time_us = (
            values[keep] for values in (action, address, size, stream, time_us)
        )  # fmt: skip
    if nowhere.any():
        address = np.maximum(address, 0)
    ts_ns, retimed = monotonic(np.where(time_us < MAX_TIME_US, time_us, 0))
    return Entries(
        action,
        address,
        size,
        np.maximum(stream, 0) if (stream == MISSING).any() else stream,
        ts_ns if ts_ns is not None else np.arange(len(action), dtype=np.int64),
        has_times=ts_ns is not None,
        damaged=found.lost + int((bad & known).sum()),
        unknown=tuple(found.unknown.items()),
        retimed=retimed,
        oom_device_free=found.oom_device_free,
    )


def nothing_recorded() -> Entries:
    """A history without entries."""
    return usable(columns([]))


def monotonic(time_us: Ints) -> tuple[Ints | None, int]:
    """Nanoseconds that never decrease, and how many times were changed for that; None when no entry has a time.

    A time that is not positive is a missing one: it becomes that of the entry before, at the start that of the first
    entry with a time.
    """
    known = time_us > 0
    if len(known) and not known.any():
        return None, 0
    filled = np.maximum.accumulate(time_us)
    if len(known):
        first = int(known.argmax())
        filled[:first] = time_us[first]
    return filled * 1000, int((filled != time_us).sum())
