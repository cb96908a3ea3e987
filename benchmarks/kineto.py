"""kineto traces to tables, side by side with HolisticTraceAnalysis, which reads the same files into DataFrames.

    python benchmarks/kineto.py --captures ../shared/captures --work /tmp/kineto-bench

Unpacks the two H200 ranks, installs the peer into an environment of its own, runs all in turn and prints a table:
medians of wall time (start of the process to its end) and CPU time (with all child processes), and, from a run of its
own, the peak of the resident memory summed over all processes. The peer's ``load`` is TraceAnalysis alone, without its
imports.
"""

from __future__ import annotations

import argparse
import gzip
import lzma
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kineto_grow import grow

ROOT = Path(__file__).resolve().parents[1]
PEER = "HolisticTraceAnalysis==0.5.0"
CAPTURE = "pythia6.9b_2xH200_s3m0.tar"
PEER_CODE = """
import sys, time
from hta.trace_analysis import TraceAnalysis
if __name__ == "__main__":
    begun = time.perf_counter()
    TraceAnalysis(trace_files=dict(enumerate(sys.argv[1:])), trace_dir=".")
    print("LOAD", time.perf_counter() - begun)
"""


@dataclass
class Run:
    """One way to do one job, and how long it took each time."""

    job: str
    tool: str
    commands: list[list[str]]
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    rss_bytes: int = 0

    def once(self, environment: dict[str, str], most_disturbed: float) -> None:
        """Run the commands at the same time and note what it took; again when other processes used more CPU."""
        while True:
            before, busy = resource.getrusage(resource.RUSAGE_CHILDREN), busy_seconds()
            begun = time.perf_counter()
            running = [start(command, environment) for command in self.commands]
            outputs = [process.communicate()[0] for process in running]
            wall, busy = time.perf_counter() - begun, busy_seconds() - busy
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            for process, output in zip(running, outputs, strict=True):
                if process.returncode:
                    raise SystemExit(f"{self.tool} failed on {self.job}:\n{output}")
            if busy - cpu <= most_disturbed * wall + 0.03:  # the kernel counts in hundredths of a second
                break
            time.sleep(1)
        self.wall.append(wall)
        self.cpu.append(cpu)
        for output in outputs:
            self.load += [float(line.split()[1]) for line in output.splitlines() if line.startswith("LOAD")]

    def measure_memory(self, environment: dict[str, str]) -> None:
        """Peak of the resident memory summed over the process trees, sampled every 10 ms."""
        running = [start(command, environment) for command in self.commands]
        done = threading.Event()

        def sample() -> None:
            while not done.is_set():
                self.rss_bytes = max(self.rss_bytes, sum(resident_bytes(process.pid) for process in running))
                time.sleep(0.01)

        sampler = threading.Thread(target=sample)
        sampler.start()
        for process in running:
            process.communicate()
        done.set()
        sampler.join()


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


def busy_seconds() -> float:
    """CPU time that all processes of the machine have used."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split(maxsplit=8)[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def resident_bytes(session: int) -> int:
    """Resident memory of all processes of a session."""
    total = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            total += int(fields[21]) * resource.getpagesize()
    return total


def peer_python(work: Path) -> str:
    """Python of an environment with the peer, made at first use."""
    folder = work / "peer"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", PEER], check=True)
    return str(python)


def unpack(captures: Path, work: Path) -> list[Path]:
    """The traces of the two ranks as plain JSON, and as gzip, which is what torch writes."""
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


def environment_for(work: Path) -> dict[str, str]:
    """Modules of this checkout, compiled once like an installed package's."""
    sources = os.pathsep.join(str(ROOT / stage) for stage in ("profile", "parse", "reports"))
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": sources, "PYTHONPYCACHEPREFIX": str(work / "pycache")}


def own(path: Path, work: Path, rank: int, processes: int) -> list[str]:
    out = str(work / f"out-{rank}")
    return [sys.executable, str(ROOT / "benchmarks" / "kineto_load.py"), str(path), out, str(rank), str(processes)]


def jobs(work: Path, traces: list[Path], peer: str | None) -> list[Run]:
    cpus = os.cpu_count() or 1
    runs = []
    for ending, what in (("", ".json"), (".gz", ".json.gz")):
        files = [path.with_name(path.name + ending) for path in traces]
        for name, some in ((f"one rank, {what}", files[:1]), (f"both ranks, {what}", files)):
            if peer:
                runs.append(Run(name, "HTA", [[peer, "-c", PEER_CODE, *map(str, some)]]))
            single = [own(path, work, rank, 1) for rank, path in enumerate(some)]
            runs.append(Run(name, "zeropeak, one process a file", single))
            if len(some) == 1 and cpus > 1:
                runs.append(Run(name, f"zeropeak, {cpus} scanning", [own(some[0], work, 0, cpus)]))
    return runs


def table(runs: list[Run]) -> list[str]:
    lines = [
        "| job | tool | wall s | CPU s | peak RSS MB | HTA load / ours | HTA process / ours |",
        "|---|---|---|---|---|---|---|",
    ]
    peers = {run.job: run for run in runs if run.tool == "HTA"}
    for run in runs:
        wall, cpu = statistics.median(run.wall), statistics.median(run.cpu)
        peer = peers.get(run.job)
        shown = f"{wall:.2f}" + (f" (load {statistics.median(run.load):.2f})" if run.load else "")
        ratios = "| - | - |"
        if peer and run is not peer:
            ratios = f"| {statistics.median(peer.load) / wall:.1f}x | {statistics.median(peer.wall) / wall:.1f}x |"
        lines.append(f"| {run.job} | {run.tool} | {shown} | {cpu:.2f} | {run.rss_bytes / 1e6:.0f} {ratios}")
    return lines


def machine() -> str:
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    packages = []
    for name in ("msgspec", "pyarrow", "numpy", "isal"):
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            packages.append(f"no {name}")
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores ({model}), load {os.getloadavg()[0]:.1f} at the "
        f"end; Python {platform.python_version()}, {', '.join(packages)}, {PEER}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captures", type=Path, default=ROOT.parent / "shared" / "captures")
    parser.add_argument("--work", type=Path, required=True, help="folder for files and environments; kept")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--events", type=int, nargs="*", default=[1_000_000, 4_000_000], help="generated traces")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument(
        "--most-disturbed",
        type=float,
        default=float("inf"),
        metavar="CPUS",
        help="repeat a run during which other processes used more than so many CPUs",
    )
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    traces = unpack(arguments.captures, work)
    runs = jobs(work, traces, None if arguments.no_peer else peer_python(work))
    for count in arguments.events:
        path = work / f"grown_{count}.json"
        if not path.exists():
            grow(traces[0], path, count)
        size = f"{count / 1e6:g} M events, {path.stat().st_size / 1e9:.2f} GB"
        runs.append(Run(size, "zeropeak, one process a file", [own(path, work, 0, 1)]))
        runs.append(Run(size, f"zeropeak, {os.cpu_count()} scanning", [own(path, work, 0, os.cpu_count() or 1)]))
    environment = environment_for(work)
    for run in runs:
        run.measure_memory(environment)  # also warms the page cache and compiles
    for _ in range(arguments.repeats):
        for run in runs:
            run.once(environment, arguments.most_disturbed)
    print("\n".join(table(runs)))
    print(f"\n{machine()}. Medians of {arguments.repeats}, in turn.")


if __name__ == "__main__":
    main()
