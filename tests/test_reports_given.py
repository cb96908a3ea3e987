"""Reports of files that zeropeak did not capture: what they tell, and plain words for what they do not."""

from __future__ import annotations

import gzip
import json
import sqlite3
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from zeropeak.cli.main import main
from zeropeak.parse.foreign import parse_files
from zeropeak.parse.pipeline import parse_run
from zeropeak.profile.errors import UsageError
from zeropeak.reports import open_run, quality, write_report
from zeropeak.reports.answer import answer
from zeropeak.reports.figures import drawings
from zeropeak.reports.findings import Verdict, find_all

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeRun

PID = 700
TID = (1 << 48) | (PID << 24) | 701


def trace(path: Path, rank: int, world_size: int = 2, *, memory: bool = True, host: str = "secret-host") -> Path:
    """A trace of torch.profiler with three allocations, as someone's own script makes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 4, "dur": 60}
    ]
    for n, (size, total) in enumerate([(512, 512), (4096, 4608), (-4096, 512)] if memory else []):
        args = {"Bytes": size, "Addr": 4096 * (1 + (total > 512 or size < 0)), "Device Id": 0, "Device Type": 1,
                "Total Allocated": total, "Total Reserved": 8192}  # fmt: skip
        events.append({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 5.0 + n,
                       "args": args})  # fmt: skip
    info = {"backend": "nccl", "rank": rank, "world_size": world_size, "nccl_version": "2.28.9"}
    content = {"schemaVersion": 1, "distributedInfo": info, "cuda_runtime_version": 12040, "host_name": host,
               "baseTimeNanoseconds": 10**18, "traceEvents": events}  # fmt: skip
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def export(path: Path) -> Path:
    """An nsys export of stock DeepSpeed: a forward with one gather, and memory taken from the device."""
    db = sqlite3.connect(path)
    db.executescript("""
        CREATE TABLE NVTX_EVENTS (start, end, eventType, text, textId, globalTid, domainId, int64Value);
        CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start, globalPid, deviceId, address, bytes, memKind,
            memoryOperationType);
        CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs);
        INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000);
    """)
    db.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, NULL, ?, 0, NULL)", [
        (1000, 9000, "DeepSpeedEngine.forward", TID),
        (2000, 3000, "PartitionedParameterCoordinator.fetch_sub_module", TID),
        (2100, 2200, "PartitionedParameterCoordinator.__all_gather_params", TID),
    ])  # fmt: skip
    memory = [(500, 1 << 21, 0), (2150, 1 << 21, 0), (8000, 1 << 21, 1)]
    db.executemany("INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (?, ?, 0, 64, ?, 2, ?)",
                   [(ts, TID & ~0xFFFFFF, size, kind) for ts, size, kind in memory])  # fmt: skip
    db.commit()
    db.close()
    return path


def report(out: Path) -> tuple[list[str], list[str], set[str]]:
    """The answer, what is said of the data, and the files of the report."""
    result = write_report(out)
    return list(result.answer), [line.text for line in quality.lines(open_run(out))], {p.name for p in result.paths}


def test_traces_are_reported_and_nothing_is_made_up(tmp_path: Path) -> None:
    files = [trace(tmp_path / "home" / "ann" / f"t{rank}.json.gz", rank) for rank in (0, 1)]
    parse_files(files, tmp_path / "out", versions={"zeropeak": "1.2"})
    said, data, names = report(tmp_path / "out")
    assert said[0] == "Both ranks peak alike at 4.50 KiB; no file tells during which ZeRO event."
    assert any("No file tells which ZeRO stage ran" in line for line in said)
    assert any(line.startswith("Made of t0.json.gz (torch.profiler trace, rank 0), t1.json.gz (") for line in data)
    assert "no file says what a block holds" in data[0]
    assert not any("clock" in line for line in data), "both name the same machine"
    assert names == {"report.pdf", "findings.json", "ranks.png", *(
        f"{name}-rank-{rank}.png" for name in ("memory", "peak-zoom") for rank in (0, 1))}  # fmt: skip
    told = {f.id: f.verdict for f in find_all(open_run(tmp_path / "out")) if f.verdict is not Verdict.UNKNOWN}
    # What the curves alone carry; all that needs ZeRO's events is unknown.
    assert told == {
        "cached-not-allocated": "confirmed",
        "history-incomplete": "confirmed",
        "rank-skew": "ruled_out",
    }
    written = (tmp_path / "out" / "run.json").read_text()
    assert "ann" not in written
    assert "secret-host" not in written
    manifest = json.loads(written)
    assert manifest["versions"] == {"zeropeak": "1.2", "CUDA runtime": "12.4", "NCCL": "2.28.9"}
    assert (manifest["tool"], manifest["world_size"], manifest["backend"]) == ("files", 2, "nccl")
    assert manifest["sources"] == [
        {"file": f"t{rank}.json.gz", "kind": "kineto", "ranks": [rank], "partial": False} for rank in (0, 1)
    ]


def test_words_about_events_and_phases_are_left_out_where_no_file_has_any(tmp_path: Path) -> None:
    parse_files([trace(tmp_path / "a.json.gz", 0, 1)], tmp_path / "out")
    run = open_run(tmp_path / "out")
    page = answer(run, find_all(run))
    texts = " ".join([page.headline, *(p.text for p in page.paragraphs), *(d.caption for d in drawings(run))])
    for wrong in ("in flight", "outside every phase", "vermilion", "released", "0 B", "first forward", " ;"):
        assert wrong not in texts.replace("weights that it released", "").replace("Released weights", ""), wrong
    assert "Not known: all 4.50 KiB are unattributed; only zeropeak's own event log" in texts
    assert "after the files' begin" in texts


def test_a_rank_without_a_file_is_said_so(tmp_path: Path) -> None:
    parse_files([trace(tmp_path / "a.json.gz", 1)], tmp_path / "out")
    said, data, _ = report(tmp_path / "out")
    assert data[0] == "No file was given of rank 0."
    assert "left nothing behind" not in " ".join(said)


def test_clocks_that_could_not_be_compared_are_said_so(tmp_path: Path) -> None:
    files = [trace(tmp_path / f"t{rank}.json.gz", rank, 3, host=f"secret-{rank}") for rank in (0, 1, 2)]
    parse_files(files, tmp_path / "out")
    _, data, _ = report(tmp_path / "out")
    assert data[-1].startswith("The clock of ranks 1, 2 is as in the files: too few collectives in common")


def test_a_trace_without_memory_says_what_would_bring_it(tmp_path: Path) -> None:
    parse_files([trace(tmp_path / "a.json.gz", 0, 1, memory=False)], tmp_path / "out")
    said, data, names = report(tmp_path / "out")
    assert said[0] == "No rank has a memory curve, so where memory peaked is not known."
    assert "record torch.profiler with profile_memory=True" in data[0]
    assert names == {"report.pdf", "findings.json"}


def test_an_export_shows_its_events_over_reserved_memory(tmp_path: Path) -> None:
    parse_files([export(tmp_path / "a.sqlite")], tmp_path / "out")
    said, data, names = report(tmp_path / "out")
    assert said[0] == (
        "Allocated memory was not recorded, so where it peaked is not known; the allocator reserved up to 4.00 MiB "
        "(rank 0)."
    )
    assert data[0].startswith("No curve of allocated memory for rank 0: record")
    assert names == {"report.pdf", "findings.json", "memory-rank-0.png"}
    assert pd.read_parquet(tmp_path / "out" / "tables" / "zero_events")["kind"].isna().tolist() == [True]
    assert json.loads((tmp_path / "out" / "run.json").read_text())["world_size"] is None


def test_our_own_ranges_without_the_log_are_told_as_far_as_they_go(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(ranks=1)
    parse_files([run / "raw" / "node-0.sqlite", run / "raw" / "rank-0" / "torch.json.gz"], tmp_path / "out",
                ranks={run / "raw" / "rank-0" / "torch.json.gz": 0})  # fmt: skip
    said, _, _ = report(tmp_path / "out")
    assert "in the backward" in said[0] or "in the forward" in said[0]
    assert "already released" not in " ".join(said)


def test_the_command_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = trace(tmp_path / "a.json.gz", 0, 1), tmp_path / "my runs"
    assert main(["parse", str(file), "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"For the report: zeropeak report '{out}'"
    assert main(["parse", str(file), "--out", str(out)]) == 0, "its own folder may be written again"
    assert main(["report", str(out)]) == 0
    with pytest.raises(UsageError, match="give those files again: zeropeak parse FILES --out"):
        parse_run(out)
    assert len(pd.read_parquet(out / "tables" / "ranks")) == 1


def test_a_run_that_was_captured_is_not_overwritten(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(ranks=1)
    assert main(["parse", str(trace(tmp_path / "a.json.gz", 0, 1)), "--out", str(run)]) == 2
    assert "is a run of its own" in capsys.readouterr().err
