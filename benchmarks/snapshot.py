"""Memory snapshots to tables and peak beside ptmem, mosaic and pt-snap.

A real snapshot is grown to a million entries (``snapshot_grow.py``). mosaic is run from its source tree, since its
package does not build; without ``--mosaic`` it is left out.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

from job import ROOT, SOURCES, Job, take_turns, verb
from part import Claim, Part, about, environment, head, row, version

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

CAPTURE = "pythia6.9b_2xH200_s3m0.tar"
ENTRIES = 1_000_000
PEERS = {
    "ptmem": ["ptmem==0.1.2"],
    "pt-snap": ["pt-snap-cli==0.4.1"],
    "mosaic": ["click>=8.3", "omegaconf>=2.3", "pandas>=2.3.3", "tabulate>=0.9", "altair>=5.5"],
}
PICKLE = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
OURS = ("zeropeak", "`zeropeak parse`", "`pickle.load`")
ON_DISK = "tables as parquet on disk, and peak"
PEAK = "peak"

TEXT = """\
A snapshot from an H200 run (Pythia-6.9B, stage 3), grown to 1,023,689 entries (110 MB) so that it stays a history which
torch could have written. Each from the start of a process to its end. How it is read:
[decisions/snapshot-reader.md](decisions/snapshot-reader.md)."""


def grown(capture: Path, work: Path, entries: int) -> Path:
    """The snapshot to read, and beside it the same as gzip; kept below ``work``."""
    target = work / f"{capture.stem}-{entries}.pickle"
    if not target.exists():
        source = work / "snapshot_r0.pickle.gz"
        with tarfile.open(capture) as archive:
            source.write_bytes(archive.extractfile("snapshot_r0.pickle.gz").read())  # type: ignore[union-attr]
        script = str(ROOT / "benchmarks" / "snapshot_grow.py")
        subprocess.run([sys.executable, script, str(source), str(target), "--entries", str(entries)], check=True)
    packed = target.with_suffix(".pickle.gz")
    if not packed.exists():
        packed.write_bytes(gzip.compress(target.read_bytes(), 6))
    return target


def jobs(path: Path, work: Path, mosaic: Path | None) -> list[Job]:
    """All commands, in the order in which they take turns."""
    sources, tables = {"PYTHONPATH": SOURCES}, work / "tables"
    me = [sys.executable, str(ROOT / "benchmarks" / "snapshot_parse.py")]
    packed = str(path.with_suffix(".pickle.gz"))
    ptmem, snap = environment(work, "ptmem", PEERS["ptmem"]), environment(work, "pt-snap", PEERS["pt-snap"])
    found = [
        Job(ON_DISK, "zeropeak", [[*me, str(path), str(tables)]], sources, (tables,)),
        Job("tables in memory, and peak", "zeropeak", [[*me, str(path)]], sources),
        verb("all tables of a run", [path], work / "out-verb"),
        Job(f"{ON_DISK}, from `.pickle.gz`", "zeropeak", [[*me, packed, str(tables)]], sources, (tables,)),
        Job(
            f"{PEAK} (`ptmem -s`)",
            version(ptmem / "python", "ptmem"),
            [[str(ptmem / "ptmem"), "-s", str(path)]],
            leftovers=(path.with_name(f".{path.name}.memcache"),),
        ),
        Job("nothing", "`pickle.load`", [[sys.executable, "-c", PICKLE, str(path)]]),
        Job(
            "nothing, garbage collector off",
            "`pickle.load`",
            [[sys.executable, "-c", f"import gc; gc.disable(); {PICKLE}", str(path)]],
        ),
        Job(
            "sqlite tables (`pt-snap import`)",
            version(snap / "python", "pt-snap-cli"),
            [[str(snap / "pt-snap"), "import", str(path), "-o", str(work / "ptsnap"), "--no-focus", "--force"]],
            leftovers=(work / "ptsnap",),
        ),
    ]
    return found + (mosaic_jobs(path, work, mosaic) if mosaic else [])


def mosaic_jobs(path: Path, work: Path, mosaic: Path) -> list[Job]:
    """mosaic's commands: its peak, and the history that its page is made of."""
    python = str(environment(work, "mosaic", PEERS["mosaic"]) / "python")
    git = ["git", "-C", str(mosaic), "rev-parse", "--short", "HEAD"]
    name = "mosaic " + subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    sources, page = {"PYTHONPATH": str(mosaic)}, work / "profile.html"
    peak = [python, "-m", "mosaic.cmd.get_memory_usage_peak", "--snapshot", str(path)]
    history = [python, "-m", "mosaic.cmd.get_memory_profile", "--snapshot", str(path), "--out-path", str(page)]
    return [
        Job(f"{PEAK} (`get_memory_usage_peak`)", name, [peak], sources),
        *[
            Job(f"history by {profile}", name, [[*history, "--profile", profile]], sources, (page,))
            for profile in ("annotations", "categories")
        ],
    ]


def claims(found: list[Job]) -> list[Claim]:
    """What was asked for, by what was measured."""
    ours = next(job for job in found if job.task == ON_DISK)
    whole = next(job for job in found if job.tool == "`zeropeak parse`")
    made = [
        Claim("snapshot of 1 M entries to tables on disk and peak", " s", ours.wall, 5, 3),
        Claim("snapshot of 1 M entries, memory", " GB", ours.rss_bytes / 1e9, 1, 0.7),
        Claim("the same by `zeropeak parse`, all tables", " s", whole.wall, 5, 3),
        Claim("the same by `zeropeak parse`, memory", " GB", whole.rss_bytes / 1e9, 1, 0.7),
    ]
    for job in found:
        if job.task.startswith(f"{PEAK} "):
            what = f"snapshot, {job.tool.split()[0]}'s peak / zeropeak's tables on disk and peak"
            made.append(Claim(what, "x", job.wall / ours.wall, 3, more_is_better=True))
    return made


def measure(options: Namespace, work: Path) -> Part:
    """Run all and say what was found."""
    path = grown(options.captures / CAPTURE, work, ENTRIES)
    found = jobs(path, work, options.mosaic)
    take_turns(found, options.repeats, options.most_others)
    ours = found[0]
    lines = [*head("wall / ours on disk", "CPU / ours on disk")]
    lines += [row(job, f"{job.wall / ours.wall:.1f}x", f"{job.cpu / ours.cpu:.1f}x") for job in found]
    peers = list(dict.fromkeys(job.tool for job in found if job.tool not in OURS))
    notes = [] if options.mosaic else ["mosaic was left out: its source tree was not given (`--mosaic`)."]
    return Part(
        "Memory snapshots",
        TEXT,
        about(found, options.repeats, ("pyarrow", "numpy"), peers),
        claims(found),
        lines,
        notes,
    )
