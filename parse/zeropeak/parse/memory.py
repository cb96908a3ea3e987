"""The memory of one rank: which source tells it, its curve, and its blocks with their owners."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.alive import Alive
from zeropeak.parse.blocks import (
    ALIVE,
    BEFORE,
    COLLECTIVE_ENDED,
    MENDS,
    REUSED,
    ROW,
    STORAGE_ENDED,
    Blocks,
    Events,
    close_at_collective_end,
    close_at_storage_end,
    match_storages,
    pair,
)
from zeropeak.parse.compact import kept, plain
from zeropeak.parse.curve import Curve, Edges, edges
from zeropeak.parse.event_rows import AS_RECORDED, EventRows
from zeropeak.parse.lean import give_back_of
from zeropeak.parse.lookup import ints
from zeropeak.parse.recorded import recorded
from zeropeak.parse.registered import block_table, unmatched_table
from zeropeak.profile.labels import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zeropeak.parse.stats import StatsScope
    from zeropeak.parse.timeline import Timeline

    Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Memory:
    """Memory of one rank on its main device.

    Attributes:
        source: kineto, snapshot, simulated or counters; None when nothing tells the curve.
        device: main device.
        curve: allocated bytes over time; None when nothing tells it.
        blocks: rows of memory_blocks of the main device.
        events: rows of memory_events, all devices: tables to go through, some of which make them as they are asked.
        other_blocks: rows of memory_blocks of other devices.
    """

    source: str | None
    device: str | None
    curve: Curve | None
    blocks: pa.Table
    events: tuple[Iterable[pa.Table], ...]
    other_blocks: pa.Table
    _by_position: Alive
    _by_time: Alive
    _first_by_time: int

    @property
    def recorded_blocks(self) -> pa.Table:
        """Rows of ``blocks`` that are the allocator's own, not only registered storages."""
        return self.blocks.slice(0, self._first_by_time)

    def alive(self, position: int, ts: int) -> Ints:
        """Rows of ``blocks`` that the curve counts at a position; ``ts`` is its time."""
        return np.concatenate([self._by_position.rows(position), self._first_by_time + self._by_time.rows(ts)])

    def without_events(self) -> Memory:
        """The same without ``events``, which take most of the room: nothing asks for them once they are written."""
        return replace(self, events=())


def from_allocator(
    events: dict[str | None, pa.Table],
    known: pa.Table,
    source: str,
    storages: pa.Table,
    timeline: Timeline,
    device: str | None,
    span: tuple[int, int],
    slack_ns: int,
    stats: StatsScope,
) -> Memory:
    """Build blocks and curve from a profiler's alloc and free events.

    Args:
        events: rows of memory_events of one rank and one source by device, as recorded, on the run's clock; they are
            taken out, as there may be millions, of which each turn makes a copy.
        known: rows of memory_blocks, where the source tells lifetimes itself; empty otherwise.
        source: kineto, snapshot or simulated.
        storages: registered storages (memory_blocks rows of the event log), on the run's clock.
        timeline: the rank's events.
        device: the rank's device by its own account; a name without an index takes the busiest of that kind.
        span: first and last moment that the source speaks for, ns.
        slack_ns: error of the source's clock fit.
        stats: takes the counts of mends.
    """
    main = _main_device({name: rows.num_rows for name, rows in events.items()}, device)
    parts = []
    for name in list(events):
        owned = storages if name == main else storages.slice(0, 0)
        told = _of_device(known, name)
        parts.append((name, *_device_memory(events.pop(name), told, name, source, owned, timeline, slack_ns, stats)))
    all_events = tuple(rows for part in parts for rows in part[1])
    others = _joined([part[2] for part in parts if part[0] != main] or [parts[0][2].slice(0, 0)])
    _, _, blocks, matched, order = next(part for part in parts if part[0] == main)
    curve = Curve(order.ts, order.allocated, order.baseline_bytes, *span)
    loose = storages.filter(pa.array(matched < 0))
    stats.count("storages_without_block", loose.num_rows, "info", "registered storages that the profiler did not see")
    counted = order.baseline_bytes > int(np.maximum(0, blocks_before(blocks)).sum())
    loose_rows = unmatched_table(loose, timeline, main, blocks.num_rows)
    born, gone = ints(loose_rows["born_ns"]), ints(loose_rows["freed_ns"], ALIVE)
    never = ~((born <= span[0]) & counted)
    joined = _joined([blocks, loose_rows]) if loose.num_rows else blocks
    return Memory(
        source,
        main,
        curve,
        joined,
        all_events,
        _renumber(others, joined.num_rows),
        Alive(order.birth_position, order.end_position),
        Alive(np.where(never, ALIVE, born), gone),
        blocks.num_rows,
    )


