"""Memory snapshot to tables and peak: zeropeak beside ptmem, mosaic and pt-snap, in one run.

    python benchmarks/snapshot.py ../shared/captures/pythia6.9b_2xH200_s3m0.tar --work /tmp/bench --mosaic ~/src/mosaic

A real snapshot is grown to a million entries (``snapshot_grow.py``); then the tools take turns, each in an environment
of its own, made on the first run with pip below ``--work``. mosaic is run from its source tree, since its package does
not build; without ``--mosaic`` it is left out. Wall and CPU time are those of the whole process, from its start to its
end, memory is its peak RSS; the table shows medians.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import os
import pickle
import platform
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = os.pathsep.join(str(ROOT / stage) for stage in ("profile", "parse", "reports"))
PEERS = {"ptmem": ["ptmem==0.1.2"], "pt-snap": ["pt-snap-cli==0.4.1"],
         "mosaic": ["click>=8.3", "omegaconf>=2.3", "pandas>=2.3.3", "tabulate>=0.9", "altair>=5.5"]}  # fmt: skip


@dataclass
class Job:
    """One command whose process is measured."""

    name: str
    what: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    leftovers: tuple[Path, ...] = ()
    """Removed before each run: caches and outputs."""
    repeats: int | None = None
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)

    def run(self, log: Path) -> None:
        """Run once and note what it took."""
        for path in self.leftovers:
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)
        with log.open("wb") as output:
            began = time.perf_counter()
            process = subprocess.Popen(
                self.command, stdout=output, stderr=output, env={**os.environ, **self.environment}, cwd=log.parent
            )
            _, status, usage = os.wait4(process.pid, 0)
            self.wall.append(time.perf_counter() - began)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{self.name} failed; see {log}")
        self.cpu.append(usage.ru_utime + usage.ru_stime)
        self.rss.append(usage.ru_maxrss * 1024)


def environment(work: Path, name: str) -> Path:
    """The ``bin`` folder of a peer's environment, made when it is not there."""
    folder = work / f"env-{name}"
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", *PEERS[name]], check=True)
    return folder / "bin"


