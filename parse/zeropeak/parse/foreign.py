"""Tables from trace files that zeropeak did not capture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeropeak.parse import nsys
from zeropeak.parse.clocks import IDENTITY, ClockMap, base_map
from zeropeak.parse.direct import EVENT_TABLES, Direct, DirectByRank
from zeropeak.parse.files import TraceFile, choose
from zeropeak.parse.nsys_collectives import tells_collectives
from zeropeak.parse.pipeline import LOG_TABLES, ParseSummary
from zeropeak.parse.placing import Trace, clock_row
from zeropeak.parse.rank import RankInput, write_rank
from zeropeak.parse.readers import reader
from zeropeak.parse.sink import Count, add_count, unranked
from zeropeak.parse.spool import Spool
from zeropeak.parse.stats import Stats
from zeropeak.parse.workers import do
from zeropeak.parse.writer import TableFiles, TableWriter
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from zeropeak.parse.pipeline import Progress
    from zeropeak.parse.sink import Source


def parse_files(
    paths: Sequence[Path],
    out: Path,
    *,
    ranks: Mapping[Path, int] | None = None,
    workers: int | None = None,
    export: Callable[[Path], Path] | None = None,
    progress: Progress | None = None,
) -> ParseSummary:
    """Make tables of trace files: torch.profiler JSON, nsys exports and memory snapshots, in any mixture.

    The rank of a file is the one in ``ranks``, else in the file, else in its name; the only trace of its kind that
    says nothing is rank 0. Processes of an nsys export are ranks in the order of their process ids.

    Args:
        paths: files, and folders to search.
        out: gets ``tables/``.
        ranks: ranks by file, where the user knows better.
        workers: processes for files of several ranks; None: as many as there are cores, 1: none.
        export: makes a sqlite file of an .nsys-rep (needs nsys).
        progress: called after each rank.

    Raises:
        UsageError: no traces, or ranks that are unknown or not unique.
        TraceError: a file cannot be read.
    """
    chosen = choose(paths, ranks or {}, export)
    stats = Stats()
    for label, problem in chosen.refused:
        stats.scope(label, None).count("file_refused", 1, "info", problem)
    alone = len(chosen.files) == 1
    asked = frozenset(rank for file in chosen.files if file.kind != "nsys" for rank in file.ranks.values())
    out.mkdir(parents=True, exist_ok=True)
    with TableWriter(out / "tables") as writer:
        nodes: dict[int, list[_Part]] = {}
        earlier = TableFiles(writer.earlier)
        for file in chosen.files:
            if file.kind == "nsys":
                for part in _read_node(file, earlier, stats, asked, alone=alone):
                    nodes.setdefault(part.rank, []).append(part)
        earlier.close()
        jobs = [
            _Job(
                rank,
                [f for f in chosen.files if f.kind != "nsys" and rank in f.ranks.values()],
                writer.folder,
                len(chosen.ranks),
                alone,
                nodes.get(rank, []),
            )
            for rank in chosen.ranks
        ]
        for done, (job, rows, counted) in enumerate(do(jobs, _rank_tables, workers), 1):
            writer.add_rows(rows)
            stats.absorb(counted)
            if progress:
                progress(f"rank {job.rank}", done, len(jobs))
        writer.write("import_stats", stats.table())
    return ParseSummary(
        out / "tables",
        tuple(chosen.ranks),
        writer.rows,
        stats.total("lost") | stats.total("error"),
        stats.total("mended"),
    )


@dataclass(frozen=True)
class _Part:
    """What an nsys export holds of one rank, beyond the tables that were written at once."""

    rank: int
    pid: int | None
    segments: pa.Table
    collectives: tuple[pa.Table, str]
    spool: Spool
    span: tuple[int, int] | None


@dataclass(frozen=True)
class _Job:
    """One rank's files; made into tables in any process."""

    rank: int
    files: list[TraceFile]
    folder: Path
    world_size: int
    alone: bool
    parts: list[_Part]

    @property
    def size_bytes(self) -> int:
        return sum(file.path.stat().st_size for file in self.files)


