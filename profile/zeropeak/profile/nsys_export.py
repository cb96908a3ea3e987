"""From what ``nsys profile`` left behind to a whole sqlite file without private data.

nsys exits 0 after a failed import, so only the files count. Every report holds the environment of the profiled
processes (tokens included), their command lines, their output, the user and the host: :func:`scrub` leaves only what
is on a list of things known to be needed, so that what a later nsys adds is left out too.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sqlite3
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from zeropeak.profile.errors import TraceError
from zeropeak.profile.nsys_find import IMPORTER, Nsys

if TYPE_CHECKING:
    from collections.abc import Iterable

_EXPORT_SECONDS: Final = 1800.0

# Tables that hold events, numbers and names of GPUs and kernels; matched from the start.
_KEPT_TABLES: Final = (
    "ANALYSIS_DETAILS", "CUBLAS_EVENTS", "CUDA_", "CUDNN_EVENTS", "CUPTI_ACTIVITY_KIND_", "DIAGNOSTIC_EVENT", "ENUM_",
    "EXPORT_META_DATA", "GPU_", "META_DATA_CAPTURE", "META_DATA_EXPORT", "NVTX_", "PROCESSES", "PROFILER_OVERHEAD",
    "StringIds", "TARGET_INFO_CUDA_", "TARGET_INFO_GPU", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV",
    "ThreadNames", "sqlite_",
)  # fmt: skip

# Rows of the name-and-value tables that stay; SQL LIKE patterns.
_KEPT_ROWS: Final = {
    "TARGET_INFO_SYSTEM_ENV": (
        "CpuCores", "CpuArchitecture", "CpuDescription", "NvDriverVersion", "CudaDriverVersion", "OsDescription",
        "HardwarePlatform", "HasDiscreteGpu",
    ),
    "META_DATA_CAPTURE": (
        "CAPTURE_EVENT_TYPE", "START_DELAY_MS", "RUN_DURATION_MS", "PROCESS_%:COLLECT_%", "PROCESS_%:CUDA_%",
    ),
    "META_DATA_EXPORT": ("EXPORT_PRODUCT_%", "EXPORT_SCHEMA_%", "EXPORT_PLATFORM", "EXPORT_ARCH", "EXPORT_TIME_UTC"),
    "EXPORT_META_DATA": ("EXPORT_PRODUCT_%", "EXPORT_SCHEMA_%", "EXPORT_PLATFORM", "EXPORT_ARCH", "EXPORT_TIME_UTC"),
}  # fmt: skip

# The host's name, the time zone, the serial number and paths of a GPU.
_BLANKED: Final = {
    "TARGET_INFO_SYSTEM_ENV": ("devStateName",),
    "TARGET_INFO_SESSION_START_TIME": ("localTime",),
    "TARGET_INFO_GPU": ("uuid", "ctxswDevPath", "ctrlDevPath"),
}

# Columns that hold ids of StringIds, for files whose CREATE TABLE has no comments saying so.
_STRING_COLUMN: Final = re.compile(r"(?:textId|nameId|NameId|TextId|demangledName|shortName|mangledName)$")
_ABSOLUTE_PATH: Final = re.compile(r"(?<![\w.])/[^\s,;:'\"]+")

# A serialized GlobalTid is the process's GlobalPid plus the thread in the low 24 bits.
_PROCESS_OF_THREAD: Final = "& ~16777215"


@dataclass(frozen=True)
class Scrubbed:
    """What :func:`scrub` took out.

    Args:
        tables: names of the tables dropped whole.
        rows: rows deleted from the tables that stayed.
    """

    tables: tuple[str, ...]
    rows: int


def to_sqlite(
    nsys: Nsys,
    report_base: Path,
    *,
    temporary: Path | None = None,
    ranges_expected: bool = True,
    home: str | None = None,
) -> Path:
    """Exports a finished capture and scrubs the export; the file appears under its name only when it is whole.

    Args:
        nsys: the version that recorded it: another version's importer may crash on a ``.qdstrm``.
        report_base: the report's path without ``.nsys-rep``, as given to ``nsys profile --output``.
        temporary: the ``TMPDIR`` that nsys ran with. An nsys that was interrupted twice, or could not write its
            output, leaves the recording there.
        ranges_expected: fail when no NVTX range was recorded.
        home: home folder to take out of texts; the user's own by default.

    Returns:
        ``<report_base>.sqlite``.

    Raises:
        TraceError: there is no recording, it cannot be imported or exported, or the export is not whole.
    """
    report = Path(f"{report_base}.nsys-rep")
    if not _has_bytes(report):
        _import(nsys, report, _recording(report_base, temporary))
    final = Path(f"{report_base}.sqlite")
    partial = Path(f"{report_base}.exporting.sqlite")
    partial.unlink(missing_ok=True)
    try:
        said = _run(
            [str(nsys.path), "export", "--type=sqlite", "--force-overwrite=true", f"--output={partial}", str(report)],
            {},
        )
        if not _has_bytes(partial):
            raise TraceError(report, f"nsys {nsys.version} could not export it to sqlite: {said}")
        check(partial, ranges_expected=ranges_expected)
        scrub(partial, home=home)
        partial.replace(final)
    finally:
        partial.unlink(missing_ok=True)
    return final


def check(sqlite: Path, *, ranges_expected: bool = True) -> None:
    """Raises TraceError when an export is empty, cut, not nsys's, or lacks the ranges that must be there."""
    if not _has_bytes(sqlite):
        raise TraceError(sqlite, "is empty; export it again from the .nsys-rep: nsys export --type=sqlite")
    connection = sqlite3.connect(f"file:{_quoted(sqlite)}?mode=ro", uri=True)
    try:
        if (state := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise TraceError(sqlite, f"is damaged ({state}); export it again: nsys export --type=sqlite")
        tables = _tables(connection)
        if "StringIds" not in tables:
            raise TraceError(sqlite, "is no export of nsys: it has no table StringIds")
        if ranges_expected and (
            "NVTX_EVENTS" not in tables or not connection.execute("SELECT 1 FROM NVTX_EVENTS LIMIT 1").fetchone()
        ):
            raise TraceError(
                sqlite,
                "nsys recorded no NVTX range; was it run with --trace=nvtx, and is nvtx 0.2.11 installed? "
                "(newer ones record nothing under nsys before 2025)",
            )
    except sqlite3.DatabaseError as error:
        raise TraceError(
            sqlite, f"is no whole sqlite file ({error}); export it again: nsys export --type=sqlite"
        ) from error
    finally:
        connection.close()


def scrub(sqlite: Path, *, home: str | None = None) -> Scrubbed:
    """Takes everything private out of an export, in place: the bytes are gone from the file, not only from the tables.

    What stays: NVTX, CUDA and GPU events, the strings they refer to, the profiled processes by program name, the
    machine's kind (CPU, driver, OS), versions, and the start of the session in UTC. Names of ranges are the profiled
    program's own and stay, with the home folder written as ``~``.

    Args:
        sqlite: an export of nsys.
        home: home folder to take out of texts; the user's own by default.

    Raises:
        TraceError: not a sqlite file.
    """
    home = str(Path.home()) if home is None else home
    connection = sqlite3.connect(sqlite, isolation_level=None)
    try:
        connection.create_function("without_paths", 1, lambda text: text and _ABSOLUTE_PATH.sub("<path>", text))
        connection.execute("PRAGMA secure_delete = ON")
        # No journal file: it would hold what is being taken out. The file is a copy that can be exported again.
        connection.execute("PRAGMA journal_mode = OFF")
        dropped = sorted(name for name in _tables(connection) if not name.startswith(_KEPT_TABLES))
        for table in dropped:
            connection.execute(f'DROP TABLE "{table}"')
        tables = _tables(connection)
        rows = _keep_rows(connection, tables) + _keep_processes(connection, tables) + _keep_strings(connection, tables)
        _blank(connection, tables, home)
        connection.execute("VACUUM")
    except sqlite3.DatabaseError as error:
        raise TraceError(sqlite, f"cannot be cleared of private data ({error})") from error
    finally:
        connection.close()
    return Scrubbed(tuple(dropped), rows)


def mend(nsys: Nsys, cache: Path) -> Nsys:
    """Returns an nsys that finds its importer, for installations that keep the two apart as Debian's packages do.

    Debian's ``nsys`` looks for ``host-linux-x64`` beside its own real folder, where there is none, and every report is
    left unimported. A folder of links with a copy of the executable (which finds its folder through ``/proc``) puts
    them side by side. Whole installations come back as they are; so does a broken one when ``cache`` cannot be written.

    Args:
        nsys: as found.
        cache: folder for the links; see ``nsys_find.install_folder``.
    """
    executable = nsys.path.resolve()
    if nsys.importer is None or nsys.importer.parent.parent.resolve() == executable.parent.parent:
        return nsys
    target = executable.parent
    if not target.name.startswith("target-linux-"):
        return nsys
    status = executable.stat()
    key = hashlib.sha256(f"{executable} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:12]
    folder = cache / f"links-{key}"
    if not (folder / "bin" / "nsys").exists():
        staging = cache / f".links-{key}.{os.getpid()}"
        try:
            _link(executable, nsys.importer.parent.resolve(), staging)
            staging.rename(folder)
        except OSError:
            # Another process made the same folder first, or the cache cannot be written: then `to_sqlite` imports.
            shutil.rmtree(staging, ignore_errors=True)
            if not (folder / "bin" / "nsys").exists():
                return nsys
    return replace(nsys, path=folder / "bin" / "nsys", importer=folder / nsys.importer.parent.name / IMPORTER)


def _link(executable: Path, host: Path, folder: Path) -> None:
    target = folder / executable.parent.name
    target.mkdir(parents=True)
    for entry in executable.parent.iterdir():
        if entry.name == executable.name:
            shutil.copy2(entry, target / entry.name)
        else:
            (target / entry.name).symlink_to(entry)
    (folder / host.name).symlink_to(host)
    (folder / "bin").mkdir()
    (folder / "bin" / "nsys").symlink_to(Path("..") / target.name / executable.name)


def _recording(report_base: Path, temporary: Path | None) -> Path:
    """Returns the newest thing that nsys recorded in place of the report."""
    left = [Path(f"{report_base}.qdstrm")]
    if temporary is not None:
        left += [*temporary.glob("nsys-report-*.qdstrm"), *temporary.glob("nsys-report-*.nsys-rep")]
    whole = [path for path in left if _has_bytes(path)]
    if not whole:
        raise TraceError(
            f"{report_base}.nsys-rep",
            "nsys wrote no report: it was killed, or could not write there; the event log of the run is still readable",
        )
    return max(whole, key=lambda path: path.stat().st_mtime_ns)


def _import(nsys: Nsys, report: Path, recording: Path) -> None:
    if recording.suffix == ".nsys-rep":
        shutil.move(recording, report)
        return
    if nsys.importer is None:
        raise TraceError(
            recording,
            f"nsys {nsys.version} at {nsys.path} did not import its recording, and {IMPORTER} is not beside it; "
            "install NVIDIA's whole package, or run `./launch.sh setup` with NSYS unset",
        )
    folder = nsys.importer.parent
    search = ":".join(filter(None, (str(folder), os.environ.get("LD_LIBRARY_PATH"))))
    said = _run([str(nsys.importer), "-i", str(recording), "-o", str(report)], {"LD_LIBRARY_PATH": search})
    if not _has_bytes(report):
        raise TraceError(recording, f"the importer of nsys {nsys.version} failed: {said}")
    recording.unlink()


def _run(command: list[str], environ: dict[str, str]) -> str:
    """Runs to the end and returns the last line of what it printed: its exit status is not to be trusted."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_EXPORT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{Path(command[0]).name} did not end in {_EXPORT_SECONDS:.0f} s"
    except OSError as error:
        return f"{command[0]} does not run ({error.strerror})"
    # Progress bars overwrite themselves with carriage returns.
    lines = [line.strip() for line in re.split(r"[\r\n]+", done.stdout) if line.strip() and "%" not in line]
    return lines[-1] if lines else f"exit status {done.returncode}, no message"


def _has_bytes(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _quoted(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _tables(connection: sqlite3.Connection) -> dict[str, str]:
    """Name -> CREATE TABLE statement."""
    return {
        name: sql or "" for name, sql in connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
    }


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]


def _keep_rows(connection: sqlite3.Connection, tables: Iterable[str]) -> int:
    deleted = 0
    for table, patterns in _KEPT_ROWS.items():
        if table in tables:
            kept = " OR ".join("name LIKE ?" for _ in patterns)
            deleted += connection.execute(f'DELETE FROM "{table}" WHERE NOT ({kept})', patterns).rowcount
    return deleted


def _keep_processes(connection: sqlite3.Connection, tables: Iterable[str]) -> int:
    """nsys lists every process of the machine; those that recorded nothing are nobody's business."""
    connection.execute("CREATE TEMP TABLE profiled (globalPid INTEGER PRIMARY KEY)")
    for table in tables:
        columns = _columns(connection, table) if table not in ("PROCESSES", "ThreadNames") else []
        for column, process in (("globalTid", f"globalTid {_PROCESS_OF_THREAD}"), ("globalPid", "globalPid")):
            if column in columns:
                connection.execute(
                    f'INSERT OR IGNORE INTO profiled SELECT DISTINCT {process} FROM "{table}" WHERE {column} > 0'
                )
    deleted = 0
    for table, process in (("PROCESSES", "globalPid"), ("ThreadNames", f"globalTid {_PROCESS_OF_THREAD}")):
        if table in tables:
            deleted += connection.execute(
                f"DELETE FROM {table} WHERE {process} NOT IN (SELECT globalPid FROM profiled)"
            ).rowcount
    if "PROCESSES" in tables:
        for row, name in connection.execute("SELECT rowid, name FROM PROCESSES").fetchall():
            program = Path((name or "").split(" ")[0]).name
            connection.execute("UPDATE PROCESSES SET name = ? WHERE rowid = ?", (program, row))
    connection.execute("DROP TABLE profiled")
    return deleted


def _keep_strings(connection: sqlite3.Connection, tables: dict[str, str]) -> int:
    """Deletes the strings that nothing refers to any more: environments and output lie among them."""
    connection.execute("CREATE TEMP TABLE used (id INTEGER PRIMARY KEY)")
    for table, sql in tables.items():
        said = {line.split()[0] for line in sql.splitlines() if "StringIds(id)" in line}
        for column in _columns(connection, table) if table != "StringIds" else []:
            if column in said or _STRING_COLUMN.search(column):
                connection.execute(
                    f'INSERT OR IGNORE INTO used SELECT DISTINCT "{column}" FROM "{table}" WHERE "{column}" IS NOT NULL'
                )
    deleted = connection.execute("DELETE FROM StringIds WHERE id NOT IN (SELECT id FROM used)").rowcount
    connection.execute("DROP TABLE used")
    return deleted


def _blank(connection: sqlite3.Connection, tables: Iterable[str], home: str) -> None:
    for table, columns in _BLANKED.items():
        for column in columns:
            if table in tables and column in _columns(connection, table):
                connection.execute(f'UPDATE "{table}" SET "{column}" = \'\'')
    if "DIAGNOSTIC_EVENT" in tables:
        connection.execute("UPDATE DIAGNOSTIC_EVENT SET text = without_paths(text)")
    if len(home) > 1:
        for table, column in (("StringIds", "value"), ("NVTX_EVENTS", "text"), ("NVTX_EVENTS", "jsonText")):
            if table in tables and column in _columns(connection, table):
                connection.execute(
                    f'UPDATE "{table}" SET "{column}" = replace("{column}", ?, \'~\') WHERE instr("{column}", ?)',
                    (home, home),
                )
