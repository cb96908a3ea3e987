"""The report folder: what is in it, what must never be, and what happens when it cannot be written."""

from __future__ import annotations

import errno
import getpass
import json
import re
import socket
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.written import write_files

from zeropeak.parse.pipeline import parse_run
from zeropeak.profile.errors import UsageError, ZeropeakError
from zeropeak.reports import document, open_run, quality, write_report
from zeropeak.reports.answer import answer
from zeropeak.reports.finding_pages import finding_pages
from zeropeak.reports.findings import IDS, Basis, Finding, Verdict
from zeropeak.reports.pages import Pages
from zeropeak.reports.verdicts import grouped

if TYPE_CHECKING:
    from zeropeak.reports import Run

LONG = "model." + "very_long_module_name." * 12 + "weight$_{x}$"


def make(path: Path, **manifest: Any) -> Run:
    """One rank with one mark, events with unfriendly names, and a curve of three points."""
    (path / "tables").mkdir(parents=True)
    zero = {"stage": 3, "memory_efficient_linear": False, "offload_param": {"nvme_path": "/home/ann/nvme"}}
    about = {"schema": 1, "name": "r", "world_size": 1, "ds_config": {"zero_optimization": zero}, **manifest}
    (path / "run.json").write_text(json.dumps(about))
    event = {
        "rank": 0,
        "event_id": 1,
        "kind": "wait",
        "name": f"wait {LONG}",
        "module": LONG,
        "start_ns": 10,
        "end_ns": 30,
    }
    retained = {
        "rank": 0,
        "step": 0,
        "micro_step": 0,
        "mark": "forward",
        "ts_ns": 40,
        "param_id": 1,
        "param": LONG,
        "module": LONG,
        "size_bytes": 8,
        "storage_id": 1,
        "released_ns": 30,
        "holder": "AddmmBackward0._saved_mat2",
    }
    tables: dict[str, list[dict[str, Any]]] = {
        "ranks": [
            {
                "rank": 0,
                "status": "complete",
                "first_ns": 0,
                "last_ns": 50,
                "linear_wrapped": False,
                "memory_source": "kineto",
                "memory_partial": False,
            }
        ],
        "zero_events": [event, {**event, "event_id": 2, "kind": "free", "name": f"free {LONG}", "start_ns": 30}],
        "marks": [
            {
                "rank": 0,
                "step": 0,
                "micro_step": 0,
                "mark": "forward",
                "ts_ns": 40,
                "allocated_bytes": 16,
                "released_alive_bytes": 8,
                "released_alive_count": 1,
            }
        ],
        "retained": [retained],
        "memory_events": [
            {"rank": 0, "ts_ns": ts, "action": "alloc", "size_bytes": 8, "allocated_bytes": size}
            for ts, size in ((5, 8), (20, 24), (45, 8))
        ],
        "peaks": [{"rank": 0, "scope": "run", "ts_ns": 20, "allocated_bytes": 24, "event_id": 1}],
        "import_stats": [
            {
                "rank": 0,
                "file": "a",
                "what": "frees",
                "severity": "mended",
                "count": 3,
                "detail": "frees in /home/ann/x",
            },
            {"rank": 0, "file": "a", "what": "frees_bytes", "severity": "mended", "count": 2048},
            {
                "rank": 0,
                "file": "a",
                "what": "events_cut",
                "severity": "lost",
                "count": 2,
                "detail": "events without an end",
            },
            {"rank": 0, "file": "a", "what": "nvtx_joined", "severity": "info", "count": 7},
            {"rank": 0, "file": "a", "what": "nvtx_without_event", "severity": "error", "count": 0},
        ],
    }
    write_files(path, tables)
    return open_run(path)


def empty(path: Path) -> Path:
    """A run of two ranks that left nothing."""
    (path / "tables").mkdir(parents=True)
    (path / "run.json").write_text('{"schema": 1, "name": "r", "world_size": 2}')
    return path