def reserved_curve(memory: Memory, segments: pa.Table | None, samples: pa.Table) -> Curve | None:
    """Reserved bytes over time: from the totals beside allocator events, else from counters, else from nsys.

    nsys comes last: it sees all that the process takes of the device, by NCCL and other libraries, too.

    Args:
        memory: the rank's memory.
        segments: memory_events rows of nsys, or None.
        samples: columns ts_ns and reserved_bytes, no nulls.
    """
    for source in (chain.from_iterable(memory.events), [samples], [] if segments is None else [segments]):
        told = [_reserved(rows, memory.device) for rows in source if "reserved_bytes" in rows.schema.names]
        mine = pa.concat_tables(told) if told else samples.slice(0, 0)
        if mine.num_rows and pc.max(mine["reserved_bytes"]).as_py() > 0:
            return _sampled(mine, "reserved_bytes")
    return None


def _reserved(rows: pa.Table, device: str | None) -> pa.Table:
    """Times and reserved bytes of the rows of a device that tell them."""
    told = pc.is_valid(rows["reserved_bytes"])
    if "device" in rows.schema.names:
        told = pc.and_(told, pc.equal(rows["device"], device))
    return kept(rows.select(["ts_ns", "reserved_bytes"]), told)


def _sampled(rows: pa.Table, column: str) -> Curve | None:
    """A curve through samples, of which those that say the same as the one before are left out."""
    if not rows.num_rows:
        return None
    ts, value = ints(rows["ts_ns"]), ints(rows[column])
    first, last = int(ts.min()), int(ts.max())
    if (ts[1:] < ts[:-1]).any():
        order = np.argsort(ts, kind="stable")
        ts, value = ts[order], value[order]
    changes = np.append(True, value[1:] != value[:-1])
    return Curve(ts[changes], value[changes], int(value[0]), first, last, sampled=True)


def blocks_before(blocks: pa.Table) -> Ints:
    """Sizes of the blocks from before the known history."""
    return ints(blocks.filter(pc.is_null(blocks["born_ns"]))["size_bytes"])


def from_counters(
    samples: pa.Table, storages: pa.Table, timeline: Timeline, device: str | None, span: tuple[int, int] | None
) -> Memory:
    """Curve from the allocator's counters at events, blocks from the registered storages only.

    Args:
        samples: columns ts_ns and allocated_bytes (no nulls), any order; may be empty.
        storages: registered storages (memory_blocks rows of the event log), on the run's clock.
        timeline: the rank's events.
        device: the rank's device.
        span: first and last moment of the log; None when it is empty.
    """
    blocks = unmatched_table(storages, timeline, device, 0)
    curve = _sampled(samples, "allocated_bytes")
    if curve is not None and span is not None:
        curve = replace(curve, start_ns=span[0], end_ns=span[1])
    return Memory(
        "counters" if curve else None,
        device,
        curve,
        blocks,
        (),
        blocks.slice(0, 0),
        Alive(np.empty(0, np.int64), np.empty(0, np.int64)),
        Alive(ints(blocks["born_ns"]), ints(blocks["freed_ns"], ALIVE)),
        0,
    )


