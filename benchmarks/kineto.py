"""kineto traces to tables beside HolisticTraceAnalysis, which reads the same files into DataFrames.

Two real H200 ranks, and traces of 1 and 4 million events grown from them (``kineto_grow.py``). zeropeak is timed from
the start of the process to parquet on disk, HTA's ``load`` is TraceAnalysis alone, without its imports.
"""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import sys
import tarfile
from typing import TYPE_CHECKING

from job import ROOT, SOURCES, Job, available_bytes, take_turns, verb
from kineto_grow import grow
from part import Claim, Part, about, environment, head, row

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

PEER = "HolisticTraceAnalysis==0.5.0"
CAPTURE = "pythia6.9b_2xH200_s3m0.tar"
EVENTS = (1_000_000, 4_000_000, 12_000_000)
PEER_EVENTS = 4_000_000
"""Most events that HTA is given: it takes minutes and 5 GB for them."""
VERB = "`zeropeak parse`"
PEER_BYTES_PER_EVENT = 2000
"""Memory that HTA may need, with room: 1,200 to 1,400 bytes an event were measured."""

PEER_CODE = """
import sys, time
from hta.trace_analysis import TraceAnalysis
if __name__ == "__main__":
    begun = time.perf_counter()
    TraceAnalysis(trace_files=dict(enumerate(sys.argv[1:])), trace_dir=".")
    print("LOAD", time.perf_counter() - begun)
"""
TEXT = """\
The two ranks of an H200 capture (117 MB of JSON each, 488,694 events), as JSON and as gzip, which is what torch writes;
and generated traces with the names, arguments and categories of the real one in the same proportions. zeropeak: reader
and writer alone, and `zeropeak parse` as a user calls it, which also makes the other tables of a run; both from the
start of the process to parquet on disk, scanning processes included. HTA: `TraceAnalysis` on the same files, "load"
without its imports; it drops every `[memory]` event. How they are read, and why one process cannot be twenty times as
fast: [decisions/kineto-reader.md](decisions/kineto-reader.md)."""


def unpack(captures: Path, work: Path) -> list[Path]:
    """The traces of the two ranks as plain JSON, and beside them as gzip."""
    found = [work / f"kineto_r{rank}.json" for rank in (0, 1)]
    for path in found:
        if not path.exists():
            with tarfile.open(captures / CAPTURE) as tar:
                packed = tar.extractfile(f"{path.name}.xz")
                assert packed is not None
                with lzma.open(packed) as text, path.open("wb") as out:
                    shutil.copyfileobj(text, out)
        zipped = path.with_name(path.name + ".gz")
        if not zipped.exists():
            with path.open("rb") as text, gzip.open(zipped, "wb", 6) as out:
                shutil.copyfileobj(text, out)
    return found


def own(task: str, tool: str, paths: list[Path], work: Path, processes: int) -> Job:
    """zeropeak on some files at once, each with so many processes that scan."""
    script, outs = ROOT / "benchmarks" / "kineto_load.py", [work / f"out-{rank}" for rank in range(len(paths))]
    commands = [
        [sys.executable, str(script), str(path), str(out), str(rank), str(processes)]
        for rank, (path, out) in enumerate(zip(paths, outs, strict=True))
    ]
    return Job(task, tool, commands, {"PYTHONPATH": SOURCES}, tuple(outs))


