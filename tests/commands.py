"""The command line as a user's shell would start it, for tests of real captures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
CANARY = "zeropeak-canary-5f1d"
"""Value of an environment variable that must never get into a run directory."""


@dataclass(frozen=True)
class Captured:
    """A finished command and the run directory it left."""

    run_dir: Path
    exit_code: int
    output: str


class Command:
    """``zeropeak <words> --out <run_dir>`` as a user's shell would start it."""

    def __init__(self, run_dir: Path, *words: str, site: Path | None = None) -> None:
        self.run_dir = run_dir
        paths = [*([str(site)] if site else []), *(str(ROOT / stage) for stage in ("profile", "parse", "reports"))]
        paths += [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "zeropeak.cli", *words, "--out", str(run_dir)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CANARY_TOKEN": CANARY},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A shell without job control starts background jobs with SIGINT ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self.lines: list[str] = []

    def read_until(self, start: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith(start):
                return
        self.finish()
        pytest.fail(f"the command ended before {start!r}:\n{''.join(self.lines)}")

    def finish(self) -> Captured:
        assert self.process.stdout is not None
        with self.process.stdout:
            self.lines += self.process.stdout
        return Captured(self.run_dir, self.process.wait(), "".join(self.lines))

    def rank(self, number: int) -> psutil.Process:
        """The process of one rank."""
        for process in psutil.process_iter():
            try:
                command, environ = process.cmdline(), process.environ()
            except (psutil.Error, OSError):
                continue
            if (
                str(self.run_dir) in command
                and "torch.distributed.run" not in command
                and environ.get("RANK") == str(number)
            ):
                return process
        raise LookupError(f"rank {number} is not running")
