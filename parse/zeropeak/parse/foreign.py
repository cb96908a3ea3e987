"""Tables from trace files that zeropeak did not capture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from zeropeak.parse.ahead import chosen_ahead
from zeropeak.parse.clocks import IDENTITY, ClockMap, base_map
from zeropeak.parse.direct import EVENT_TABLES, Direct, DirectByRank
from zeropeak.parse.hosts import align_hosts
from zeropeak.parse.pipeline import LOG_TABLES, ParseSummary
from zeropeak.parse.placing import Trace, clock_row
from zeropeak.parse.provenance import Given, world_size, write_manifest
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

    from zeropeak.parse.ahead import Ahead
    from zeropeak.parse.files import TraceFile
    from zeropeak.parse.kineto.reader import Scanner
    from zeropeak.parse.pipeline import Progress
    from zeropeak.parse.sink import Source

CLOCK_UNKNOWN: Final = "clock_unknown"


def parse_files(
    paths: Sequence[Path],
    out: Path,
    *,
    ranks: Mapping[Path, int] | None = None,
    workers: int | None = None,
    export: Callable[[Path], Path] | None = None,
    progress: Progress | None = None,
    versions: Mapping[str, str] | None = None,
) -> ParseSummary:
    """Make a run directory of trace files: torch.profiler JSON, nsys exports and memory snapshots, in any mixture.

    The rank of a file is the one in ``ranks``, else in the file, else in its name; the only trace of its kind that
    says nothing is rank 0. Processes of an nsys export are ranks in the order of their process ids.

    Args:
        paths: files, and folders to search.
        out: gets ``tables/`` and a ``run.json`` with what the files say about themselves.
        ranks: ranks by file, where the user knows better.
        workers: processes for files of several ranks; None: as many as there are cores, 1: none.
        export: makes a sqlite file of an .nsys-rep (needs nsys).
        progress: called after each rank.
        versions: for ``run.json``, zeropeak's own.

    Raises:
        UsageError: no traces, or ranks that are unknown or not unique.
        TraceError: a file cannot be read.
    """
    with chosen_ahead(paths, ranks or {}, export, out, workers) as ahead:
        return parse_chosen(ahead, out, workers=workers, progress=progress, versions=versions)


def parse_chosen(
    ahead: Ahead,
    out: Path,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    versions: Mapping[str, str] | None = None,
) -> ParseSummary:
    """:func:`parse_files` for files that are chosen, and maybe being scanned, already."""
    chosen = ahead.chosen
    stats = Stats()
    for label, problem in chosen.refused:
        stats.scope(label, None).count("file_refused", 1, "info", problem)
    alone = len(chosen.files) == 1
    asked = frozenset(rank for file in chosen.files if file.kind != "nsys" for rank in file.ranks.values())
    out.mkdir(parents=True, exist_ok=True)
    with TableWriter(out / "tables") as writer:
        nodes: dict[int, list[_Part]] = {}
        given: list[Given] = []
        earlier = TableFiles(writer.earlier)
        for file in chosen.files:
            if file.kind == "nsys":
                parts, source = _read_node(file, earlier, stats, asked, alone=alone or _only(file, chosen.files))
                given.append(Given(file.label, [part.rank for part in parts], source))
                for part in parts:
                    nodes.setdefault(part.rank, []).append(part)
        earlier.close()
        jobs = []
        for rank in chosen.ranks:
            files = [f for f in chosen.files if f.kind != "nsys" and rank in f.ranks.values()]
            parts = nodes.get(rank, [])
            jobs.append(_Job(rank, files, writer.folder, alone or len(files) + len(parts) == 1, parts))
        make = partial(_rank_tables, scanners=ahead.scanners)
        made: dict[int, tuple[_Job, Stats, list[Source]]] = {}
        # The scanning processes are this one's: what is made of a trace that they scan is made here.
        jobs.sort(key=lambda job: not all(file.path in ahead.first for file in job.files))
        for job, rows, (counted, read) in do(jobs, make, 1 if ahead.scanners else workers):
            writer.add_rows(rows)
            made[job.rank] = job, counted, read
            if progress:
                progress(f"rank {job.rank}", len(made), len(jobs))
        for _, (job, counted, read) in sorted(made.items()):
            stats.absorb(counted)
            given += [Given(file.label, [job.rank], source) for file, source in zip(job.files, read, strict=True)]
        if not alone:
            writer.add_rows({"clocks": _align(writer.folder, given, stats)})
        writer.write("import_stats", stats.table())
    write_manifest(out, given, versions or {})
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
    alone: bool
    """Whether this is the rank's only file, so that its clock may stay as it is."""
    parts: list[_Part]

    @property
    def size_bytes(self) -> int:
        return sum(file.path.stat().st_size for file in self.files)


def _only(file: TraceFile, files: Sequence[TraceFile]) -> bool:
    """Whether no other file is of one of its ranks."""
    return not any(set(file.ranks.values()) & set(other.ranks.values()) for other in files if other is not file)


