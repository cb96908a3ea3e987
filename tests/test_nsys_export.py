"""From a capture's leftovers to a whole sqlite file without private data; both traps that lose every range."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zeropeak.profile.errors import TraceError
from zeropeak.profile.nsys_export import check, mend, scrub, to_sqlite
from zeropeak.profile.nsys_fetch import fetch
from zeropeak.profile.nsys_find import Nsys, cache_folder, find, profile_args

if TYPE_CHECKING:
    from collections.abc import Iterator

CANARY = "canary-5ecret"
EXPORT = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
INSERT INTO StringIds VALUES (1, 'fetch layer'), (2, 'TOKEN=canary-5ecret'), (3, 'python'), (4, '/home/ann/x backward');
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, globalTid INTEGER,
    textId INTEGER, -- REFERENCES StringIds(id)
    domainId INTEGER, int64Value INTEGER);
INSERT INTO NVTX_EVENTS VALUES (1, 2, NULL, 16777217, 1, 1, 7), (3, 4, 'in /home/ann/data', 16777217, 4, 1, 8);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
INSERT INTO PROCESSES VALUES (16777216, 1, '/home/ann/bin/python train.py'), (33554432, 2, 'canary-5ecret');
CREATE TABLE ThreadNames (nameId INTEGER, globalTid INTEGER);
INSERT INTO ThreadNames VALUES (3, 16777217), (2, 33554433);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (devStateName TEXT, name TEXT, value TEXT);
INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES
    ('canary-5ecret', 'CpuCores', '2'), ('', 'DeviceEnvironment', 'canary-5ecret');
CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ARGUMENT_1', 'canary-5ecret'), ('RUN_DURATION_MS', '8');
CREATE TABLE DIAGNOSTIC_EVENT (text TEXT);
INSERT INTO DIAGNOSTIC_EVENT VALUES ('Number of NVTX events collected: 2, see /home/ann/log.txt for more');
CREATE TABLE ProcessStreams (contentId INTEGER);
INSERT INTO ProcessStreams VALUES (2);
CREATE TABLE A_TABLE_OF_A_LATER_NSYS (what TEXT);
INSERT INTO A_TABLE_OF_A_LATER_NSYS VALUES ('canary-5ecret');
"""
# An nsys that exports what lies in `export`, and an importer that turns a recording into a report.
TOOL = """#!/bin/sh
for a; do case $a in --output=*) cp "{export}" "${{a#--output=}}" ;; esac; done
echo "Exporting: [100%]"; echo "{said}"
"""
IMPORTER = """#!/bin/sh
[ "$LD_LIBRARY_PATH" = "$(dirname "$0")" ] || exit 0
mv "$2" "$4"; touch "$2"
"""


@pytest.fixture
def nsys(tmp_path: Path) -> Nsys:
    export = tmp_path / "export"
    connection = sqlite3.connect(export)
    connection.executescript(EXPORT)
    connection.close()
    tool, importer = tmp_path / "nsys", tmp_path / "host-linux-x64/QdstrmImporter"
    importer.parent.mkdir()
    for path, text in ((tool, TOOL.format(export=export, said="An unknown error occurred.")), (importer, IMPORTER)):
        path.write_text(text)
        path.chmod(0o755)
    return Nsys(tool, "2022.4.2.1", importer, "PATH")


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_a_report_becomes_a_scrubbed_sqlite(tmp_path: Path, nsys: Nsys) -> None:
    (tmp_path / "node-0.nsys-rep").write_text("report")
    path = to_sqlite(nsys, tmp_path / "node-0", home="/home/ann")
    assert path == tmp_path / "node-0.sqlite"
    assert CANARY.encode() not in path.read_bytes()
    assert not list(tmp_path.glob("*exporting*"))


