"""nsys export to tables: time and memory of zeropeak on generated exports.

    python benchmarks/nsys.py --work /tmp/bench --rows 2000000 10000000

The exports have the columns of nsys 2025.3: ranges of four processes in our domain, 640 names behind ``textId``, event
ids as payload. Wall and CPU time are those of the whole process, memory is its peak RSS.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
SOURCES = os.pathsep.join(str(ROOT / stage) for stage in ("profile", "parse", "reports"))
PROCESSES = 4
COLUMNS = (
    "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, "
    "color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, "
    "uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, "
    "floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT"
)
SCRIPT = (
    "import sys; from pathlib import Path; from zeropeak.parse.foreign import parse_files; "
    "parse_files([Path(sys.argv[1])], Path(sys.argv[2]))"
)


def names() -> list[str]:
    layers = ("attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    kinds = ("fetch", "prefetch", "wait", "release", "free")
    return [f"{kind} layers.{layer}.{part}" for kind in kinds for layer in range(32) for part in layers]


def ranges(count: int, threads: list[int]) -> Iterator[tuple[object, ...]]:
    chance = random.Random(0)
    known = len(names())
    for number in range(count):
        process, name, start = number % PROCESSES, chance.randrange(known), 1000 + number * 700
        event = (process << 40) | (number // PROCESSES + 1)
        yield (start, start + chance.randrange(200, 600), 59, name % 5, None, threads[process], name, 1, event)


def generate(path: Path, count: int) -> None:
    """Write an export with so many ranges; an existing one is kept."""
    if path.exists():
        return
    db = sqlite3.connect(path)
    db.executescript(f"""
        PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
        CREATE TABLE NVTX_EVENTS ({COLUMNS});
        CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
        INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000);
        CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
    """)
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names()))
    threads = [(1 << 48) | (pid << 24) | pid for pid in range(700, 700 + PROCESSES)]
    insert = (
        "INSERT INTO NVTX_EVENTS (start, end, eventType, category, text, globalTid, textId, domainId, int64Value) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    db.executemany(insert, [(1, None, 75, None, "zeropeak", thread, None, 1, None) for thread in threads])
    db.executemany(insert, ranges(count, threads))
    db.commit()
    db.close()


def measure(path: Path, out: Path) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and peak GB of one parse in a process of its own."""
    shutil.rmtree(out, ignore_errors=True)
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path), str(out)], env={**os.environ, "PYTHONPATH": SOURCES}
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"parsing {path} failed")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the exports and tables")
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000_000, 10_000_000])
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    print("| NVTX rows | wall | CPU | peak RSS | rows/s |\n|---|---|---|---|---|")
    for count in args.rows:
        path = args.work / f"nvtx-{count}.sqlite"
        generate(path, count)
        wall, cpu, peak = measure(path, args.work / "out")
        print(f"| {count:,} | {wall:.1f} s | {cpu:.1f} s | {peak:.2f} GB | {count / wall:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