def _align(tables: Path, given: Sequence[Given], stats: Stats) -> int:
    """Relate the clocks of all files; returns how many ranks were moved.

    Raises:
        TraceError: nothing tells when a file's clock was zero.
    """
    unplaced = stats.ranks_with(CLOCK_UNKNOWN)
    aligned = align_hosts(tables, _hosts(given), stats, unplaced)
    for rank in unplaced:
        if rank not in aligned.related:
            base_map(next(file.source for file in given if rank in file.ranks))
    return len(aligned.moved)


def _hosts(given: Sequence[Given]) -> dict[int, int]:
    """By rank, the lowest rank of those that are surely on its machine: by one file, or the machine's name in it."""
    hosts = {rank: rank for file in given for rank in file.ranks}
    together = [list(file.ranks) for file in given]
    names: dict[str, list[int]] = {}
    for file in given:
        if file.source.host is not None:
            names.setdefault(file.source.host, []).extend(file.ranks)
    for ranks in (*together, *names.values()):
        same = {hosts[rank] for rank in ranks}
        hosts = {rank: min(same) if host in same else host for rank, host in hosts.items()}
    return hosts


def _rank_tables(job: _Job, files: TableFiles, scanners: Mapping[Path, Scanner]) -> tuple[Stats, list[Source]]:
    """Write all tables of one rank; returns the counts, and what its files say about themselves."""
    stats = Stats()
    given = RankInput(job.rank, {name: unranked(name, []) for name in LOG_TABLES}, None)
    events: Spool | None = None
    for part in job.parts:
        given.segments, given.pid, given.span, events = part.segments, part.pid, part.span, part.spool
        given.collectives = part.collectives
    for file in job.files:
        if events is not None:
            given.traces.append(_read_later(job, file, files, stats))
            continue
        trace, sink = _read_file(job, file, files, stats, scanners.get(file.path))
        given.traces.append(trace)
        sink.finish(write=True)
        if set(sink.spool.tables()) & set(EVENT_TABLES):
            events = sink.spool
    # Only blocks of memory and collectives ask what was going on; without them millions of events stay on disk.
    asking = {name for trace in given.traces for name in trace.spool.tables()} & {"memory_events", "collectives"}
    if events is not None and (asking or (given.collectives is not None and given.collectives[0].num_rows)):
        given.log |= {name: unranked(name, [events.table(name)]) for name in EVENT_TABLES}
    given.log_written = True
    sources = [trace.source for trace in given.traces]
    given.world_size = world_size(sources)
    write_rank(given, files, stats)
    files.declare([job.rank])
    return stats, sources


def _read_file(
    job: _Job, file: TraceFile, files: TableFiles, stats: Stats, scanner: Scanner | None
) -> tuple[Trace, Direct]:
    """Read a kineto trace or a snapshot."""
    sink = Direct(files, job.rank, file.kind, IDENTITY, Spool(files.scratch / f"{file.kind}-{job.rank}"))
    read = reader(file.kind)
    source = read(file.path, sink) if scanner is None else read(file.path, sink, scanner=scanner)
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


def _read_node(
    file: TraceFile, writer: TableFiles, stats: Stats, asked: frozenset[int], *, alone: bool
) -> tuple[list[_Part], Source]:
    """Write what an nsys export holds, by rank; return what the ranks' own tables need of it."""
    from zeropeak.parse import nsys  # not above: few parses need it, and starting up is most of a short one
    from zeropeak.parse.nsys_collectives import tells_collectives

    ranks = {pid: rank for pid, rank in file.ranks.items() if pid is not None}
    counts: dict[str, Count] = {}
    clock = _clock(nsys.source(file.path), counts, alone=alone)
    unknown = counts.pop(CLOCK_UNKNOWN, None)
    if tells_collectives(file.path):
        asked |= frozenset(file.ranks.values())
    sink = DirectByRank(writer, clock, counts, asked)
    source = nsys.read(file.path, sink, ranks=ranks, default_rank=file.ranks.get(None))
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
        if unknown:
            stats.merge({CLOCK_UNKNOWN: unknown}, file.label, "nsys", rank)
        mine = sink.of(rank)
        mine.finish(write=True)
        writer.write("clocks", clock_row("nsys", clock), rank)
        segments, calls = (mine.spool.table(name) for name in ("memory_events", "collectives"))
        calls = calls.drop_columns(["rank"])
        parts.append(_Part(rank, pid, segments, (calls, file.label), mine.spool.closed(), mine.span))
    return parts, source


def _clock(source: Source, counts: dict[str, Count], *, alone: bool) -> ClockMap:
    """Map a file to Unix time; the clock of a file that is alone may stay as it is, until collectives relate it."""
    try:
        clock = base_map(source)
    except TraceError:
        if not alone:
            raise
        add_count(counts, CLOCK_UNKNOWN, 1, "info", "times are on the file's own clock, not since 1970")
        return IDENTITY
    if source.clock != "unix":
        add_count(counts, "clock_by_base_time", 1, "info", "aligned by the session's start, good to milliseconds")
    return clock