def jobs(work: Path, traces: list[Path], peer: str) -> list[Job]:
    """All tasks, each by the peer and by us."""
    cpus = os.cpu_count() or 1
    found = []

    def theirs(task: str, paths: list[Path]) -> Job:
        return Job(task, "HTA", [[peer, "-c", PEER_CODE, *map(str, paths)]])

    for ending, what in (("", ".json"), (".gz", ".json.gz")):
        files = [path.with_name(path.name + ending) for path in traces]
        for task, some in ((f"one rank, {what}", files[:1]), (f"both ranks, {what}", files)):
            found += [theirs(task, some), own(task, "zeropeak, one process a file", some, work, 1)]
            if len(some) == 1 and cpus > 1:
                found.append(own(task, f"zeropeak, {cpus} scanning", some, work, cpus))
            found.append(verb(task, some, work / "out-verb"))
    for count in EVENTS:
        path = work / f"grown_{count}.json"
        if not path.exists():
            grow(traces[0], path, count)
        task = f"{count / 1e6:g} M events, {path.stat().st_size / 1e9:.2f} GB"
        peers = theirs(task, [path])
        if available_bytes() < count * PEER_BYTES_PER_EVENT:
            peers.failure = f"not run: would need more than the {available_bytes() / 1e9:.0f} GB that are free"
        found += [peers] if count <= PEER_EVENTS else []
        found.append(own(task, "zeropeak, one process a file", [path], work, 1))
        if cpus > 1:
            found.append(own(task, f"zeropeak, {cpus} scanning", [path], work, cpus))
        found.append(verb(task, [path], work / "out-verb"))
    return found


def claims(found: list[Job]) -> list[Claim]:
    """What was asked for, by what was measured."""
    peers = {job.task: job for job in found if job.tool == "HTA"}
    ours = [job for job in found if job.tool != "HTA"]
    made = []
    for task in ("one rank, .json", "one rank, .json.gz", "both ranks, .json", "both ranks, .json.gz"):
        by_verb = next(job for job in ours if job.task == task and job.tool == VERB)
        best = min((job for job in ours if job.task == task and job is not by_verb), key=lambda job: job.wall)
        for job, by in ((best, "reader and writer"), (by_verb, VERB)):
            what = f"kineto, {task}: HTA's load / {by}"
            made.append(Claim(what, "x", peers[task].load / job.wall, 10, 20, more_is_better=True))
    most = max(ours, key=lambda job: job.rss_bytes)
    made.append(Claim(f"kineto, memory summed over processes ({most.task})", " GB", most.rss_bytes / 1e9, 0.6, 0.4))
    small, middle, large = (
        next(job for job in ours if job.task.startswith(f"{count / 1e6:g} M") and "one process" in job.tool)
        for count in EVENTS
    )
    for less, more, times in ((small, middle, EVENTS[1] / EVENTS[0]), (middle, large, EVENTS[2] / EVENTS[1])):
        what = f"kineto, CPU time for {more.task} / {times:g}x that for {less.task.split(',')[0]}"
        made.append(Claim(what, "x", more.cpu / less.cpu / times, 1.1))
    what = f"kineto, memory for {large.task} / {middle.task.split(',')[0]}"
    made.append(Claim(what, "x", large.rss_bytes / middle.rss_bytes, 1.1))
    return made


def measure(options: Namespace, work: Path) -> Part:
    """Run all and say what was found."""
    peer = str(environment(work, "hta", [PEER]) / "python")
    found = jobs(work, unpack(options.captures, work), peer)
    take_turns(found, options.repeats, options.most_others)
    peers = {job.task: job for job in found if job.tool == "HTA" and not job.failure}
    lines = head("HTA load / ours", "HTA process / ours")
    for job in found:
        theirs = peers.get(job.task)
        if theirs is None or job.tool == "HTA":
            lines.append(row(job, "", ""))
        else:
            lines.append(row(job, f"{theirs.load / job.wall:.1f}x", f"{theirs.wall / job.wall:.1f}x"))
    said = about(found, options.repeats, ("msgspec", "pyarrow", "numpy", "isal"), [PEER.replace("==", " ")])
    notes = [
        "Reader and writer: memory grows until 32 MB of rows wait to be written, and then little. `zeropeak parse` "
        "also pairs all allocations and frees of a trace, in memory."
    ]
    return Part("torch.profiler (kineto) traces", TEXT, said, claims(found), lines, notes)