def pdf_content(path: Path) -> bytes:
    """The file with every compressed stream opened."""
    raw = path.read_bytes()
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", raw, re.DOTALL)
    opened = []
    for stream in streams:
        try:
            opened.append(zlib.decompress(stream))
        except zlib.error:
            opened.append(stream)
    return raw + b"".join(opened)


def test_the_report_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    result = write_report(tmp_path)
    assert capsys.readouterr() == ("", "")
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == sorted(path.name for path in result.paths)
    assert result.paths[0] == tmp_path / "report" / "report.pdf"
    found = json.loads((tmp_path / "report" / "findings.json").read_text())
    assert (found["schema"], found["run"]) == (1, "r")
    assert sorted(finding["id"] for finding in found["findings"]) == sorted(IDS)
    assert set(found["findings"][0]) == {
        "id",
        "verdict",
        "basis",
        "bytes",
        "rank",
        "step",
        "cause",
        "holder",
        "knob",
        "value",
        "expected",
        "advice",
        "evidence",
    }
    assert result.answer[0].startswith("Rank 0 peaks at 24 B, outside every phase, during wait model.")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []

    content = pdf_content(result.paths[0])
    assert content.count(b"/FontFile2") >= 2  # fonts are embedded
    everything = content + b"".join(path.read_bytes() for path in result.paths[1:])
    for private in (getpass.getuser(), socket.gethostname(), str(Path.home()), str(tmp_path), "/home/ann"):
        assert f"{private}/".encode() not in everything
    assert b"/Author" not in content
    assert b"/CreationDate" not in content


def test_of_very_many_ranks_some_are_in_tables_and_the_page_says_which(tmp_path: Path) -> None:
    peaks = [{"rank": rank, "scope": "run", "ts_ns": 20, "allocated_bytes": 1000 + rank} for rank in range(150)]
    (tmp_path / "run.json").write_text('{"schema": 1, "name": "r", "world_size": 150}')
    write_files(tmp_path, {"ranks": [{"rank": rank, "memory_source": "kineto"} for rank in range(150)], "peaks": peaks})
    run = open_run(tmp_path)
    said: list[str] = []

    class Told(Pages):
        """Pages that remember their text."""

        def heading(self, text: str, size: float = 1, keep_in: float = 0) -> None:
            said.append(text)

        def paragraph(self, text: str, *_: Any, **__: Any) -> None:
            said.append(text)

        def table(self, columns: Any, rows: Any, *_: Any, **__: Any) -> None:
            said.append(f"{len(rows)} rows, {rows[0][0]} to {rows[-1][0]}")

    document._first_page(Told(cast("Any", None), ""), run, answer(run, []), [])
    assert "8 of 150 ranks, from the highest to the lowest peak; 64 are in a table further on." in said
    said.clear()
    document._tables(Told(cast("Any", None), ""), run, [])
    assert "64 of 150 ranks" in said
    assert "64 rows, 0 to 149" in said


def test_the_same_run_gives_the_same_pdf(tmp_path: Path) -> None:
    written = [write_report(empty(tmp_path / place)).paths[0].read_bytes() for place in ("a", "b")]
    assert written[0] == written[1]


def test_a_full_disk_leaves_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.pdf").write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(document, "write", full)
    with pytest.raises(ZeropeakError, match=r"report: cannot be written \(No space left on device\); free some space"):
        write_report(tmp_path)
    assert (tmp_path / "report" / "report.pdf").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report", "run.json", "tables"]


def test_a_report_is_replaced_as_a_whole(tmp_path: Path) -> None:
    empty(tmp_path)
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "memory-rank-7.png").write_text("of an earlier run")
    write_report(tmp_path)
    assert not (tmp_path / "report" / "memory-rank-7.png").exists()


