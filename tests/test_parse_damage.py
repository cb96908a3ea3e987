"""Run directories that were damaged, copied badly or locked: one line that names the file, or a counted loss."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zeropeak.parse.foreign import parse_files
from zeropeak.parse.pipeline import parse_run
from zeropeak.profile.errors import TraceError, UsageError, ZeropeakError
from zeropeak.reports import open_run, quality

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import MakeRun

DEEP = "[" * 200_000 + "]" * 200_000


def rights_bind() -> bool:
    """Whether a file's rights stop this process; root may read everything."""
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).chmod(0)
        return not os.access(file.name, os.R_OK)


as_a_user = pytest.mark.skipif(not rights_bind(), reason="root may read everything")


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def rewrite(path: Path, edit: Callable[[pa.Table], pa.Table]) -> None:
    with pa.OSFile(str(path)) as file:
        rows = edit(pa.ipc.open_stream(file).read_all())
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows)


def with_column(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, values)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("world_size", float("nan"), "world_size is nan, a number"),
        ("world_size", [4], "world_size is a list, a number that is not negative is needed; the file is damaged"),
        ("world_size", 2**70, "world_size is a number out of range"),
        ("world_size", True, "world_size is true"),
        ("basis", [1], "basis is a list, a text is needed"),
        ("versions", True, "versions is true, an object is needed"),
        ("versions", {"torch": 2}, r"versions\.torch is 2, a text"),
        ("model", 7, "model is 7, an object is needed"),
        ("device", {}, "device is an object, a text is needed"),
        ("config_changes", [3], r"config_changes\.0 is 3, an object"),
        ("notes", "x", "notes is a text, a list is needed"),
        ("name", "\ud800", "name holds half a character"),
        ("ds_config", {"a": {"b\udfff": 1}}, "b.udfff holds half a character"),
    ],
)
def test_a_damaged_run_json_is_one_line_everywhere(make_run: MakeRun, key: str, value: Any, message: str) -> None:
    run = make_run(ranks=1)
    parse_run(run)
    change(run / "run.json", **{key: value})
    for read in (parse_run, open_run):
        with pytest.raises(TraceError, match=rf"run\.json: {message}") as raised:
            read(run)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", [DEEP, '{"schema": 1, "x": ' + DEEP + "}", '{"x": ' + "[" * 100 + "]" * 100 + "}"])
def test_deep_nesting_is_one_line(make_run: MakeRun, text: str) -> None:
    run = make_run(ranks=1)
    (run / "run.json").write_text(text)
    with pytest.raises(TraceError, match=r"run\.json: nested too deeply"):
        parse_run(run)


def test_missing_ranks_beyond_all_reason_are_a_count(make_run: MakeRun) -> None:
    run = make_run(ranks=1)
    change(run / "run.json", world_size=10**9)
    assert parse_run(run).lost["ranks_missing"] == 10**9 - 1
    opened = open_run(run)
    assert (opened.missing_ranks, opened.missing_count) == ((), 10**9 - 1)
    assert any("Nothing was captured of 999,999,999 ranks" in line.text for line in quality.lines(opened))


@pytest.mark.parametrize("status", ["complete", "failed"])
@pytest.mark.parametrize(
    "damage",
    [
        {"world_size": [2]}, {"pid": 2**70}, {"node": "a"}, {"device": 1}, {"device_total_bytes": 1.5},
        {"linear_wrapped": "yes"}, {"ended": {}}, {"clock": [1, 2]}, {"clock": {"monotonic_ns": "x", "unix_ns": 1}},
        {"hooks_missing": 3}, {"zero": []}, "[]", "{", DEEP,
    ],
)  # fmt: skip
def test_a_damaged_rank_json_is_counted_and_the_rank_goes_on(
    make_run: MakeRun, damage: dict[str, Any] | str, status: str
) -> None:
    run = make_run(ranks=2, steps=1, nsys=False, kineto=False, status=status)
    path = run / "raw" / "rank-1" / "rank.json"
    if isinstance(damage, str):
        path.write_text(damage)
    else:
        change(path, **damage)
    summary = parse_run(run)
    assert summary.lost["rank_json_unreadable"] == 1
    assert "rank_json_missing" not in summary.lost
    assert summary.ranks == (0, 1)
    assert open_run(run).rank_facts(1) == {}
    assert quality.lines(open_run(run))


def texts(rows: pa.Table, name: str) -> pa.Table:
    return with_column(rows, name, pa.array(["x"] * rows.num_rows))


@pytest.mark.parametrize(
    ("stream", "column"),
    [
        ("events", "ts_ns"), ("events", "event_id"), ("events", "step"), ("event_params", "param_id"),
        ("params", "param_id"), ("params", "full_bytes"), ("modules", "module_id"), ("marks", "allocated_bytes"),
        ("marks", "ts_ns"), ("retained", "storage_id"), ("retained", "param_id"), ("storages", "size_bytes"),
        ("storages", "storage_id"),
    ],
)  # fmt: skip
def test_text_in_a_column_of_numbers_is_counted(make_run: MakeRun, stream: str, column: str) -> None:
    run = make_run(ranks=1, steps=1)
    rewrite(run / "raw" / "rank-0" / f"{stream}.arrows", lambda rows: texts(rows, column))
    assert parse_run(run).lost["column_unusable"] == 1
    assert any(f"{stream}.{column} holds string" in line.text for line in quality.lines(open_run(run)))