def _of_device(rows: pa.Table, device: str | None) -> pa.Table:
    return kept(rows, pc.is_null(rows["device"]) if device is None else pc.equal(rows["device"], device))


def _joined(parts: list[pa.Table]) -> pa.Table:
    """All rows; texts are dictionaries where those of all parts are."""
    if len({tuple(part.schema.types) for part in parts}) > 1:
        parts = [plain(part) for part in parts]
    return pa.concat_tables(parts, promote_options="permissive").unify_dictionaries()


def _device_memory(
    rows: pa.Table,
    told: pa.Table,
    device: str | None,
    source: str,
    storages: pa.Table,
    timeline: Timeline,
    slack_ns: int,
    stats: StatsScope,
) -> tuple[list[Iterable[pa.Table]], pa.Table, Ints, Edges]:
    """memory_events rows, memory_blocks rows, block of each storage, and the order of births and ends."""
    moves = pc.is_in(rows["action"], pa.array(["alloc", "free"]))
    if told.num_rows:
        blocks, order = recorded(rows.filter(moves), told, stats)
        matched = match_storages(blocks, ints(storages["address"]), ints(storages["born_ns"]), slack_ns)
        table = block_table(blocks, matched, storages, timeline, device or "", source)
        for name in ("free_requested_ns", "freed_ns", "stream", "mend"):
            place = table.schema.get_field_index(name)
            values = told[name].combine_chunks()
            table = table.append_column(name, values) if place < 0 else table.set_column(place, name, values)
        return [[rows]], table, matched, order
    rest, rows = rows.filter(pc.invert(moves)), kept(rows, moves)
    alloc = pc.equal(rows["action"], "alloc").to_numpy(zero_copy_only=False)
    if rows["address"].null_count:
        stats.count(
            "memory_events_without_address",
            rows["address"].null_count,
            "lost",
            "the trace has sizes but no addresses (torch before 1.11): a curve, no blocks",
        )
        table, order = _without_blocks(rows, alloc)
        blocks = pair(Events(*(np.empty(0, kind) for kind in (np.int64, bool, np.int64, np.int64))))
        matched = np.full(storages.num_rows, -1)
        return [[table]], block_table(blocks, matched, storages, timeline, device or "", source), matched, order
    baseline = _reported_baseline(rows) if device != "cpu" else None
    rows = rows.select(["ts_ns", "address", "size_bytes", *(name for name in AS_RECORDED if name in rows.schema.names)])
    columns = []
    for _ in range(3):  # one by one, so that not all of them are in memory twice
        columns.append(ints(rows.column(0)))
        rows = rows.remove_column(0)
        give_back_of(rows.num_rows)
    ts, address, size = columns
    rows = rows.combine_chunks()
    blocks = pair(Events(ts, alloc, address, size))
    del ts, alloc, address, size, columns
    give_back_of(rows.num_rows)
    matched = match_storages(blocks, ints(storages["address"]), ints(storages["born_ns"]), slack_ns)
    ended = ints(storages["freed_ns"], ALIVE)
    blocks = close_at_storage_end(blocks, matched, ended)
    if device == "cpu" and source == "kineto":
        blocks = close_at_collective_end(blocks, matched, _collective_end(timeline, blocks.born))
    order = edges(blocks, baseline)
    _count_mends(blocks, stats)
    made: list[Iterable[pa.Table]] = [EventRows(rows, blocks, order, device, source)]
    if rest.num_rows:
        made.append([rest])
    return made, block_table(blocks, matched, storages, timeline, device or "", source), matched, order


_COMMUNICATION: Final = (Kind.FETCH, Kind.PREFETCH, Kind.WAIT, Kind.GATHER, Kind.REDUCE, Kind.ALL_GATHER)


