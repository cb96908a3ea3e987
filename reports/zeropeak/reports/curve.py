"""Memory over time as a step function, and its honest reduction to what a page can show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc

from zeropeak.reports.columns import NEVER, Ints, ints

if TYPE_CHECKING:
    import pyarrow as pa

    from zeropeak.reports.run import Run

_NO_ROWS: Final = np.empty(0, dtype=np.int64)
_ZERO: Final = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True)
class Curve:
    """Bytes over time: ``size_bytes[i]`` holds from ``ts_ns[i]`` to the next time. Before the first time: zero.

    Attributes:
        ts_ns: int64, never decreasing.
        size_bytes: int64, same length.
        sampled: true when the values are counters read now and then, so that the truth between them is unknown.
    """

    ts_ns: Ints
    size_bytes: Ints
    sampled: bool = False

    def __len__(self) -> int:
        return len(self.ts_ns)

    def at(self, ts_ns: Ints) -> Ints:
        """Values right after each of the given times."""
        if not len(self):
            return np.zeros(len(ts_ns), dtype=np.int64)
        index = np.searchsorted(self.ts_ns, ts_ns, side="right") - 1
        return np.where(index >= 0, self.size_bytes[np.maximum(index, 0)], 0)

    def along(self, other: Curve) -> Ints:
        """Values right after each time of another curve: as :meth:`at`, in less time where that one is the longer."""
        if len(other) <= len(self):
            return self.at(other.ts_ns)
        first = np.searchsorted(other.ts_ns, self.ts_ns, side="left")
        counts = np.diff(first, prepend=0, append=len(other))
        return np.repeat(np.concatenate([_ZERO, self.size_bytes]), counts)

    def window(self, start_ns: int, end_ns: int) -> Curve:
        """The part in [start_ns, end_ns], with the value that holds at the start."""
        if not len(self):
            return self
        first, last = np.searchsorted(self.ts_ns, [start_ns, end_ns], side="right")
        head = self.at(np.array([start_ns], dtype=np.int64)) if first else _NO_ROWS
        return Curve(
            np.concatenate([np.array([start_ns] * len(head), dtype=np.int64), self.ts_ns[first:last]]),
            np.concatenate([head, self.size_bytes[first:last]]),
            self.sampled,
        )


@dataclass(frozen=True)
class Envelope:
    """Lowest and highest value in each of some equal bins of time.

    Attributes:
        edges_ns: one more than bins.
        low_bytes, high_bytes: per bin.
        high_ns: the moment of each bin's highest value.
    """

    edges_ns: Ints
    low_bytes: Ints
    high_bytes: Ints
    high_ns: Ints


def envelope(curve: Curve, start_ns: int, end_ns: int, bins: int) -> Envelope:
    """Reduce a curve to ``bins`` bins: no extreme is lost, whatever the number of points.

    A bin's values are the one that holds at its left edge and all that begin within it.
    """
    edges = np.linspace(start_ns, end_ns, bins + 1).astype(np.int64)
    carried = curve.at(edges[:-1])
    low, high, when = carried.copy(), carried.copy(), edges[:-1].copy()
    inside = curve.window(start_ns, end_ns)
    if len(inside):
        bin_of = np.clip(np.searchsorted(edges, inside.ts_ns, side="right") - 1, 0, bins - 1)
        first = np.flatnonzero(np.diff(bin_of, prepend=-1))
        filled = bin_of[first]
        low[filled] = np.minimum(low[filled], np.minimum.reduceat(inside.size_bytes, first))
        # Highest value per bin with its moment: the last row of each bin in order of value, earliest moment last.
        order = np.lexsort((-np.arange(len(inside)), inside.size_bytes, bin_of))
        top = order[np.append(np.flatnonzero(np.diff(bin_of[order])), len(order) - 1)]
        higher = inside.size_bytes[top] > high[filled]
        high[filled[higher]] = inside.size_bytes[top[higher]]
        when[filled[higher]] = inside.ts_ns[top[higher]]
    return Envelope(edges, low, high, when)


def allocated(run: Run, rank: int) -> Curve:
    """Allocated bytes of a rank over the whole run; empty when the run holds no such thing.

    From ``memory_events`` where there are any, else from ``memory_samples``.
    """
    return _told(run, rank, "allocated_bytes")


def reserved(run: Run, rank: int) -> Curve:
    """Bytes that the caching allocator held, used or not; empty where there is no such allocator (CPU).

    From the ``memory_events`` of the allocator's own history where they say it, else from ``memory_samples``, else from
    what nsys saw, which includes what NCCL and other libraries take of the device.
    """
    own = _told(run, rank, "reserved_bytes", of_nsys=False)
    return own if len(own) else _told(run, rank, "reserved_bytes")


def of_device(rows: pa.Table, run: Run, rank: int) -> pa.Table:
    """Rows (with a column ``device``) of the device whose curve the rank has; those without a device count as its."""
    device = run.arrow("ranks", rank, ["device"])["device"]
    if not len(device) or device[0].as_py() is None:
        return rows
    return rows.filter(pc.fill_null(pc.equal(rows["device"], device[0]), True))


def without_nsys(rows: pa.Table) -> pa.Table:
    """Rows (with a column ``source``) that nsys did not give: it tells of the device's segments a second time."""
    return rows.filter(pc.fill_null(pc.not_equal(rows["source"], "nsys"), True))


