"""Broken bytes give rows or a TraceError, never anything else, and never hang.

With atheris installed (``pip install atheris``) this file is also a coverage-guided fuzz target::

    python tests/test_kineto_fuzz.py -max_total_time=600
"""

import gzip
import importlib
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from zeropeak.parse.kineto import reader as kineto
from zeropeak.parse.kineto import split as kineto_split
from zeropeak.parse.kineto import window as kineto_window
from zeropeak.parse.sink import MemorySink
from zeropeak.profile.errors import TraceError

SECONDS = 8
"""Time that the test may take."""

EVENTS = [
    {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": 7,
        "tid": 8,
        "ts": 5199832495665.066,
        "args": {
            "Total Reserved": 9,
            "Total Allocated": 8,
            "Bytes": -512,
            "Device Id": 0,
            "Device Type": 1,
            "Addr": 64,
        },
    },
    {
        "ph": "X",
        "cat": "kernel",
        "name": 'a<b>\\"{}, {"',
        "pid": 0,
        "tid": 7,
        "ts": 10.25,
        "dur": 2.125,
        "args": {
            "device": 1,
            "stream": 7,
            "correlation": 15,
            "Collective name": "x",
            "dtype": "Half",
            "l": [{"ph": 1}],
        },
    },
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": "zeropeak::fetch x",
        "pid": 1,
        "tid": 2,
        "ts": 3,
        "dur": 4,
        "args": {"event_id": 7},
    },
    {"ph": "X", "cat": "user_annotation", "name": "step", "pid": 1, "tid": 2, "ts": 3.5, "dur": 4.25},
    {"ph": "M", "name": "process_name", "args": {"name": "python"}},
]
SEEDS = [
    json.dumps(
        {
            "schemaVersion": 1,
            "distributedInfo": {"rank": 1},
            "baseTimeNanoseconds": 10**18,
            "traceEvents": EVENTS * 9,
            "traceName": "x",
        },
        indent=indent,
    ).encode()
    for indent in (None, 2)
]
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


def one_input(path: Path, data: bytes) -> None:
    """Read it; a refusal is one line that begins with the file's name."""
    path.write_bytes(data)
    sink = MemorySink()
    try:
        source = kineto.read(path, sink)
    except TraceError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert refusal.startswith(f"{path}: ")
        assert "\n" not in refusal
        return
    for table in sink.tables:
        for row in sink.rows(table):
            assert row["source"] == "kineto"
    counts = {what: line.count for what, line in sink.counts.items()}
    assert all(count >= 0 for count in counts.values())
    assert source.partial >= bool(counts.get("events_cut"))


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


def main() -> None:
    """Fuzz with atheris."""
    atheris: Any = importlib.import_module("atheris")

    folder = Path(tempfile.mkdtemp())
    (folder / "corpus").mkdir()
    for number, seed in enumerate(SEEDS):
        (folder / "corpus" / str(number)).write_bytes(seed)
    kineto_split.CHUNK_BYTES, kineto_window.BUFFER_BYTES = 1000, 3000  # type: ignore[misc]
    atheris.instrument_all()
    atheris.Setup([*sys.argv, str(folder / "corpus")], lambda data: one_input(folder / "trace.json", data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
