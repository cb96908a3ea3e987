"""All tables of one rank, from its event log and its traces."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.around_events import with_allocated
from zeropeak.parse.collectives import join, of_log
from zeropeak.parse.composition import Composition
from zeropeak.parse.conservation import check
from zeropeak.parse.delayed_frees import delayed_frees
from zeropeak.parse.lean import give_back_of
from zeropeak.parse.lives import check_counters, check_lives
from zeropeak.parse.lookup import ints
from zeropeak.parse.memory import Memory, from_allocator, from_counters, reserved_curve
from zeropeak.parse.peaks import mark_tables, peak_tables
from zeropeak.parse.placing import Trace, clock_row, place
from zeropeak.parse.registered import by_birth
from zeropeak.parse.saved import saved_tensors
from zeropeak.parse.schema import BY_NAME
from zeropeak.parse.timeline import Timeline
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from zeropeak.parse.manifest import RankInfo
    from zeropeak.parse.parts import Parts
    from zeropeak.parse.stats import Stats, StatsScope
    from zeropeak.parse.writer import TableFiles

SLACK_NS: Final = 1_000_000
"""Upper bound on how far a storage's registration may seem to precede its block's birth."""

FROM_LOG: Final = (
    "zero_event_params",
    "phases",
    "modules",
    "params",
    "retained",
    "memory_samples",
)
AROUND: Final = ("zero_events", "module_ranges")
"""Tables of the log that get what was allocated around their rows."""


@dataclass
class RankInput:
    """Everything that is known about one rank before its tables are made.

    Attributes:
        rank: global rank.
        log: tables of the event log, already on the run's clock; empty tables when it has none.
        info: its ``rank.json``.
        traces: kineto and snapshot traces, and a prediction's allocations.
        segments: memory_events rows of nsys (reserved memory), on the run's clock.
        collectives: those that nsys saw, on the run's clock, with the file's name in import_stats.
        nvtx_ids: event ids of the NVTX ranges that nsys saw of this rank; None without nsys.
        cut: whether the log or the rank ended early.
        log_file: its name in import_stats; '' for a rank without an event log.
        world_size: ranks of the job, where the files say.
        pid: process id, where only the traces say.
        span: first and last time of what was seen of the rank, where there is no log.
        log_written: the tables of ``log`` are on disk already.
    """

    rank: int
    log: dict[str, pa.Table]
    info: RankInfo | None
    traces: list[Trace] = field(default_factory=list)
    segments: pa.Table | None = None
    collectives: tuple[pa.Table, str] | None = None
    nvtx_ids: Any = None
    cut: bool = False
    log_file: str = ""
    world_size: int | None = None
    pid: int | None = None
    span: tuple[int, int] | None = None
    log_written: bool = False


def write_rank(given: RankInput, writer: TableFiles, stats: Stats) -> None:
    """Make and write all tables of one rank."""
    rank, log = given.rank, given.log
    timeline = Timeline(log["zero_events"], log["module_ranges"], log["phases"])
    begun = _begin_times(log)
    device = given.info.device if given.info else None
    for name in () if given.log_written else FROM_LOG:
        writer.write(name, log[name], rank)
    memory: Memory | None = None
    partial, slack_ns, curve_file = False, 0, given.log_file
    calls: list[tuple[pa.Table, str, str]] = []
    if given.collectives is not None:
        calls.append((given.collectives[0], given.collectives[1], "nsys"))
    for trace in sorted(given.traces, key=lambda trace: trace.source.reader != "snapshot"):
        try:
            placed = place(trace, begun, writer, rank)
        except TraceError as error:
            if not given.log_file:
                raise  # a file that the user named, not one of a run that still has its log
            stats.scope(trace.file, trace.source.reader, rank).count("trace_unreadable", 1, "error", error.problem)
            continue
        clock, span = placed.clock, placed.span
        if trace.source.reader == "snapshot" and _whole_history(given.info) and (window := _window(log)) is not None:
            # Nothing was dropped from the ring: where it is silent, before its first and after its last entry, nothing
            # was allocated or freed.
            span = (min(span[0], window[0]), max(span[1], window[1]))
        writer.write("clocks", clock_row(trace.source.reader, clock), rank)
        scope = stats.scope(trace.file, trace.source.reader, rank)
        calls.append((placed.table("collectives"), trace.file, trace.source.reader))
        count = trace.spool.rows["memory_events"]
        if not count:
            continue
        if memory is not None:
            scope.count("memory_events_unused", count, "info", f"the curve is taken from {memory.source}")
            continue
        give_back_of(count)
        slack_ns = SLACK_NS if clock.residual_max_ns is None else min(SLACK_NS, clock.residual_max_ns)
        memory = from_allocator(
            placed.memory_events(),
            placed.table("memory_blocks"),
            trace.source.reader,
            log["memory_blocks"],
            timeline,
            device or trace.source.device,
            span,
            slack_ns,
            scope,
        )
        give_back_of(count)
        partial, curve_file = trace.source.partial, trace.file
    if memory is None:
        memory = from_counters(_samples(log, "allocated_bytes"), log["memory_blocks"], timeline, device, _window(log))
    reserved = reserved_curve(memory, given.segments, _samples(log, "reserved_bytes"))
    for name in () if given.log_written else AROUND:
        writer.write(name, with_allocated(log[name], memory.curve), rank)
    give_back_of(memory.blocks.num_rows)
    for rows in chain.from_iterable(memory.events):
        writer.write("memory_events", rows, rank)
    memory = memory.without_events()
    for rows in by_birth(memory.blocks):
        writer.write("memory_blocks", rows, rank)
    writer.write("memory_blocks", memory.other_blocks, rank)
    if given.segments is not None:
        writer.write("memory_events", given.segments, rank)
    composition = Composition(memory.blocks, timeline, log["zero_event_params"], log["params"])
    checks = stats.scope(curve_file, memory.source, rank)
    marks, mark_parts = mark_tables(memory, composition, log["marks"])
    writer.write("marks", marks, rank)
    check_counters(log["marks"], memory.curve, slack_ns, checks)
    check_lives(mark_parts, memory, checks)
    _write_parts(writer, rank, "mark", marks, mark_parts, ["step", "micro_step", "mark", "ts_ns"], checks)
    writer.write("saved_tensors", saved_tensors(log["saved_tensors"], memory, composition), rank)
    window = _window(log) or given.span or _curve_window(memory)
    if window is not None:
        peaks, parts = peak_tables(memory, composition, timeline, marks, window, reserved)
        writer.write("peaks", peaks, rank)
        check_lives(parts, memory, checks)
        _write_parts(writer, rank, "peak", peaks, parts, ["scope", "step", "phase"], checks)
    partial |= window is not None and (memory.curve is None or not memory.curve.covers(*window))
    if window is not None:
        knob = _knob(given.info, "max_reuse_distance")
        late = delayed_frees(log, timeline, memory.blocks, window[1], max_reuse_distance=knob, slack_ns=slack_ns)
        writer.write("delayed_frees", late, rank)
    writer.write("ranks", _rank_row(given, memory, window, partial), rank)
    _write_collectives(calls, given, writer, stats)
    _check_join(given, begun, stats)


def _write_parts(
    writer: TableFiles, rank: int, kind: str, moments: pa.Table, parts: Parts, key: list[str], checks: StatsScope
) -> None:
    """Write what was alive at some moments, and check that it is what was measured."""
    summed, blocks = parts.composition(), parts.blocks()
    writer.write(f"{kind}_composition", summed, rank)
    writer.write(f"{kind}_blocks", blocks, rank)
    if summed.num_rows:
        check(moments, summed, blocks, key, checks)


def _write_collectives(
    calls: list[tuple[pa.Table, str, str]], given: RankInput, writer: TableFiles, stats: Stats
) -> None:
    """Write the collectives of each source with their events; the log's own only where no tool saw any."""
    seen = [(rows, file, source) for rows, file, source in calls if rows.num_rows]
    for rows, file, source in seen:
        writer.write("collectives", join(rows, given.log, stats.scope(file, source, given.rank)), given.rank)
    if not seen and given.log_file:
        writer.write("collectives", of_log(given.log), given.rank)


