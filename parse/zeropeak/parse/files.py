"""From trace files that zeropeak did not capture to tables: which files, of which ranks."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from zeropeak.parse.access import entries, need_readable, reading
from zeropeak.parse.readers import is_timeline, peek_rank, sniff
from zeropeak.profile.errors import TraceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

ENDINGS: Final = (
    ".json",
    ".json.gz",
    ".json.xz",
    ".json.zst",
    ".sqlite",
    ".nsys-rep",
    ".pickle",
    ".pickle.gz",
    ".pkl",
    ".pkl.gz",
)
"""Files of a folder that are tried."""

_RANK_IN_NAME: Final = (
    re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE),
    re.compile(r"(?:^|[-_.])r(\d+)(?=[-_.]|$)", re.IGNORECASE),
    re.compile(r"(?:^|[-_.])(?:worker|w|gpu|dp)[-_.]?(\d+)(?=[-_.]|$)", re.IGNORECASE),
)


@dataclass(frozen=True)
class TraceFile:
    """A file to read.

    Attributes:
        path: where it is.
        label: its name in import_stats: relative to the folder that the user named, never an absolute path.
        kind: kineto, nsys or snapshot.
        ranks: the ranks it holds, by process id for nsys; the key is None for other files.
        assumed: neither file nor name nor user gave the rank: it is the only file of its kind.
    """

    path: Path
    label: str
    kind: str
    ranks: dict[int | None, int]
    assumed: bool = False


@dataclass
class Chosen:
    """The files to read, and what was left out of folders with the reason."""

    files: list[TraceFile] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    @property
    def ranks(self) -> list[int]:
        """All ranks, ascending."""
        return sorted({rank for file in self.files for rank in file.ranks.values()})


def choose(paths: Sequence[Path], ranks: Mapping[Path, int], export: Callable[[Path], Path] | None = None) -> Chosen:
    """Find the trace files among what the user named, and their ranks.

    Args:
        paths: files and folders; folders are searched.
        ranks: ranks that the user gave, by file.
        export: makes a sqlite file of an .nsys-rep; None: reports without an export beside them are refused.

    Raises:
        UsageError: nothing named exists, or ranks are missing or not unique.
        TraceError: a file that was named by itself is no trace.
    """
    chosen = Chosen()
    unranked: list[TraceFile] = []
    found = _expand(paths, chosen.refused)
    ranks = _by_path(ranks, found)
    for path, label in found.items():
        try:
            need_readable(path)
            kind = sniff(path)
            if kind == "nsys":
                sqlite = _exported(path, export) if path.suffix == ".nsys-rep" else path
                if any(file.path == sqlite for file in chosen.files):
                    continue
                from zeropeak.parse import nsys  # here: the other kinds are chosen before numpy is imported

                pids = nsys.processes(sqlite)
                # Cut-down exports name no processes: all rows are then one process's.
                named = ranks.get(path, rank_in_name(path) or 0)
                by_pid: dict[int | None, int] = {pid: rank for rank, pid in enumerate(pids)} or {None: named}
                chosen.files.append(TraceFile(sqlite, label, kind, by_pid))
                continue
            if kind == "kineto" and path not in paths and not is_timeline(path):
                raise TraceError(path, "JSON, but no torch.profiler trace")
            rank = ranks[path] if path in ranks else peek_rank(path, kind)
        except TraceError as error:
            if path in paths:
                raise
            chosen.refused.append((label, error.problem))
            continue
        rank = rank_in_name(path) if rank is None else rank
        if rank is None:
            unranked.append(TraceFile(path, label, kind, {None: 0}, assumed=True))
        else:
            chosen.files.append(TraceFile(path, label, kind, {None: rank}))
    _place_unranked(unranked, chosen)
    _check_unique(chosen)
    if not chosen.files:
        reasons = "; ".join(f"{label}: {problem}" for label, problem in chosen.refused[:3])
        raise UsageError(f"no trace in {', '.join(map(str, paths))}" + (f" ({reasons})" if reasons else ""))
    return chosen


def _by_path(ranks: Mapping[Path, int], found: Iterable[Path]) -> dict[Path, int]:
    """The user's ranks by the paths found: a file is named by its path or, where that is enough, by its name."""
    known: dict[Path, int] = {}
    for named, rank in ranks.items():
        same = [path for path in found if path == named or path.resolve() == named.resolve()]
        same = same or [path for path in found if path.name == str(named)]
        if len(same) != 1:
            problem = "no such file among the traces" if not same else "several traces have this name; give the path"
            raise UsageError(f"--rank {named}={rank}: {problem}")
        if not 0 <= rank < 1 << 22:
            raise UsageError(f"--rank {named}={rank}: a rank is at least 0 and below {1 << 22}")
        known[same[0]] = rank
    return known


