"""From the raw files of a run to its tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from zeropeak.parse import eventlog
from zeropeak.parse.access import entries, need_readable, reading
from zeropeak.parse.clocks import ClockMap, boot_maps
from zeropeak.parse.hosts import align_hosts
from zeropeak.parse.manifest import Manifest, RankInfo, read_manifest, read_rank
from zeropeak.parse.node import NodeView, read_node
from zeropeak.parse.placing import Trace, clock_row
from zeropeak.parse.provenance import FILES
from zeropeak.parse.rank import RankInput, write_rank
from zeropeak.parse.readers import reader
from zeropeak.parse.schema import TABLES
from zeropeak.parse.sink import MemorySink
from zeropeak.parse.spool import Spool
from zeropeak.parse.stats import NOTHING_CAPTURED, Stats
from zeropeak.parse.workers import do
from zeropeak.parse.writer import TableFiles, TableWriter
from zeropeak.profile.errors import TraceError, UsageError
from zeropeak.profile.labels import ALLOCATIONS_FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Progress = Callable[[str, int, int], None]
    """Called with what is being read, how many files are done, and how many there are."""

RANKS: Final = 1 << 22
"""Ranks that event ids can tell apart."""

LOG_TABLES = (
    "zero_events",
    "zero_event_params",
    "phases",
    "module_ranges",
    "modules",
    "params",
    "retained",
    "marks",
    "memory_blocks",
    "memory_samples",
    "saved_tensors",
)


@dataclass(frozen=True)
class ParseSummary:
    """What a parse gave.

    Attributes:
        tables: the folder with the tables.
        ranks: ranks that left anything.
        rows: rows by table.
        lost: what was lost or wrong (import_stats with severity lost or error), by what was counted.
        mended: what was mended, likewise.
    """

    tables: Path
    ranks: tuple[int, ...]
    rows: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    mended: dict[str, int] = field(default_factory=dict)


def parse_run(run: Path, *, workers: int | None = None, progress: Progress | None = None) -> ParseSummary:
    """Make ``tables/`` of a run directory from its ``raw/``; old tables are replaced when the new are complete.

    Args:
        run: the run directory.
        workers: processes for the ranks of a large run; None: as many as there are cores, 1: none.
        progress: called after each export and each rank.

    Raises:
        ZeropeakError: no run directory, or a newer run.
        UsageError: its tables were made of files that it does not hold.
        TraceError: a file that a capture always writes whole cannot be read.
    """
    manifest = read_manifest(run)
    if manifest.raw.get("tool") == FILES:
        raise UsageError(
            f"{run}: made of trace files that are not in it; give those files again: zeropeak parse FILES --out {run}"
        )
    folders = _rank_folders(run)
    exports = _exports(run)
    total = len(folders) + len(exports)
    stats = Stats()
    infos = {rank: _rank_info(run, rank, folder, stats) for rank, folder in folders.items()}
    clocks = boot_maps({rank: info.clock for rank, info in infos.items() if info and info.clock})
    _count_missing(run, manifest, infos, exports, stats)
    with TableWriter(run / "tables") as writer:
        seen: dict[int, NodeView] = {}
        earlier = TableFiles(writer.earlier)
        for done, (node, export) in enumerate(exports.items(), 1):
            seen |= read_node(run, export, node, manifest, infos, clocks, earlier, stats)
            if progress:
                progress(export.name, done, total)
        earlier.close()
        jobs = [
            _Job(run, rank, writer.folder, infos[rank], clocks, manifest.world_size, seen.get(rank)) for rank in folders
        ]
        for done, (job, rows, counted) in enumerate(do(jobs, _rank_tables, workers), len(exports) + 1):
            writer.add_rows(rows)
            stats.absorb(counted)
            if progress:
                progress(f"rank {job.rank}", done, total)
        hosts = {rank: info.clock.boot_id for rank, info in infos.items() if info and info.clock}
        writer.add_rows({"clocks": len(align_hosts(writer.folder, hosts, stats).moved)})
        if not folders and not exports:
            for table in TABLES:
                writer.write(table.name, table.arrow.empty_table(), None)
        writer.write("import_stats", stats.table())
    return ParseSummary(
        run / "tables", tuple(folders), writer.rows, stats.total("lost") | stats.total("error"), stats.total("mended")
    )


@dataclass(frozen=True)
class _Job:
    """One rank; made into tables in any process."""

    run: Path
    rank: int
    folder: Path
    info: RankInfo | None
    clocks: dict[str, ClockMap]
    world_size: int | None
    seen: NodeView | None

    @property
    def raw(self) -> Path:
        return self.run / "raw" / f"rank-{self.rank}"

    @property
    def traces(self) -> dict[str, Path]:
        """The rank's traces by reader."""
        found = {"kineto": self.raw / "torch.json.gz", "snapshot": self.raw / "snapshot.pickle.gz",
                 "simulated": self.raw / ALLOCATIONS_FILE}  # fmt: skip
        with reading(self.raw):
            return {kind: path for kind, path in found.items() if path.is_file()}

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.traces.values())