def _whole_history(info: RankInfo | None) -> bool:
    """Whether the capture recorded the allocator's history from the start into a ring that never filled."""
    entries = info.raw.get("history_entries") if info else None
    most = info.raw.get("history_max_entries") if info else None
    return isinstance(entries, int) and isinstance(most, int) and entries < most


def _knob(info: RankInfo | None, name: str) -> int | None:
    """A ZeRO setting as DeepSpeed resolved it, where it is a number."""
    value = (info.raw.get("zero") or {}).get(name) if info else None
    return int(value) if isinstance(value, int | float) else None


def _begin_times(log: dict[str, pa.Table]) -> tuple[Any, Any]:
    """Ids and begin times of all events of the log."""
    tables = [log[name].select(["event_id", "start_ns"]) for name in ("zero_events", "module_ranges", "phases")]
    joined = pa.concat_tables(tables)
    return ints(joined["event_id"]), ints(joined["start_ns"])


def _samples(log: dict[str, pa.Table], counter: str) -> pa.Table:
    """Readings of one counter."""
    samples = log["memory_samples"].select(["ts_ns", counter])
    return samples.filter(pc.is_valid(samples[counter]))


def _window(log: dict[str, pa.Table]) -> tuple[int, int] | None:
    """First and last time that the log speaks of."""
    times = [
        ints(pc.drop_null(log[table][column]))
        for table, column in (
            ("zero_events", "start_ns"),
            ("zero_events", "end_ns"),
            ("module_ranges", "start_ns"),
            ("module_ranges", "end_ns"),
            ("phases", "start_ns"),
            ("phases", "end_ns"),
            ("marks", "ts_ns"),
        )
    ]
    joined = np.concatenate(times)
    return (int(joined.min()), int(joined.max())) if len(joined) else None