def version(python: Path, package: str) -> str:
    """Version of an installed package."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def grown(capture: Path, work: Path, entries: int) -> Path:
    """The snapshot to read: rank 0 of a capture, grown; kept below ``work``."""
    target = work / f"{capture.stem}-{entries}.pickle"
    if not target.exists():
        source = work / "snapshot_r0.pickle.gz"
        with tarfile.open(capture) as archive:
            source.write_bytes(archive.extractfile("snapshot_r0.pickle.gz").read())  # type: ignore[union-attr]
        script = str(Path(__file__).with_name("snapshot_grow.py"))
        subprocess.run([sys.executable, script, str(source), str(target), "--entries", str(entries)], check=True)
    return target


def jobs(path: Path, work: Path, mosaic: Path | None) -> list[Job]:
    """All commands, in the order in which they take turns."""
    ours = {"PYTHONPATH": SOURCES}
    packed = path.with_suffix(".pickle.gz")
    if not packed.exists():
        packed.write_bytes(gzip.compress(path.read_bytes(), 6))
    tables = work / "tables"
    me = [sys.executable, str(Path(__file__).resolve().with_name("snapshot_parse.py"))]
    load = [sys.executable, "-c", "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))", str(path)]
    load_off = [*load[:2], load[2].replace("pickle.load(", "__import__('gc').disable(); pickle.load("), load[3]]
    ptmem, snap = environment(work, "ptmem"), environment(work, "pt-snap")
    found = [
        Job("zeropeak", "tables as parquet on disk, and peak", [*me, str(path), str(tables)], ours, (tables,)),
        Job("zeropeak", "tables in memory, and peak", [*me, str(path)], ours),
        Job(f"ptmem {version(ptmem / 'python', 'ptmem')}", "peak (`ptmem -s`)", [str(ptmem / "ptmem"), "-s", str(path)],
            leftovers=(path.with_name(f".{path.name}.memcache"),)),
        Job("zeropeak, gzip", "tables on disk, from `.pickle.gz`", [*me, str(packed), str(tables)], ours, (tables,)),
        Job("`pickle.load`", "nothing", load),
        Job("`pickle.load`", "nothing, collector off", load_off),
        Job(f"pt-snap {version(snap / 'python', 'pt-snap-cli')}", "sqlite tables (`pt-snap import`)",
            [str(snap / "pt-snap"), "import", str(path), "-o", str(work / "ptsnap"), "--no-focus", "--force"],
            leftovers=(work / "ptsnap",), repeats=1),
    ]  # fmt: skip
    if mosaic is not None:
        python = environment(work, "mosaic") / "python"
        commit = subprocess.run(["git", "-C", mosaic, "rev-parse", "--short", "HEAD"], check=True, capture_output=True,
                                text=True).stdout.strip()  # fmt: skip
        source = {"PYTHONPATH": str(mosaic)}
        module = [str(python), "-m"]
        found[3:3] = [Job(f"mosaic {commit}", "peak (`get_memory_usage_peak`)",
                          [*module, "mosaic.cmd.get_memory_usage_peak", "--snapshot", str(path)], source)]  # fmt: skip
        found += [
            Job(f"mosaic {commit}", f"history by {profile} (`get_memory_profile`)",
                [*module, "mosaic.cmd.get_memory_profile", "--snapshot", str(path), "--profile", profile, "--out-path",
                 str(work / "profile.html")], source, (work / "profile.html",), 1)
            for profile in ("annotations", "categories")
        ]  # fmt: skip
    return found


def report(found: list[Job], path: Path, repeats: int, load: tuple[float, float]) -> str:
    """The results as a Markdown page."""
    with path.open("rb") as file:
        snapshot = pickle.load(file)
    entries = sum(map(len, snapshot["device_traces"]))
    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.machine())  # fmt: skip
    disk, memory = found[0], found[1]
    lines = [
        "# Memory snapshots: results",
        "",
        "Written by `benchmarks/snapshot.py`; do not edit.",
        "",
        f"{datetime.date.today()}, {os.cpu_count()} cores ({cpu}), Python {platform.python_version()}; load average "
        f"{load[0]:.1f} before, {load[1]:.1f} after. A capture on H200 grown to {entries:,} entries "
        f"({path.stat().st_size / 1e6:.0f} MB). Medians of {repeats} runs, taken in turns (of one run where marked), "
        "each from the start of a process to its end; memory is the peak RSS.",
        "",
        "The last columns say how many times as long as zeropeak: with its tables on disk / in memory.",
        "",
        "| tool | gives | wall | CPU | memory | times the wall time | times the CPU time |",
        "|---|---|---|---|---|---|---|",
    ]
    for job in found:
        wall, processor = statistics.median(job.wall), statistics.median(job.cpu)
        lines.append(
            f"| {job.name}{' (1 run)' if job.repeats == 1 else ''} | {job.what} | {wall:.2f} s | {processor:.2f} s | "
            f"{statistics.median(job.rss) / 1e9:.2f} GB | "
            f"{wall / statistics.median(disk.wall):.1f} / {wall / statistics.median(memory.wall):.1f} | "
            f"{processor / statistics.median(disk.cpu):.1f} / {processor / statistics.median(memory.cpu):.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capture", type=Path, help="a capture's .tar with snapshot_r0.pickle.gz in it")
    parser.add_argument("--work", type=Path, required=True, help="folder for environments and outputs")
    parser.add_argument("--mosaic", type=Path, help="source tree of facebookresearch/mosaic")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="leave out what takes more than half a minute")
    parser.add_argument("--out", type=Path, help="write the table here, too")
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    path = grown(options.capture.resolve(), work, options.entries)
    found = jobs(path, work, options.mosaic and options.mosaic.resolve())
    found = [job for job in found if not options.quick or job.repeats is None]
    before = os.getloadavg()[0]
    for turn in range(options.repeats):
        for job in found:
            if turn < (job.repeats or options.repeats):
                job.run(work / "output.log")
                print(f"{job.name}, {job.what}: {job.wall[-1]:.2f} s, CPU {job.cpu[-1]:.2f} s", file=sys.stderr)
    page = report(found, path, options.repeats, (before, os.getloadavg()[0]))
    print(page)
    if options.out:
        options.out.write_text(page)


if __name__ == "__main__":
    main()