def _rank_tables(job: _Job, files: TableFiles) -> Stats:
    """Write all tables of one rank."""
    stats = Stats()
    given = RankInput(job.rank, {name: unranked(name, []) for name in LOG_TABLES}, None)
    given.world_size = job.world_size
    events: Spool | None = None
    for part in job.parts:
        given.segments, given.pid, given.span, events = part.segments, part.pid, part.span, part.spool
        given.collectives = part.collectives
    for file in job.files:
        if events is not None:
            given.traces.append(_read_later(job, file, files, stats))
            continue
        trace, sink = _read_file(job, file, files, stats)
        given.traces.append(trace)
        given.world_size = trace.source.world_size or given.world_size
        sink.finish(write=True)
        if set(sink.spool.tables()) & set(EVENT_TABLES):
            events = sink.spool
    # Only blocks of memory and collectives ask what was going on; without them millions of events stay on disk.
    asking = {name for trace in given.traces for name in trace.spool.tables()} & {"memory_events", "collectives"}
    if events is not None and (asking or (given.collectives is not None and given.collectives[0].num_rows)):
        given.log |= {name: unranked(name, [events.table(name)]) for name in EVENT_TABLES}
    given.log_written = True
    write_rank(given, files, stats)
    files.declare([job.rank])
    return stats


def _read_file(job: _Job, file: TraceFile, files: TableFiles, stats: Stats) -> tuple[Trace, Direct]:
    """Read a kineto trace or a snapshot."""
    sink = Direct(files, job.rank, file.kind, IDENTITY, Spool(files.scratch / f"{file.kind}-{job.rank}"))
    source = reader(file.kind)(file.path, sink)
    clock = _clock(source, sink.counts, alone=job.alone)
    if file.assumed:
        add_count(sink.counts, "rank_assumed", 1, "info", "the trace names no rank; it is taken to be rank 0")
    if source.rank is not None and source.rank != job.rank:
        add_count(sink.counts, "rank_overruled", 1, "info", f"the trace says rank {source.rank}")
    stats.merge(sink.counts, file.label, file.kind, job.rank)
    return Trace(source, sink.spool, file.label, clock, sink.span), sink


def _read_later(job: _Job, file: TraceFile, files: TableFiles, stats: Stats) -> Trace:
    """Read a trace whose clock will be fitted to the events of another."""
    spool = Spool(files.scratch / f"{file.kind}-{job.rank}")
    source = reader(file.kind)(file.path, spool)
    stats.merge(spool.counts, file.label, file.kind, job.rank)
    return Trace(source, spool, file.label)


def _read_node(file: TraceFile, writer: TableFiles, stats: Stats, asked: frozenset[int], *, alone: bool) -> list[_Part]:
    """Write what an nsys export holds, by rank; return what the ranks' own tables need of it."""
    ranks = {pid: rank for pid, rank in file.ranks.items() if pid is not None}
    counts: dict[str, Count] = {}
    clock = _clock(nsys.source(file.path), counts, alone=alone)
    if tells_collectives(file.path):
        asked |= frozenset(file.ranks.values())
    sink = DirectByRank(writer, clock, counts, asked)
    nsys.read(file.path, sink, ranks=ranks, default_rank=file.ranks.get(None))
    add_count(
        counts,
        "ranks_by_process_order",
        len(ranks),
        "info",
        "the export names no ranks; its processes are numbered in the order of their ids",
    )
    stats.merge(counts, file.label, "nsys")
    parts = []
    for pid, rank in file.ranks.items():
        mine = sink.of(rank)
        mine.finish(write=True)
        writer.write("clocks", clock_row("nsys", clock), rank)
        segments, calls = (mine.spool.table(name) for name in ("memory_events", "collectives"))
        calls = calls.drop_columns(["rank"])
        parts.append(_Part(rank, pid, segments, (calls, file.label), mine.spool.closed(), mine.span))
    return parts


def _clock(source: Source, counts: dict[str, Count], *, alone: bool) -> ClockMap:
    """Map a file to Unix time; the clock of a file that is alone may stay as it is."""
    try:
        clock = base_map(source)
    except TraceError:
        if not alone:
            raise
        add_count(counts, "clock_unknown", 1, "info", "times are on the file's own clock, not since 1970")
        return IDENTITY
    if source.clock != "unix":
        add_count(counts, "clock_by_base_time", 1, "info", "aligned by the session's start, good to milliseconds")
    return clock