def _rank_tables(job: _Job, files: TableFiles) -> Stats:
    """Write all tables of one rank."""
    stats = Stats()
    sink = MemorySink()
    source = eventlog.read(job.raw, sink)
    if source.rank is not None and source.rank != job.rank:
        raise TraceError(
            job.raw,
            f"its events are of rank {source.rank}, not of rank {job.rank}: the folder was copied or renamed; "
            "give it back its name",
        )
    log_file = str(job.raw.relative_to(job.run))
    clock = _log_clock(job, sink)
    log = {name: clock.apply_table(sink.full_table(name)) for name in LOG_TABLES}
    stats.merge(sink.counts, log_file, source.reader, job.rank)
    ended = job.info.ended if job.info else None
    given = RankInput(
        job.rank, log, job.info, cut=source.partial or ended != "complete", log_file=log_file,
        world_size=job.world_size,
    )  # fmt: skip
    if job.seen:
        given.nvtx_ids, given.segments = job.seen.ids, job.seen.segments
        given.collectives = job.seen.collectives, job.seen.file
    files.write("clocks", clock_row("log", clock), job.rank)
    for kind, path in job.traces.items():
        label = str(path.relative_to(job.run))
        need_readable(path)
        spool = Spool(files.scratch / f"{kind}-{job.rank}")
        try:
            trace = reader(kind)(path, spool)
        except TraceError as error:
            # A rank that was killed leaves half a trace; its log is still good.
            stats.scope(label, kind, job.rank).count("trace_unreadable", 1, "error", error.problem)
            continue
        stats.merge(spool.counts, label, kind, job.rank)
        given.traces.append(Trace(trace, spool, label, machine=clock))
    write_rank(given, files, stats)
    files.declare([job.rank])
    return stats


def _log_clock(job: _Job, sink: MemorySink) -> ClockMap:
    """The clock map of a rank's machine."""
    if job.info and job.info.clock:
        return job.clocks[job.info.clock.boot_id]
    if len(job.clocks) == 1:
        sink.count(
            "clock_reading_missing", 1, "mended", "no clock in rank.json; the clock of the run's only machine is used"
        )
        return next(iter(job.clocks.values()))
    raise TraceError(
        job.raw / "rank.json",
        "missing or damaged, so the event log's clock cannot be related to the run's; capture again (the rank died at "
        "its start)",
    )


def _exports(run: Path) -> dict[int, Path]:
    """nsys exports by node."""
    found = {}
    for name in entries(run / "raw"):
        if match := re.fullmatch(r"node-([0-9]+)\.sqlite", name):
            found[int(match[1])] = run / "raw" / name
            need_readable(found[int(match[1])])
    return dict(sorted(found.items()))


def _rank_folders(run: Path) -> dict[int, Path]:
    found = {}
    for name in entries(run / "raw"):
        folder = run / "raw" / name
        match = re.fullmatch(r"rank-([0-9]+)", name)
        if match and folder.is_dir():
            if len(match[1]) > len(str(RANKS)) or str(rank := int(match[1])) != match[1] or rank >= RANKS:
                raise TraceError(folder, f"no rank has this number (0 to {RANKS - 1}); rename or remove the folder")
            entries(folder)
            found[rank] = folder
    return dict(sorted(found.items()))


def _rank_info(run: Path, rank: int, folder: Path, stats: Stats) -> RankInfo | None:
    """A rank's own account of itself; None when it left none, or one that cannot be used."""
    scope = stats.scope(f"raw/rank-{rank}", "log", rank)
    try:
        info = read_rank(folder, rank)
    except TraceError as error:
        scope.count("rank_json_unreadable", 1, "lost", f"rank.json: {error.problem}")
        return None
    if info is None:
        scope.count("rank_json_missing", 1, "lost", "no rank.json: the rank died at its start")
    return info


def _count_missing(
    run: Path, manifest: Manifest, infos: dict[int, RankInfo | None], exports: dict[int, Path], stats: Stats
) -> None:
    """Count what a whole run would have and this one has not."""
    scope = stats.scope("run.json", None)
    if not infos and not exports:
        scope.count(NOTHING_CAPTURED, 1, "lost", "the capture ended before any rank wrote a file; capture again")
    if manifest.world_size and not manifest.fake_world:
        missing = manifest.world_size - sum(rank < manifest.world_size for rank in infos)
        first = list(islice((rank for rank in range(manifest.world_size) if rank not in infos), 8))
        shown = ", ".join(map(str, first)) + (", ..." if missing > 8 else "")
        scope.count("ranks_missing", missing, "lost", f"no files of rank {shown}" if missing else None)
    for node in sorted({info.node or 0 for info in infos.values() if info} - set(exports)):
        if manifest.raw.get("tool") == "nsys":
            report = (run / "raw" / f"node-{node}.nsys-rep").is_file()
            scope.count(
                "nsys_exports_missing",
                1,
                "lost",
                f"no raw/node-{node}.sqlite: "
                + ("export the report beside it: nsys export --type sqlite" if report else "nsys wrote no report"),
            )
