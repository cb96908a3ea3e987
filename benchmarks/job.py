"""One way to do one task, run in processes of its own and measured."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = os.pathsep.join(str(ROOT / stage) for stage in ("profile", "parse", "reports"))
SAMPLE_SECONDS = 0.01
LONG_SECONDS = 20
"""A job that takes more CPU time is run once: where it is a peer's, it is far behind anyway."""


@dataclass(frozen=True)
class Run:
    """One run: seconds of wall time, CPU seconds of all its processes, and CPUs that the rest of the machine used."""

    wall: float
    cpu: float
    others: float


@dataclass
class Job:
    """Commands that run at the same time, and what their runs took.

    Args:
        task: what is to be done; the same for all tools that do it.
        tool: who does it.
        commands: one or more, started together.
        environment: added to this process's.
        leftovers: removed before each run: outputs and caches.
        failure: why it could not run; it is then listed without figures.
    """

    task: str
    tool: str
    commands: list[list[str]]
    environment: dict[str, str] = field(default_factory=dict)
    leftovers: tuple[Path, ...] = ()
    failure: str = ""
    runs: list[Run] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    """Seconds that a command printed itself, as a line ``LOAD <seconds>``."""
    once: bool = False
    """Whether it was run a single time, as it takes long."""
    rss_bytes: int = 0
    """Peak of the resident memory, summed over all processes."""

    def run(self, *, memory: bool = False) -> None:
        """Run and note what it took; with ``memory``, note the memory, and of a short job nothing else.

        Looking at the memory often takes CPU time, so a long job is looked at less often, and run just once.
        """
        for path in self.leftovers:
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)
        used, busy, begun = cpu_seconds(), busy_seconds(), time.perf_counter()
        running = [self._start(command) for command in self.commands]
        done = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(running, done))
        if memory:
            sampler.start()
        outputs = [process.communicate()[0] for process in running]
        wall, busy, used = time.perf_counter() - begun, busy_seconds() - busy, cpu_seconds() - used
        done.set()
        if memory:
            sampler.join()
        for process, output in zip(running, outputs, strict=True):
            if process.returncode:
                raise SystemExit(f"{self.tool} failed on {self.task} ({process.returncode}):\n{output[-3000:]}")
        if memory:
            self.once = used > LONG_SECONDS
        if not memory or self.once:
            self.runs.append(Run(wall, used, max(0.0, busy - used) / wall))
            for output in outputs:
                self.loads += [float(line.split()[1]) for line in output.splitlines() if line.startswith("LOAD ")]

    @property
    def wall(self) -> float:
        """Median of the wall times, seconds."""
        return statistics.median(run.wall for run in self.runs)

    @property
    def cpu(self) -> float:
        """Median of the CPU times, seconds."""
        return statistics.median(run.cpu for run in self.runs)

    @property
    def load(self) -> float:
        """Median of the seconds that the command printed itself."""
        return statistics.median(self.loads)

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        # Modules are compiled once, like an installed package's, whatever the caller's settings are. numpy's threads
        # for matrices cost time at its import, and no tool here multiplies any.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return subprocess.Popen(
            command,
            env={**kept, "OPENBLAS_NUM_THREADS": "1", **self.environment},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _sample(self, running: list[subprocess.Popen[str]], done: threading.Event) -> None:
        begun = time.monotonic()
        while not done.wait(max(SAMPLE_SECONDS, (time.monotonic() - begun) / 100)):
            self.rss_bytes = max(self.rss_bytes, sum(resident_bytes(process.pid) for process in running))


def verb(task: str, paths: list[Path], out: Path) -> Job:
    """``zeropeak parse`` as a user calls it: all tables of a run, whatever the files are."""
    command = [sys.executable, "-m", "zeropeak.cli", "parse", *map(str, paths), "--out", str(out)]
    return Job(task, "`zeropeak parse`", [command], {"PYTHONPATH": SOURCES}, (out,))


def take_turns(jobs: list[Job], repeats: int, most_others: float = float("inf")) -> None:
    """Run every job ``repeats`` times, in turn; first once for its memory, which also warms caches.

    Args:
        jobs: those with a failure are left out.
        repeats: measured runs of each.
        most_others: a run during which the rest of the machine used more CPUs than this is repeated, up to three times.
    """
    ready = [job for job in jobs if not job.failure]
    for job in ready:
        job.run(memory=True)
    for turn in range(repeats):
        print(f"round {turn + 1} of {repeats}, {time.strftime('%H:%M:%S')}", file=sys.stderr, flush=True)
        for job in ready:
            if job.once:
                continue
            for _ in range(4):
                job.run()
                # The kernel counts in hundredths of a second, which is much of a short run.
                if job.runs[-1].others <= most_others + 0.03 / job.runs[-1].wall:
                    break
                job.runs.pop()
                time.sleep(1)
            else:
                job.run()


def cpu_seconds() -> float:
    """CPU time of the processes that this one waited for, with theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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


def available_bytes() -> int:
    """Memory that is free for a new process."""
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024
