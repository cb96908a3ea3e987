"""Trace files that zeropeak did not capture: which are read, as which ranks."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from zeropeak.parse import workers
from zeropeak.parse.foreign import parse_files
from zeropeak.profile.errors import TraceError, UsageError

if TYPE_CHECKING:
    from tests.conftest import MakeRun


def trace(path: Path, rank: int | None = None, allocated: int = 0) -> Path:
    info = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}}
    events = [
        {
            "ph": "i",
            "cat": "cpu_instant_event",
            "s": "t",
            "name": "[memory]",
            "pid": 1,
            "tid": 1,
            "ts": 5.0 + n,
            "args": {
                "Bytes": size,
                "Addr": 4096,
                "Device Id": 0,
                "Device Type": 1,
                "Total Allocated": total,
                "Total Reserved": 4096,
            },
        }
        for n, (size, total) in enumerate([(512, allocated + 512), (-512, allocated)])
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"schemaVersion": 1, **info, "baseTimeNanoseconds": 10**18, "traceEvents": events})
    path.write_bytes(gzip.compress(content.encode()))
    return path


def table(out: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(out / "tables" / name)


def test_ranks_come_from_the_content_before_the_name(tmp_path: Path) -> None:
    trace(tmp_path / "in" / "a_rank7.json.gz", rank=1)
    trace(tmp_path / "in" / "deep" / "b_rank0.json.gz")
    out = tmp_path / "out"
    assert parse_files([tmp_path / "in"], out).ranks == (0, 1)
    files = set(table(out, "import_stats")["file"]) - {"tables/collectives"}
    assert files == {"a_rank7.json.gz", "deep/b_rank0.json.gz"}


def test_the_user_overrules_the_content(tmp_path: Path) -> None:
    file = trace(tmp_path / "a.json.gz", rank=1)
    assert parse_files([file], tmp_path / "out", ranks={file: 5}).ranks == (5,)
    assert "rank_overruled" in set(table(tmp_path / "out", "import_stats")["what"])


def test_a_single_trace_without_a_rank_is_rank_0(tmp_path: Path) -> None:
    assert parse_files([trace(tmp_path / "a.json.gz")], tmp_path / "out").ranks == (0,)
    assert "rank_assumed" in set(table(tmp_path / "out", "import_stats")["what"])


def test_several_traces_without_ranks_are_asked_for(tmp_path: Path) -> None:
    files = [trace(tmp_path / "a.json.gz"), trace(tmp_path / "b.json.gz")]
    with pytest.raises(UsageError, match=r"say it: --rank a\.json\.gz=N"):
        parse_files(files, tmp_path / "out")
    assert parse_files(files, tmp_path / "out", ranks={files[0]: 0, files[1]: 1}).ranks == (0, 1)


def test_two_traces_of_one_rank_are_refused(tmp_path: Path) -> None:
    files = [trace(tmp_path / "a.json.gz", 3), trace(tmp_path / "b.json.gz", 3)]
    with pytest.raises(UsageError, match="are both of rank 3"):
        parse_files(files, tmp_path / "out")


def test_a_curve_starts_at_what_was_allocated_before_the_trace(tmp_path: Path) -> None:
    parse_files([trace(tmp_path / "a.json.gz", 0, allocated=10_000)], tmp_path / "out")
    assert table(tmp_path / "out", "memory_events")["allocated_bytes"].tolist() == [10_512, 10_000]
    peak = table(tmp_path / "out", "peaks").iloc[0]
    assert (peak["scope"], peak["allocated_bytes"], peak["reserved_bytes"]) == ("run", 10_512, 4096)
    assert table(tmp_path / "out", "peak_composition")["size_bytes"].sum() == 10_512


def test_events_without_addresses_give_a_curve_without_blocks(tmp_path: Path) -> None:
    events = [
        {
            "ph": "i",
            "name": "[memory]",
            "pid": 1,
            "tid": 1,
            "ts": 10**15 + n,
            "args": {"Bytes": size, "Device Id": 0, "Device Type": 1},
        }
        for n, size in enumerate([-64, 256, -32])
    ]
    file = tmp_path / "old.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    summary = parse_files([file], tmp_path / "out")
    assert summary.lost["memory_events_without_address"] == 3
    assert table(tmp_path / "out", "memory_events")["allocated_bytes"].tolist() == [0, 256, 224]
    assert table(tmp_path / "out", "peaks")["allocated_bytes"].tolist() == [256]
    assert len(table(tmp_path / "out", "memory_blocks")) == 0


def test_our_own_ranges_are_events_without_the_log(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(ranks=2)
    for name in ("node-0.sqlite", "rank-0/torch.json.gz", "rank-1/torch.json.gz"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(run / "raw" / name, tmp_path / "in" / name)
    parse_files([tmp_path / "in"], tmp_path / "out")
    events = table(tmp_path / "out", "zero_events")
    assert set(events["source"]) == {"nsys"}
    assert {"fetch", "wait", "release", "free", "reduce", "step"} <= set(events["kind"])
    assert set(table(tmp_path / "out", "phases")["phase"]) == {"init", "forward", "backward", "step"}
    assert set(table(tmp_path / "out", "module_ranges")["module"]) == {"", "layers.0", "layers.1"}
    assert events["event_id"].is_unique
    peaks = table(tmp_path / "out", "peaks")
    assert peaks[peaks["scope"] == "run"]["event_id"].notna().all()


def test_what_a_folder_holds_besides_is_named(tmp_path: Path) -> None:
    trace(tmp_path / "in" / "a.json.gz", 0)
    (tmp_path / "in" / "config.json").write_text('{"a": 1}')
    (tmp_path / "in" / "empty.sqlite").touch()
    (tmp_path / "in" / "notes.txt").write_text("x")
    parse_files([tmp_path / "in"], tmp_path / "out")
    stats = table(tmp_path / "out", "import_stats")
    refused = stats[stats["what"] == "file_refused"].set_index("file")["detail"]
    assert set(refused.index) == {"config.json", "empty.sqlite"}
    assert "no torch.profiler trace" in refused["config.json"]


def test_ranks_are_read_in_processes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WORTH_A_PROCESS_BYTES", 0)
    files = [trace(tmp_path / f"rank-{rank}.json.gz", rank) for rank in (0, 1)]
    alone, together = (parse_files(files, tmp_path / f"{count}", workers=count) for count in (1, 2))
    assert alone.rows == together.rows
    files[1].write_text("[[1, 2], [3, 4]]")
    with pytest.raises(TraceError, match=r"rank-1\.json\.gz"):
        parse_files(files, tmp_path / "2", workers=2)
    assert len(table(tmp_path / "2", "ranks")) == 2


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "the file is empty"), (b"hello", "neither a torch.profiler trace")]
)
def test_a_file_that_was_named_must_be_a_trace(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        parse_files([file], tmp_path / "out")


def test_nothing_to_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        parse_files([tmp_path / "missing"], tmp_path / "out")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.json").write_text("{}")
    with pytest.raises(UsageError, match=r"no trace in .*x\.json: JSON, but"):
        parse_files([tmp_path / "in"], tmp_path / "out")


def test_a_report_needs_its_export(tmp_path: Path) -> None:
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"x" * 10)
    with pytest.raises(TraceError, match="nsys export --type sqlite"):
        parse_files([report], tmp_path / "out")


def test_a_run_directory_is_not_searched_for_traces(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a run directory"):
        parse_files([make_run(ranks=1)], tmp_path / "out")


def test_a_file_is_given_its_rank_by_name_and_a_wrong_name_is_said(tmp_path: Path) -> None:
    trace = '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]}'
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(trace)
    parse_files([tmp_path], tmp_path / "out", ranks={Path("a.json"): 3, tmp_path / "b.json": 1})
    assert sorted(pd.read_parquet(tmp_path / "out" / "tables" / "ranks")["rank"]) == [1, 3]
    with pytest.raises(UsageError, match="no such file among the traces"):
        parse_files([tmp_path], tmp_path / "out", ranks={Path("c.json"): 0})
