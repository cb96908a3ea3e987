"""What one benchmark found: figures, and what was asked for, as it is kept in a file and shown on the page."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from job import LONG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from job import Job


@dataclass(frozen=True)
class Claim:
    """One figure beside what is required of it and what is hoped for (None: nothing)."""

    what: str
    unit: str
    measured: float
    required: float | None
    goal: float | None = None
    more_is_better: bool = False

    def verdict(self) -> str:
        """``goal``, ``yes``, ``no``, or nothing where nothing is required."""
        if self.goal is not None and self._reaches(self.goal):
            return "goal"
        if self.required is None:
            return ""
        return "yes" if self._reaches(self.required) else "**no**"

    def row(self) -> str:
        """A row of the page's table."""
        sign = "at least" if self.more_is_better else "at most"
        asked = [f"{sign} {bound:g}{self.unit}" if bound is not None else "" for bound in (self.required, self.goal)]
        return f"| {self.what} | {asked[0]} | {asked[1]} | {self.measured:.3g}{self.unit} | {self.verdict()} |"

    def _reaches(self, bound: float) -> bool:
        return self.measured >= bound if self.more_is_better else self.measured <= bound


@dataclass
class Part:
    """A section of the page."""

    title: str
    text: str
    about: str
    claims: list[Claim] = field(default_factory=list)
    table: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Keep it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> Part:
        """Read what :meth:`save` wrote."""
        read = json.loads(path.read_text())
        return cls(**{**read, "claims": [Claim(**claim) for claim in read["claims"]]})

    def lines(self) -> list[str]:
        """The section."""
        return [
            f"## {self.title}",
            "",
            self.text,
            "",
            *self.table,
            "",
            *[f"- {note}" for note in self.notes],
            *([""] if self.notes else []),
            self.about,
            "",
        ]


def row(job: Job, *more: str) -> str:
    """A job's figures as a row of a table."""
    if job.failure:
        return f"| {job.task} | {job.tool} | {job.failure} |" + " |" * (3 + len(more))
    wall = f"{job.wall:.2f}" + (f" (load {job.load:.2f})" if job.loads else "") + (" (1 run)" if job.once else "")
    cells = [job.task, job.tool, wall, f"{job.cpu:.2f}", f"{job.rss_bytes / 1e6:,.0f}", *more]
    return f"| {' | '.join(cells)} |"


def head(*more: str) -> list[str]:
    """The head of a table of :func:`row`."""
    cells = ["task", "tool", "wall s", "CPU s", "peak RSS MB", *more]
    return [f"| {' | '.join(cells)} |", "|---" * len(cells) + "|"]


def about(jobs: Sequence[Job], repeats: int, packages: Sequence[str], peers: Sequence[str]) -> str:
    """When, where and with what it was measured, and how busy the machine was with other things."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    others = sorted(run.others for job in jobs for run in job.runs)
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores ({model}), {memory_gb():.0f} GB; Python "
        f"{platform.python_version()}, {', '.join(version(sys.executable, name) for name in packages)}; beside "
        f"{', '.join(peers) or 'nothing'}. Medians of {repeats} runs, taken in turns; what takes over {LONG_SECONDS} s "
        f"of CPU was run once. During a run other processes of the machine used {others[len(others) // 2]:.2f} CPUs "
        f"in the median and {others[-1]:.2f} at most."
    )


def memory_gb() -> float:
    """Memory of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9


def version(python: str | Path, package: str) -> str:
    """Name and version of a package that a Python has."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    found = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    return f"{package} {found}"


def environment(work: Path, name: str, packages: Sequence[str]) -> Path:
    """The ``bin`` folder of a peer's own environment, made with pip when it is not there.

    Raises:
        subprocess.CalledProcessError: pip cannot install it; the half environment is gone again.
    """
    folder = work / f"env-{name}"
    ready = folder / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        command = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *packages]
        subprocess.run(command, check=True, capture_output=True, text=True)
        ready.touch()
    return folder / "bin"