def _collective_end(timeline: Timeline, born: Ints) -> Ints:
    """End of the innermost event at each birth when it is a communication; ALIVE otherwise, and for a cut event."""
    row = timeline.events.innermost.at(born)
    kinds = pc.is_in(timeline.events.rows["kind"], pa.array([kind.value for kind in _COMMUNICATION]))
    communicates = np.append(np.asarray(kinds.combine_chunks() if isinstance(kinds, pa.ChunkedArray) else kinds), False)
    ends = np.append(timeline.events.end, ALIVE)
    return np.where(communicates[row], ends[row], ALIVE)


def _without_blocks(rows: pa.Table, alloc: Flags) -> tuple[pa.Table, Edges]:
    """The curve of events that name no addresses; it starts as high as keeps it from going below zero."""
    by_time = np.argsort(ints(rows["ts_ns"]), kind="stable")
    rows, alloc = rows.take(pa.array(by_time)), alloc[by_time]
    total = np.cumsum(np.where(alloc, ints(rows["size_bytes"]), -ints(rows["size_bytes"])))
    baseline = max(0, -int(total.min())) if len(total) else 0
    place = rows.schema.get_field_index("allocated_bytes")
    column = pa.array(total + baseline)
    rows = (
        rows.append_column("allocated_bytes", column)
        if place < 0
        else rows.set_column(place, "allocated_bytes", column)
    )
    nothing = np.empty(0, ROW)
    return rows, Edges(ints(rows["ts_ns"]), nothing, alloc, total + baseline, baseline, nothing, nothing)


def _reported_baseline(rows: pa.Table) -> int | None:
    """Allocated before the first event, by the source's own running total; None when it has none."""
    if "allocated_bytes" not in rows.schema.names or not rows.num_rows or rows["allocated_bytes"].null_count:
        return None
    first = pc.index(rows["ts_ns"], pc.min(rows["ts_ns"])).as_py()
    [row] = rows.slice(first, 1).to_pylist()
    signed = row["size_bytes"] if row["action"] == "alloc" else -row["size_bytes"]
    return int(row["allocated_bytes"] - signed)


def _count_mends(blocks: Blocks, stats: StatsScope) -> None:
    for code, detail in (
        (REUSED, "frees that the profiler missed, seen because the address was allocated again"),
        (STORAGE_ENDED, "frees that the profiler missed, seen by the event log when the tensor died"),
        (COLLECTIVE_ENDED, "frees that the profiler missed, of copies that a collective made for itself"),
    ):
        mended = blocks.mend == code
        name = str(MENDS[code]).replace("-", "_")
        stats.count(f"mend_{name}", int(mended.sum()), "mended", detail)
        stats.count(f"mend_{name}_bytes", int(blocks.size[mended].sum()), "mended", "their bytes")
    before = blocks.born == BEFORE
    stats.count("blocks_before_history", int(before.sum()), "info", "blocks born before the profiler started")
    stats.count("blocks_before_history_bytes", int(blocks.size[before].sum()), "info", "their bytes")
    stats.count("frees_without_alloc", blocks.unseen_frees, "lost", "frees of blocks whose birth was not reported")
    stats.count("free_size_differs", blocks.size_differs, "mended", "frees that reported another size than the birth")


def _main_device(counts: dict[str | None, int], wanted: str | None) -> str | None:
    """The device in the events that the rank means; the busiest accelerator, else the busiest, when it does not say."""
    if wanted in counts:
        return wanted
    for kind in (wanted or "cuda", "cuda", "cpu"):
        some = [name for name in counts if name is not None and name.split(":")[0] == kind.split(":")[0]]
        if some:
            return str(max(some, key=lambda name: (counts[name], name)))
    return max(counts, key=lambda name: counts[name]) if counts else None


def _renumber(blocks: pa.Table, first: int) -> pa.Table:
    place = blocks.schema.get_field_index("block_id")
    return blocks.set_column(place, "block_id", pa.array(np.arange(first, first + blocks.num_rows)))
