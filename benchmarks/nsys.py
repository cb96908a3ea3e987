"""nsys exports to tables beside ``nsys export`` itself and nsys-ai.

Two kinds of data: generated exports with the columns of nsys 2025.3, and ranges that the installed nsys recorded from
a program (``nsys_emit.py``), as ``.nsys-rep`` and exported from it. nsys-ai's parquet cache (``nsys-ai warm``) is the
peer; it accepts no export without GPU kernels, so each process has one.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

from job import ROOT, SOURCES, Job, take_turns, verb
from nsys_emit import PROCESSES, names
from part import Claim, Part, about, environment, head, row, version

from zeropeak.profile.nsys_find import find

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator
    from pathlib import Path

ROWS = (1_000_000, 10_000_000)
PEER = ["nsys-ai==0.3.0", "duckdb==1.5.5", "duckdb-extension-sqlite-scanner==1.5.5"]
"""nsys-ai reads sqlite by an extension of DuckDB, which it would fetch at run time; as a package, it is there."""

RANGES = (
    "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, "
    "color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, "
    "uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, "
    "floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT"
)
KERNELS = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
    "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL, "
    "shortName INTEGER NOT NULL"
)
VERB = "`zeropeak parse`"
INSTALL = (
    "import duckdb, duckdb_extension_sqlite_scanner as found; from pathlib import Path; "
    "file = next(Path(found.__file__).parent.rglob('*.duckdb_extension')); "
    "duckdb.connect().execute(f\"INSTALL '{file}'\")"
)
TEXT = """\
NVTX ranges of four processes in our domain: 640 names behind `textId`, event ids as payload. "generated": an export
with the columns of nsys 2025.3. "recorded": such ranges, recorded by nsys from a small program
(`benchmarks/nsys_emit.py`); `nsys export` turns its `.nsys-rep` into sqlite, zeropeak turns that sqlite into parquet.
zeropeak writes two tables, `nvtx_ranges` and what it made of them, `zero_events`. nsys-ai: `nsys-ai warm`, which writes
the rows as they are to parquet. How exports are read: [decisions/nsys-reader.md](decisions/nsys-reader.md)."""


def ranges(count: int, threads: list[int]) -> Iterator[tuple[object, ...]]:
    """Rows of ranges, in the order of their times."""
    chance, known = random.Random(0), len(names())
    for number in range(count):
        process, name, start = number % PROCESSES, chance.randrange(known), 1000 + number * 700
        event = (process << 40) | (number // PROCESSES + 1)
        yield (start, start + chance.randrange(200, 600), 59, name % 5, threads[process], name, 1, event)


def generate(path: Path, count: int) -> None:
    """Write an export with so many ranges; an existing one is kept."""
    if path.exists():
        return
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    db = sqlite3.connect(partial)
    db.executescript(f"""
        PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
        CREATE TABLE NVTX_EVENTS ({RANGES});
        CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
        INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000);
        CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
    """)
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(name for name, _ in names()))
    threads = [(1 << 48) | (pid << 24) | pid for pid in range(700, 700 + PROCESSES)]
    db.executemany(
        "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId) VALUES (1, 75, 'zeropeak', ?, 1)",
        [(thread,) for thread in threads],
    )
    db.executemany(
        "INSERT INTO NVTX_EVENTS (start, end, eventType, category, globalTid, textId, domainId, int64Value) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        ranges(count, threads),
    )
    add_kernels(db, threads)
    db.close()
    partial.rename(path)


def add_kernels(db: sqlite3.Connection, threads: list[int]) -> None:
    """One kernel a process, named like some text that is there."""
    name = db.execute("SELECT min(id) FROM StringIds").fetchone()[0]
    db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({KERNELS})")
    for thread in threads:
        values = (2000, 2100, 0, 1, 7, 1, thread & ~0xFFFFFF, name, name)
        db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * len(values))})", values)
    db.commit()


def record(nsys: Path, work: Path, count: int) -> tuple[Path, Path]:
    """A report with so many ranges, and an export of it with a kernel a process; both kept below ``work``."""
    report, export = work / f"recorded-{count}.nsys-rep", work / f"recorded-{count}.sqlite"
    if not report.exists():
        program = [sys.executable, str(ROOT / "benchmarks" / "nsys_emit.py"), str(count)]
        command = [
            str(nsys),
            "profile",
            "--trace=nvtx",
            "--sample=none",
            "--cpuctxsw=none",
            "-o",
            str(report.with_suffix("")),
        ]
        run([*command, *program], {"PYTHONPATH": SOURCES})
    if not export.exists():
        partial = export.with_suffix(".partial")
        run([str(nsys), "export", "--type=sqlite", "--force-overwrite=true", f"--output={partial}", str(report)])
        db = sqlite3.connect(partial)
        kept = db.execute("SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 59").fetchone()[0]
        if kept != count:
            raise SystemExit(f"nsys recorded {kept:,} of {count:,} ranges; remove {report} and try again")
        add_kernels(db, [thread for (thread,) in db.execute("SELECT globalTid FROM NVTX_EVENTS WHERE eventType = 75")])
        db.close()
        partial.rename(export)
    return report, export


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run a command that is not measured; its output is shown only when it fails."""
    done = subprocess.run(command, env={**os.environ, **(environment or {})}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def peer_jobs(work: Path, exports: dict[str, Path], notes: list[str]) -> list[Job]:
    """nsys-ai on the same exports; where it cannot be installed, a note says why."""
    try:
        folder = environment(work, "nsys-ai", PEER)
    except subprocess.CalledProcessError as error:
        notes.append(f"nsys-ai did not install: {error.stderr.strip().splitlines()[-1]}")
        return []
    home = work / "nsys-ai-home"
    home.mkdir(exist_ok=True)
    run([str(folder / "python"), "-c", INSTALL], {"HOME": str(home)})
    name = version(folder / "python", "nsys-ai")
    return [
        Job(
            task,
            f"{name} (`warm`)",
            [[str(folder / "nsys-ai"), "warm", str(path)]],
            {"HOME": str(home)},
            (path.with_suffix(".nsys-cache"),),
        )
        for task, path in exports.items()
    ]


def measure(options: Namespace, work: Path) -> Part:
    """Run all and say what was found."""
    exports, found, notes = {}, [], []
    for count in ROWS:
        path = work / f"generated-{count}.sqlite"
        generate(path, count)
        exports[f"{count / 1e6:g} M rows, generated"] = path
    tool = find(os.environ)
    if tool is None:
        notes.append("`nsys export` was not measured: no nsys was found.")
    else:
        report, path = record(tool.path, work, ROWS[-1])
        task = f"{ROWS[-1] / 1e6:g} M rows, recorded"
        exports[task] = path
        out = work / "exported.sqlite"
        command = [str(tool.path), "export", "--type=sqlite", f"--output={out}", str(report)]
        found.append(Job(task, f"`nsys export` {tool.version}", [command], leftovers=(out,)))
    found += [verb(task, [path], work / "out") for task, path in exports.items()]
    found += peer_jobs(work, exports, notes)
    found.sort(key=lambda job: list(exports).index(job.task))
    take_turns(found, options.repeats, options.most_others)
    shutil.rmtree(work / "out", ignore_errors=True)
    lines = head("rows/s")
    lines += [row(job, f"{float(job.task.split()[0]) * 1e6 / job.wall:,.0f}") for job in found]
    peers = list(dict.fromkeys(job.tool.replace("`", "") for job in found if job.tool != VERB))
    said = about(found, options.repeats, ("pyarrow", "numpy"), peers)
    return Part("Nsight Systems exports", TEXT, said, claims(found), lines, notes)


def claims(found: list[Job]) -> list[Claim]:
    """What was asked for, by what was measured."""
    ours = [job for job in found if job.tool == VERB]
    small, large = ours[0], ours[len(ROWS) - 1]
    times = ROWS[-1] / ROWS[0]
    made = [
        Claim("nsys, memory at 10 M rows", " GB", max(job.rss_bytes for job in ours) / 1e9, 0.6),
        Claim(f"nsys, memory at {times:g}x the rows", "x", large.rss_bytes / small.rss_bytes, 1.2),
        Claim(f"nsys, CPU time at {times:g}x the rows / {times:g}", "x", large.cpu / small.cpu / times, 1.1),
    ]
    for job in found:
        if job.tool != VERB and job.task == ours[-1].task:
            what = f"nsys, {job.task}: {job.tool} / zeropeak, wall time"
            made.append(Claim(what, "x", job.wall / ours[-1].wall, None, more_is_better=True))
    return made