@pytest.mark.parametrize("stream", ["events", "event_params", "params", "modules", "marks", "retained", "storages"])
@pytest.mark.parametrize("how", ["null", "other"])
def test_rows_without_their_keys_are_dropped_and_counted(make_run: MakeRun, stream: str, how: str) -> None:
    run = make_run(ranks=1, steps=1)
    path = run / "raw" / "rank-0" / f"{stream}.arrows"
    if how == "null":
        rewrite(
            path,
            lambda rows: rows.schema.empty_table().from_arrays(
                [pa.nulls(rows.num_rows, field.type) for field in rows.schema], schema=rows.schema
            ),
        )
    else:
        rewrite(path, lambda rows: pa.table({"other": pa.array(range(rows.num_rows))}))
    assert parse_run(run).lost["rows_dropped"] > 0
    assert quality.lines(open_run(run))


def test_an_unknown_edge_is_dropped_and_counted(make_run: MakeRun) -> None:
    run = make_run(ranks=1, steps=1)
    rewrite(run / "raw" / "rank-0" / "storages.arrows", lambda rows: texts(rows, "edge"))
    assert parse_run(run).lost["rows_dropped"] > 0


@pytest.mark.parametrize("place", range(0, 1000, 83))
def test_flipped_bytes_cost_rows_not_the_run(make_run: MakeRun, place: int) -> None:
    run = make_run(ranks=1, steps=1, kineto=False, nsys=False)
    for stream in ("events", "params", "storages", "marks"):
        path = run / "raw" / "rank-0" / f"{stream}.arrows"
        data = bytearray(path.read_bytes())
        for at in range(len(data) * place // 1000, min(len(data), len(data) * place // 1000 + 40)):
            data[at] ^= 0xFF
        path.write_bytes(data)
    parse_run(run)
    assert quality.lines(open_run(run))


@pytest.mark.parametrize("name", ["rank-99999999999999999999999999", "rank-4194304", "rank-00"])
def test_a_folder_of_an_impossible_rank_is_named(make_run: MakeRun, name: str) -> None:
    run = make_run(ranks=1)
    (run / "raw" / name).mkdir()
    with pytest.raises(TraceError, match=rf"{name}: no rank has this number"):
        parse_run(run)


def test_a_copied_folder_is_named_with_the_rank_it_is_of(make_run: MakeRun) -> None:
    run = make_run(ranks=2)
    shutil.rmtree(run / "raw" / "rank-1")
    shutil.copytree(run / "raw" / "rank-0", run / "raw" / "rank-1")
    with pytest.raises(TraceError, match=r"raw/rank-1: its events are of rank 0, not of rank 1"):
        parse_run(run)


def test_a_link_that_leads_nowhere_is_named(make_run: MakeRun) -> None:
    run = make_run(ranks=1)
    (run / "tables").symlink_to(run / "gone")
    with pytest.raises(ZeropeakError, match=r"tables: a link that leads nowhere"):
        parse_run(run)


def test_a_run_without_its_run_json_is_not_taken_for_traces(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(ranks=1)
    (run / "run.json").unlink()
    with pytest.raises(UsageError, match=r"no run\.json .*is this a run directory\?"):
        parse_files([run], tmp_path / "out")


@as_a_user
@pytest.mark.parametrize(
    "name", ["run.json", "raw", "raw/rank-0", "raw/rank-0/events.arrows", "raw/rank-0/torch.json.gz",
             "raw/node-0.sqlite"]
)  # fmt: skip
def test_what_may_not_be_read_is_named(make_run: MakeRun, name: str) -> None:
    run = make_run(ranks=1)
    mode = (run / name).stat().st_mode
    (run / name).chmod(0)
    with pytest.raises(TraceError, match=rf"{name}.*: cannot be read \(Permission denied\)"):
        parse_run(run)
    (run / name).chmod(mode)


@as_a_user
def test_a_locked_file_among_traces_costs_only_itself(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(ranks=2, nsys=False)
    (tmp_path / "in").mkdir()
    for rank in (0, 1):
        shutil.copy(run / "raw" / f"rank-{rank}" / "torch.json.gz", tmp_path / "in" / f"rank-{rank}.json.gz")
    (tmp_path / "in" / "rank-1.json.gz").chmod(0)
    (tmp_path / "in" / "locked").mkdir(0)
    assert parse_files([tmp_path / "in"], tmp_path / "out").ranks == (0,)
    stats = pd.read_parquet(tmp_path / "out" / "tables" / "import_stats")
    refused = stats[stats["what"] == "file_refused"].set_index("file")["detail"]
    assert set(refused.index) == {"rank-1.json.gz", "locked"}
    assert refused.str.contains("cannot be read").all()
    (tmp_path / "in" / "locked").chmod(0o700)


def test_an_orphaned_capture_is_said(make_run: MakeRun) -> None:
    run = make_run(ranks=1, status="running")
    parse_run(run)
    lines = [line.text for line in quality.lines(open_run(run))]
    assert "The capture did not end in order, or is still running." in lines


@pytest.mark.parametrize("columns", [{"a": [1]}, {"rank": [0], "what": ["x"], "severity": [None], "count": [None]}])
def test_a_table_with_other_columns_is_named(make_run: MakeRun, columns: dict[str, list[Any]]) -> None:
    run = make_run(ranks=1)
    parse_run(run)
    for path in (run / "tables" / "import_stats").glob("*.parquet"):
        pq.write_table(pa.table(columns), path)
    with pytest.raises(TraceError, match=r"import_stats/.*run `zeropeak parse"):
        quality.lines(open_run(run))