def _told(run: Run, rank: int, column: str, *, of_nsys: bool = True) -> Curve:
    rows = of_device(run.arrow("memory_events", rank, ["device", "ts_ns", "source", column]), run, rank)
    rows = rows if of_nsys else without_nsys(rows)
    rows = rows.filter(pc.is_valid(rows[column]))
    sampled = not rows.num_rows
    if sampled:
        rows = run.arrow("memory_samples", rank, ["ts_ns", column])
        rows = rows.filter(pc.is_valid(rows[column]))
    return _ordered(ints(rows, "ts_ns"), ints(rows, column), sampled)


def released_intervals(run: Run, rank: int) -> Intervals:
    """Storages that ZeRO released, each from its release to its end.

    From ``memory_blocks``; without those, the ones that the marks found alive.
    """
    intervals = _from_blocks(run.arrow("memory_blocks", rank, _BLOCK_COLUMNS))
    if not len(intervals.size_bytes):
        intervals = _from_retained(run.arrow("retained", rank, _RETAINED_COLUMNS))
    return intervals


@dataclass(frozen=True)
class Intervals:
    """Storages between their release and their end (``NEVER`` when not seen): parallel arrays.

    Attributes:
        param_id: parameter, or ``ABSENT``.
        storage_id: registered storage, or ``ABSENT``.
    """

    start_ns: Ints
    end_ns: Ints
    size_bytes: Ints
    param_id: Ints
    storage_id: Ints

    def of(self, param_ids: Ints) -> Intervals:
        """Those of some parameters."""
        keep = np.isin(self.param_id, param_ids)
        return Intervals(*(column[keep] for column in self._columns()))

    def curve(self) -> Curve:
        """Their bytes over time. A storage that dies in the very moment of its release never counts."""
        lasting = self.end_ns > self.start_ns
        start, end, size = self.start_ns[lasting], self.end_ns[lasting], self.size_bytes[lasting]
        ended = end != NEVER
        times = np.concatenate([start, end[ended]])
        order = np.argsort(times, kind="stable")
        total = np.cumsum(np.concatenate([size, -size[ended]])[order])
        # One value a moment, the last: several changes of one moment are one change.
        last = np.flatnonzero(np.diff(times[order], append=NEVER))
        return Curve(times[order][last], total[last])

    def _columns(self) -> tuple[Ints, ...]:
        return self.start_ns, self.end_ns, self.size_bytes, self.param_id, self.storage_id


_BLOCK_COLUMNS: Final = ("released_ns", "free_requested_ns", "freed_ns", "size_bytes", "param_id", "storage_id")
_RETAINED_COLUMNS: Final = ("released_ns", "ended_ns", "ts_ns", "size_bytes", "param_id", "storage_id")


def _from_blocks(blocks: pa.Table) -> Intervals:
    blocks = blocks.filter(pc.is_valid(blocks["released_ns"]))
    ended = pc.coalesce(blocks["free_requested_ns"], blocks["freed_ns"])
    blocks = blocks.append_column("ended_ns", ended)
    return Intervals(
        ints(blocks, "released_ns"),
        ints(blocks, "ended_ns", NEVER),
        ints(blocks, "size_bytes"),
        ints(blocks, "param_id"),
        ints(blocks, "storage_id"),
    )


def _from_retained(retained: pa.Table) -> Intervals:
    """A storage is seen at several marks: once is enough."""
    retained = retained.filter(pc.and_(pc.is_valid(retained["released_ns"]), pc.is_valid(retained["storage_id"])))
    _, first = np.unique(ints(retained, "storage_id"), return_index=True)
    return Intervals(
        ints(retained, "released_ns")[first],
        ints(retained, "ended_ns", NEVER)[first],
        ints(retained, "size_bytes")[first],
        ints(retained, "param_id")[first],
        ints(retained, "storage_id")[first],
    )


def _ordered(ts_ns: Ints, size_bytes: Ints, sampled: bool) -> Curve:
    if len(ts_ns) > 1 and bool(np.any(np.diff(ts_ns) < 0)):
        order = np.argsort(ts_ns, kind="stable")
        ts_ns, size_bytes = ts_ns[order], size_bytes[order]
    return Curve(ts_ns, size_bytes, sampled)
