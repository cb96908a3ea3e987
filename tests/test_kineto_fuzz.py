"""Broken bytes give rows or a TraceError, never anything else, and never hang."""

from __future__ import annotations

import gzip
import os
import random
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.fuzz_kineto import SEEDS, one_input

from zeropeak.parse.kineto import split as kineto_split
from zeropeak.parse.kineto import window as kineto_window

SECONDS = 8
"""Time that the test may take."""

FUZZ_SECONDS = 20
"""Time for atheris."""

PIECES = [
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b'}, {"ph"',
    b"\n",
    b"\x00",
    b"\xff",
    b"inf",
    b"1e999",
    b"-",
    b"null",
    b'"traceEvents": [',
    b"9" * 30,
    b"\\ud800",
    b" " * 400,
    b'"cat": "kernel"',
]


needs_atheris = pytest.mark.skipif(
    find_spec("atheris") is None, reason="atheris is not installed; it has wheels for Linux on x86-64 only"
)


def mutate(data: bytes, choice: random.Random) -> bytes:
    text = bytearray(data)
    for _ in range(choice.randint(1, 6)):
        at = choice.randrange(len(text) + 1)
        kind = choice.randrange(4)
        if kind == 0:
            text[at : at + choice.randint(1, 40)] = b""
        elif kind == 1:
            text[at:at] = choice.choice(PIECES)
        elif kind == 2:
            text[at : at + 1] = bytes([choice.randrange(256)])
        else:
            other = choice.randrange(len(text) + 1)
            text[at:at] = text[min(at, other) : min(at, other) + choice.randint(1, 200)]
    if choice.random() < 0.2:
        del text[choice.randrange(len(text) + 1) :]
    return gzip.compress(bytes(text), 1)[: choice.choice([None, -9])] if choice.random() < 0.1 else bytes(text)


def test_mutated_traces_are_read_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_split, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(kineto_window, "BUFFER_BYTES", 3000)
    end = time.monotonic() + SECONDS
    number = 0
    while time.monotonic() < end and number < 3000:
        choice = random.Random(number)
        data = mutate(SEEDS[number % 2], choice)
        begun = time.monotonic()
        try:
            one_input(tmp_path / "trace.json", data)
        except Exception as error:
            error.add_note(f"input number {number}: {data!r}")
            raise
        assert time.monotonic() - begun < 5, data
        number += 1
    assert number > 50


def fuzz(folder: Path, *arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the fuzz target in a process and a folder of its own; ``before`` is code to run first."""
    root = Path(__file__).resolve().parents[1]
    sources = [str(root / stage) for stage in ("profile", "parse", ".")]
    code = f"{before}\nimport tests.fuzz_kineto as target\ntarget.main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sources)},
        capture_output=True,
        text=True,
        timeout=FUZZ_SECONDS + 120,
    )


@needs_atheris
def test_coverage_guided_fuzzing_finds_nothing(tmp_path: Path) -> None:
    done = fuzz(
        tmp_path, f"-max_total_time={FUZZ_SECONDS}", "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"
    )
    said = done.stderr
    assert done.returncode == 0, f"{said[-3000:]}\ninputs: {[path.read_bytes() for path in tmp_path.glob('*-*')]}"
    runs = int(re.findall(r"stat::number_of_executed_units: +(\d+)", said)[0])
    assert runs > 200
    first, last = (re.findall(rf"{word} +cov: (\d+)", said)[0] for word in ("INITED", "DONE"))
    assert int(last) > int(first)  # inputs were found that reach more of the reader than the seeds do


@needs_atheris
def test_fuzzing_reports_an_error_of_the_reader(tmp_path: Path) -> None:
    broken = """
import zeropeak.parse.sink
def refuse(self, table, batch):
    raise IndexError("planted")
zeropeak.parse.sink.MemorySink.write = refuse
"""
    done = fuzz(tmp_path, "-max_total_time=10", before=broken)
    assert done.returncode != 0
    assert "IndexError: planted" in done.stdout + done.stderr
    assert list(tmp_path.glob("crash-*"))