def _curve_window(memory: Memory) -> tuple[int, int] | None:
    """First and last time of the curve, for a rank without a log."""
    curve = memory.curve
    return (int(curve.ts[0]), int(curve.ts[-1])) if curve is not None and len(curve.ts) else None


def _rank_row(given: RankInput, memory: Memory, window: tuple[int, int] | None, partial: bool) -> pa.Table:
    info = given.info
    raw = info.raw if info else {}
    status = (info.ended if info else None) or ("cut" if given.log_file else None)
    return pa.Table.from_pylist(
        [
            {
                "rank": given.rank,
                "world_size": raw.get("world_size", given.world_size),
                "pid": info.pid if info else given.pid,
                "node": info.node if info else None,
                "device": memory.device or raw.get("device") or _segments_device(given.segments),
                "device_name": raw.get("device_name"),
                "device_total_bytes": raw.get("device_total_bytes"),
                "status": status,
                "first_ns": window[0] if window else None,
                "last_ns": window[1] if window else None,
                "linear_wrapped": raw.get("linear_wrapped"),
                "memory_source": memory.source,
                "memory_partial": partial if memory.source else None,
            }
        ],
        schema=BY_NAME["ranks"].arrow,
    )


def _segments_device(segments: pa.Table | None) -> str | None:
    """Device of the most segments."""
    if segments is None or not segments.num_rows:
        return None
    counts = pc.value_counts(segments["device"]).to_pylist()
    return str(max(counts, key=lambda row: row["counts"])["values"])


def _check_join(given: RankInput, begun: tuple[Any, Any], stats: Stats) -> None:
    """Every NVTX range of ours must be one event of the log; in a whole run the other way round, too."""
    if given.nvtx_ids is None or not given.log_file:
        return
    scope = stats.scope(given.log_file, "nsys", given.rank)
    ids, counts = np.unique(given.nvtx_ids, return_counts=True)
    known = np.unique(begun[0])
    scope.count("nvtx_joined", int(np.isin(ids, known).sum()), "info", "NVTX ranges with their event-log row")
    scope.count("nvtx_doubled", int((counts - 1).sum()), "error", "NVTX ranges with an id that another one has")
    strays = int((~np.isin(ids, known)).sum())
    if given.cut:
        scope.count(
            "nvtx_without_event",
            strays,
            "lost",
            "events that nsys saw and the log had not written yet when "
            "the rank stopped: known by name and time only (table nvtx_ranges)",
        )
    else:
        scope.count("nvtx_without_event", strays, "error", "NVTX ranges whose event is not in the event log")
    if not given.cut:
        scope.count(
            "event_without_nvtx",
            int((~np.isin(known, ids)).sum()),
            "error",
            "events of the log whose NVTX range nsys did not record",
        )