def test_a_recording_that_nsys_left_unimported_is_imported(
    tmp_path: Path, nsys: Nsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    (tmp_path / "node-0.qdstrm").write_text("recording")
    to_sqlite(nsys, tmp_path / "node-0")
    assert (tmp_path / "node-0.nsys-rep").read_text() == "recording"
    assert not (tmp_path / "node-0.qdstrm").exists()


def test_a_recording_in_the_temporary_folder_is_found(
    tmp_path: Path, nsys: Nsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp/nsys-report-5e10.qdstrm").write_text("recording")
    assert to_sqlite(nsys, tmp_path / "node-0", temporary=tmp_path / "tmp").is_file()


def test_without_an_importer_the_recording_is_kept_and_said(tmp_path: Path, nsys: Nsys) -> None:
    (tmp_path / "node-0.qdstrm").write_text("recording")
    alone = Nsys(nsys.path, nsys.version, None, "PATH")
    with pytest.raises(TraceError, match=r"node-0.qdstrm: .*QdstrmImporter is not beside it.*launch.sh setup"):
        to_sqlite(alone, tmp_path / "node-0")
    assert (tmp_path / "node-0.qdstrm").exists()


def test_no_report_at_all_is_said(tmp_path: Path, nsys: Nsys) -> None:
    with pytest.raises(TraceError, match=r"node-0.nsys-rep: nsys wrote no report"):
        to_sqlite(nsys, tmp_path / "node-0")


def test_an_export_that_fails_with_exit_status_0_is_said(tmp_path: Path, nsys: Nsys) -> None:
    (tmp_path / "node-0.nsys-rep").write_text("report")
    (tmp_path / "export").unlink()
    with pytest.raises(TraceError, match=r"could not export it to sqlite: An unknown error occurred"):
        to_sqlite(nsys, tmp_path / "node-0")
    assert not (tmp_path / "node-0.sqlite").exists()


def test_a_cut_export_never_takes_the_name_of_a_whole_one(tmp_path: Path, nsys: Nsys) -> None:
    (tmp_path / "node-0.nsys-rep").write_text("report")
    whole = (tmp_path / "export").read_bytes()
    (tmp_path / "export").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match=r"damaged|no whole sqlite"):
        to_sqlite(nsys, tmp_path / "node-0")
    assert sorted(path.name for path in tmp_path.glob("node-0*")) == ["node-0.nsys-rep"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("DELETE FROM NVTX_EVENTS", "recorded no NVTX range.*nvtx 0.2.11"),
        ("DROP TABLE NVTX_EVENTS", "recorded no NVTX range"),
        ("DROP TABLE StringIds", "no export of nsys"),
    ],
)
def test_an_export_without_ranges_is_said(tmp_path: Path, nsys: Nsys, change: str, text: str) -> None:
    connection = sqlite3.connect(tmp_path / "export")
    connection.execute(change)
    connection.commit()
    connection.close()
    with pytest.raises(TraceError, match=text):
        check(tmp_path / "export")
    if "NVTX" in change:
        check(tmp_path / "export", ranges_expected=False)