def rank_in_name(path: Path) -> int | None:
    """Rank that a file's name tells.

    >>> from pathlib import Path
    >>> [rank_in_name(Path(name)) for name in ("kineto_r1.json.xz", "rank-34.pt.trace.json.gz", "alexnet.json")]
    [1, 34, None]
    """
    for pattern in _RANK_IN_NAME:
        if match := pattern.search(path.name):
            return int(match[1])
    return None


def _expand(paths: Iterable[Path], refused: list[tuple[str, str]]) -> dict[Path, str]:
    """All files with their labels; folders inside those named that may not be read go to ``refused``."""
    found: dict[Path, str] = {}
    for path in paths:
        with reading(path):
            folder = path.is_dir()
        if folder:
            if (path / "run.json").is_file():
                raise UsageError(f"{path}: a run directory; parse it by itself: zeropeak parse {path}")
            if "raw" in entries(path) and any(name.startswith("rank-") for name in entries(path / "raw")):
                raise UsageError(
                    f"{path}: no run.json beside raw/rank-*; is this a run directory? Copy its run.json, too, or give "
                    "the trace files themselves"
                )
            for inner in _files(path, refused):
                found.setdefault(inner, str(inner.relative_to(path)))
        elif path.is_file():
            found.setdefault(path, path.name)
        else:
            raise UsageError(f"{path}: no such file or folder")
    return found


def _files(folder: Path, refused: list[tuple[str, str]]) -> list[Path]:
    """Files to try in a folder and all below it, sorted."""

    def refuse(error: OSError) -> None:
        where = Path(error.filename)
        refused.append((str(where.relative_to(folder)), f"cannot be read ({error.strerror})"))

    inner = (Path(root) / name for root, _, names in os.walk(folder, onerror=refuse) for name in names)
    return sorted(path for path in inner if path.name.endswith(ENDINGS) and path.is_file())


def _exported(report: Path, export: Callable[[Path], Path] | None) -> Path:
    """The sqlite export of a report."""
    beside = report.with_suffix(".sqlite")
    if beside.is_file() and beside.stat().st_size:
        return beside
    if export is None:
        raise TraceError(report, "needs nsys to be read; export it where it was made: nsys export --type sqlite FILE")
    return export(report)


def _place_unranked(unranked: list[TraceFile], chosen: Chosen) -> None:
    """A trace that names no rank is rank 0 when it is the only one of its kind; else the user must say."""
    kinds = [file.kind for file in (*unranked, *chosen.files)]
    for file in unranked:
        if kinds.count(file.kind) > 1:
            raise UsageError(
                f"{file.path}: neither the file nor its name says which rank it is of; say it: "
                f"--rank {file.path.name}=N"
            )
        chosen.files.append(file)


def _check_unique(chosen: Chosen) -> None:
    seen: dict[tuple[str, int], Path] = {}
    for file in chosen.files:
        for rank in file.ranks.values():
            other = seen.setdefault((file.kind, rank), file.path)
            if other != file.path:
                raise UsageError(
                    f"{other} and {file.path} are both of rank {rank}; parse one of them, or say their ranks: "
                    f"--rank {file.path.name}=N"
                )
