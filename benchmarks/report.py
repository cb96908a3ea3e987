"""What a report takes: four ranks of a million memory events each, and many ranks.

A run is captured on this machine (tiny model, CPU, 4 ranks, 3 steps) and its tables are grown (``report_grow.py``).
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from job import ROOT, SOURCES, Job, take_turns
from part import Claim, Part, about, head, row

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

EVENTS, RANKS = 1_000_000, 4
FEW_EVENTS, MANY_RANKS = 10_000, 64
TEXT = f"""\
`zeropeak report` from the start of its process to `report.pdf`, all figures and `findings.json`. A run of the tiny
model (stage 3, 4 ranks on CPU, 3 steps) whose tables are grown by repeating a step: {RANKS} ranks of {EVENTS:,} memory
events each, and {MANY_RANKS} ranks of three steps as captured, over {FEW_EVENTS:,} each."""


def grown(work: Path, events: int, ranks: int) -> Path:
    """The run to report; kept below ``work``."""
    sources = {"PYTHONPATH": SOURCES}
    source, target = work / "report-run", work / f"report-{ranks}-{events}"
    if not source.exists():
        command = [sys.executable, "-m", "zeropeak.cli", "torch", "stage3", "--steps", "3", "--out", str(source)]
        Job("", "", [command], sources).run()
    if not target.exists():
        script = str(ROOT / "benchmarks" / "report_grow.py")
        command = [sys.executable, script, str(source), str(target), "--events", str(events), "--ranks", str(ranks)]
        subprocess.run(command, check=True)
    return target


def job(work: Path, events: int, ranks: int) -> Job:
    """The report of one grown run."""
    run = grown(work, events, ranks)
    command = [sys.executable, "-m", "zeropeak.cli", "report", str(run)]
    task = f"{ranks} ranks, {events:,} memory events each"
    return Job(task, "`zeropeak report`", [command], {"PYTHONPATH": SOURCES}, (run / "report",))


def measure(options: Namespace, work: Path) -> Part:
    """Run both and say what was found."""
    found = [job(work, EVENTS, RANKS), job(work, FEW_EVENTS, MANY_RANKS)]
    take_turns(found, options.repeats, options.most_others)
    long, many = found
    return Part(
        "Reports",
        TEXT,
        about(found, options.repeats, ("pyarrow", "numpy", "matplotlib"), ()),
        [
            Claim("report of 4 ranks of 1 M memory events", " s", long.wall, 15),
            Claim("report of 4 ranks of 1 M memory events, memory", " GB", long.rss_bytes / 1e9, 1),
            Claim("report of 64 ranks, memory", " GB", many.rss_bytes / 1e9, 1),
        ],
        [*head(), *(row(one) for one in found)],
    )