def test_empty_and_foreign_files_are_said(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.touch()
    with pytest.raises(TraceError, match="is empty"):
        check(path)
    path.write_text("no database" * 100)
    with pytest.raises(TraceError, match="no whole sqlite file"):
        check(path)
    with pytest.raises(TraceError, match="cannot be cleared"):
        scrub(path)


def test_scrubbing_keeps_the_events_and_what_they_refer_to(tmp_path: Path, nsys: Nsys) -> None:
    path = tmp_path / "export"
    scrubbed = scrub(path, home="/home/ann")
    assert scrubbed.tables == ("A_TABLE_OF_A_LATER_NSYS", "ProcessStreams")
    assert scrubbed.rows == 5
    assert CANARY.encode() not in path.read_bytes()
    assert b"/home/ann" not in path.read_bytes()
    assert rows(path, "SELECT * FROM StringIds") == [(1, "fetch layer"), (3, "python"), (4, "~/x backward")]
    assert rows(path, "SELECT textId, int64Value, text FROM NVTX_EVENTS") == [(1, 7, None), (4, 8, "in ~/data")]
    assert rows(path, "SELECT * FROM PROCESSES") == [(16777216, 1, "python")]
    assert rows(path, "SELECT * FROM TARGET_INFO_SYSTEM_ENV") == [("", "CpuCores", "2")]
    assert rows(path, "SELECT * FROM META_DATA_CAPTURE") == [("RUN_DURATION_MS", "8")]
    assert rows(path, "SELECT * FROM DIAGNOSTIC_EVENT") == [
        ("Number of NVTX events collected: 2, see <path> for more",)
    ]
    assert scrub(path, home="/home/ann").rows == 0


def test_debians_layout_is_mended_by_links(tmp_path: Path) -> None:
    target = tmp_path / "usr/lib/x86_64-linux-gnu/nsight-systems/target-linux-x64"
    importer = tmp_path / "usr/lib/nsight-systems/host-linux-x64/QdstrmImporter"
    for folder in (target, importer.parent):
        folder.mkdir(parents=True)
    importer.touch()
    (target / "nsys").write_text("binary")
    (target / "libLauncher64.so").touch()
    broken = Nsys(target / "nsys", "2022.4.2.1", importer, "PATH")
    mended = mend(broken, tmp_path / "cache")
    executable = mended.path.resolve()
    assert executable.read_text() == "binary"
    assert (executable.parent / "libLauncher64.so").exists()
    assert (executable.parent.parent / "host-linux-x64/QdstrmImporter").exists()
    assert mend(broken, tmp_path / "cache") == mended
    assert mend(mended, tmp_path / "cache") == mended
    (tmp_path / "file").touch()
    assert mend(broken, tmp_path / "file/cache") == broken, "a cache that cannot be written is no reason to fail"


SCRIPT = """
import nvtx, time
for i in range(50):
    nvtx.push_range("fetch layer", domain="zeropeak", payload=i)
    time.sleep(0.02)
    nvtx.pop_range(domain="zeropeak")
"""


@pytest.fixture
def marker() -> Iterator[str]:
    """A value in the environment of all that a test starts; what is left of it is ended afterwards."""
    marker = f"zeropeak-test-{os.getpid()}-{time.monotonic_ns()}"
    yield marker
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = marker.encode() in (process / "environ").read_bytes()
        except OSError:
            continue
        if ours:
            os.kill(int(process.name), signal.SIGKILL)


@pytest.mark.slow
def test_a_real_capture_keeps_every_range_and_nothing_private(tmp_path: Path, marker: str) -> None:
    pytest.importorskip("nvtx")
    cache = cache_folder(os.environ)
    found = find(os.environ) or fetch(cache, print)
    nsys = mend(found, cache / "nsys")
    (tmp_path / "tmp").mkdir()
    private = {
        "ZEROPEAK_TEST": marker,
        "API_TOKEN": CANARY,
        "USER": "user-canary",
        "LOGNAME": "user-canary",
        "HOME": f"{tmp_path}/home-canary",
        "TMPDIR": str(tmp_path / "tmp"),
    }
    subprocess.run(
        [
            *profile_args(nsys, tmp_path / "node-0", cuda=False),
            sys.executable,
            "-c",
            f"{SCRIPT}\nprint('output-canary')",
        ],
        env={**os.environ, **private},
        check=False,
        capture_output=True,
        timeout=120,
    )
    path = to_sqlite(nsys, tmp_path / "node-0", temporary=tmp_path / "tmp", home=private["HOME"])
    ids = rows(
        path,
        "SELECT int64Value FROM NVTX_EVENTS JOIN StringIds ON textId = id "
        "WHERE value = 'fetch layer' AND end > start ORDER BY int64Value",
    )
    assert ids == [(i,) for i in range(50)]
    content = path.read_bytes()
    for secret in (
        CANARY,
        marker,
        "user-canary",
        "home-canary",
        "output-canary",
        str(tmp_path),
        str(Path.home()) + "/",
    ):
        assert secret.encode() not in content
    for (table,) in rows(path, "SELECT name FROM sqlite_master WHERE type = 'table'"):
        for row in rows(path, f'SELECT * FROM "{table}"'):
            assert socket.gethostname() not in row