def test_the_empty_run_has_a_report(tmp_path: Path) -> None:
    result = write_report(empty(tmp_path))
    assert result.answer[0] == "The run is empty: no rank left anything behind."
    assert {finding.verdict for finding in result.findings} == {"unknown"}
    assert result.answer[-1] == (
        f"Unknown: {len(IDS)} findings: The rank left nothing behind. Capture again; if the rank dies at its start, "
        "its own error output tells why."
    )


def test_a_moment_of_the_run_gets_a_figure_and_one_outside_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    names = [path.name for path in write_report(tmp_path, at_s=2e-8).paths]
    assert "moment-composition.png" in names
    for outside in (-1, 1.5, float("nan")):
        with pytest.raises(
            UsageError, match=r"s is outside the run, which goes from 0\.000 s to 0\.000 s \(0 is the run's start\)"
        ):
            write_report(tmp_path, at_s=outside)


def test_a_run_that_ended_before_any_rank_wrote_says_so(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema": 1, "name": "r", "world_size": 2, "status": "interrupted"}')
    assert parse_run(tmp_path).ranks == ()
    result = write_report(tmp_path)
    assert result.answer[0] == "The capture ended before any rank wrote anything."
    assert {finding.verdict for finding in result.findings} == {"unknown"}
    assert result.answer[-1] == (
        f"Unknown: {len(IDS)} findings: The rank left nothing behind. Capture again; if the rank dies at its start, "
        "its own error output tells why."
    )


def test_data_quality_lines_come_with_the_serious_ones_first(tmp_path: Path) -> None:
    changes = [{"key": "a", "from": 1, "to": 2, "why": "scaled to tiny"}]
    failure = {"rank": 0, "kind": "exception", "message": "cannot open /home/ann/data.jsonl", "exit_code": 1}
    run = make(tmp_path, world_size=3, status="failed", failure=failure, config_changes=changes)
    assert [line.text for line in quality.lines(run)] == [
        "The run did not end by itself (status failed: exception on rank 0, cannot open …/data.jsonl).",
        "Nothing was captured of ranks 1, 2.",
        "Lost on rank 0: events without an end (2).",
        "Mended on rank 0: frees in …/x (3, 2.00 KiB).",
        "7 NVTX ranges joined to the event log by id, 0 missed.",
        "1 knob of this run differs from the config as given: 1 scaled to tiny. The page on knobs lists them.",
    ]


class Recorder:
    """Stands in for Pages: keeps the texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def heading(self, text: str, *_: object, **__: object) -> None:
        self.texts.append(text)

    def paragraph(self, text: str, label: str = "", *_: object, **__: object) -> None:
        self.texts.append(f"{label}: {text}" if label else text)

    def line(self, text: str) -> None:
        self.texts.append(text)

    def page_unless_fresh(self, _: float) -> None: ...

    def space(self, _: float) -> None: ...


def test_the_page_on_findings_has_each_in_full_and_the_others_with_what_was_measured() -> None:
    about: dict[str, Any] = {
        "headline": "It is so.",
        "advice": "Do this. Or that.",
        "modules": ["m"],
        "notes": ["By autograd."],
    }
    sure = Finding("rank-skew", Verdict.CONFIRMED, Basis.MEASURED, 0, bytes=1 << 20, cause="x", **about)
    rest = [Finding(f"a{n}", verdict, Basis.MEASURED, 0, headline=f"{n}.") for n, verdict in enumerate(Verdict)][3:]
    pages = Recorder()
    finding_pages(cast("Pages", pages), grouped([sure, *rest], 2, 0))
    assert pages.texts == [
        "Findings",
        "Some ranks peak higher than others (rank-skew)",
        "confirmed on rank 0, cause x, 1.00 MiB",
        "What: It is so.",
        "Held by: By autograd.",
        "Modules: m",
        "Advice: Do this. Or that.",
        "Not known",
        "a3 on rank 0: 3.",
        "Ruled out",
        "a4 on rank 0: 4.",
        "Cannot occur in this run",
        "a5 on rank 0: 5.",
    ]
