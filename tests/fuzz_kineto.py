"""Fuzz target for the kineto reader: what must hold for any bytes, and coverage-guided fuzzing with atheris.

    PYTHONPATH=profile:parse python tests/fuzz_kineto.py -max_total_time=600

atheris has wheels for Linux on x86-64 only. The options are libFuzzer's; an input that fails is written to the working
folder as ``crash-...`` and runs again when named as an argument.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

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


def shrink_pieces() -> None:
    """Let the reader cut even small files into many pieces."""
    from zeropeak.parse.kineto import split, window

    split.CHUNK_BYTES, window.BUFFER_BYTES = 1000, 3000  # type: ignore[misc]


def one_input(path: Path, data: bytes) -> None:
    """Read it; a refusal is one line that begins with the file's name."""
    from zeropeak.parse.kineto import reader
    from zeropeak.parse.sink import MemorySink
    from zeropeak.profile.errors import TraceError

    path.write_bytes(data)
    sink = MemorySink()
    try:
        source = reader.read(path, sink)
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


def main() -> None:
    """Fuzz until an input fails, or for as long as the options say."""
    atheris: Any = importlib.import_module("atheris")

    # Only our reader is instrumented: the packages under it are compiled, and it would take most of a minute.
    with atheris.instrument_imports(include=["zeropeak.parse.kineto"]):
        shrink_pieces()
        from zeropeak.parse.kineto import reader  # noqa: F401
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "corpus").mkdir()
        for number, seed in enumerate(SEEDS):
            (folder / "corpus" / str(number)).write_bytes(seed)
        atheris.Setup([*sys.argv, str(folder / "corpus")], lambda data: one_input(folder / "trace.json", data))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
