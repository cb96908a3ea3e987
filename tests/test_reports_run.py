"""Opening runs, and the small words: units, names, widths, paths."""

from __future__ import annotations

import doctest
import importlib
import json
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.written import write_files

from zeropeak.parse.schema import BY_NAME
from zeropeak.profile.errors import TraceError, UsageError, ZeropeakError
from zeropeak.profile.privacy import without_folders
from zeropeak.reports import fonts, open_run, write_report
from zeropeak.reports.names import middle, patterns
from zeropeak.reports.run import open_whole_run
from zeropeak.reports.selection import select, shown_ranks

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.reports import Run


def write(run: Path, **tables: list[dict[str, Any]]) -> Run:
    """A run directory with some tables, a file a rank."""
    (run / "tables").mkdir(parents=True, exist_ok=True)
    write_files(run, tables)
    return open_run(run)


BIG = 2**53 + 1  # a float cannot hold it


def test_integers_stay_integers_beside_nulls(tmp_path: Path) -> None:
    run = write(tmp_path, marks=[{"rank": 0, "mark": "init", "ts_ns": BIG}, {"rank": 0, "mark": "init", "ts_ns": None}])
    frame = run.marks
    assert frame.ts_ns.dtype == pd.Int64Dtype()
    assert frame.ts_ns[0] == BIG
    assert frame.ts_ns[1] is pd.NA
    assert str(run.ranks.linear_wrapped.dtype) == "boolean"
    assert str(frame.mark.dtype) == "string"


def test_ranks_come_in_order_and_missing_ones_are_known(tmp_path: Path) -> None:
    run = write(tmp_path, ranks=[{"rank": rank, "world_size": 13} for rank in (10, 2, 0)])
    assert run.rank_ids == (0, 2, 10)
    assert run.ranks["rank"].tolist() == [0, 2, 10]
    assert run.missing_ranks == (1, 3, 4, 5, 6, 7, 8, 9, 11, 12)


def test_a_fake_world_misses_no_rank(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "world_size": 4, "fake_world": True}))
    assert write(tmp_path, ranks=[{"rank": 0, "world_size": 4}]).missing_ranks == ()


def test_columns_of_an_older_parse_are_null(tmp_path: Path) -> None:
    write(tmp_path, marks=[{"rank": 0, "mark": "init"}])
    pq.write_table(pa.table({"rank": [0], "mark": ["init"]}), tmp_path / "tables" / "marks" / "rank-0.parquet")
    assert open_run(tmp_path).marks.ts_ns.isna().all()


@pytest.mark.parametrize("name", BY_NAME)
def test_a_table_that_was_taken_away_is_not_read_as_empty(tmp_path: Path, name: str) -> None:
    rows: list[dict[str, Any]] = [{"rank": 0, "start_ns": 1}, {"rank": 1, "start_ns": 2}, {"rank": None, "start_ns": 3}]
    write(tmp_path, ranks=[{"rank": 0}, {"rank": 1}], nvtx_ranges=rows)
    open_whole_run(tmp_path)  # rows of no rank are missing nowhere
    gone = "rank-none.parquet" if name == "import_stats" else "rank-1.parquet"
    (tmp_path / "tables" / name / gone).unlink()
    run = open_run(tmp_path)
    with pytest.raises(ZeropeakError, match=rf"tables/{name}/{gone}: missing, .*run `zeropeak parse "):
        run.table(name)
    if name != "import_stats":
        assert run.arrow(name, 0).num_rows in (0, 1)
        with pytest.raises(ZeropeakError, match=rf"tables/{name}/{gone}: missing"):
            run.arrow(name, 1)
    with pytest.raises(ZeropeakError, match=rf"tables/{name}/{gone}: missing"):
        write_report(tmp_path)
    assert not (tmp_path / "report").exists()


def test_a_folder_without_tables_says_what_to_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema": 1}')
    with pytest.raises(ZeropeakError, match=r"no tables; run `zeropeak parse .*`"):
        open_run(tmp_path)


def test_a_newer_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema": 2}')
    with pytest.raises(ZeropeakError, match=r"written by a newer zeropeak \(schema 2, this one reads up to 1\)"):
        open_run(tmp_path)


def test_what_is_no_run_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such run directory"):
        open_run(tmp_path / "nothing")
    with pytest.raises(UsageError, match=r"not a run directory"):
        open_run(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all"])
def test_a_damaged_table_is_named(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, marks=[{"rank": 0, "mark": "init"}])
    (tmp_path / "tables" / "marks" / "rank-0.parquet").write_bytes(content)
    with pytest.raises(TraceError, match=r"rank-0\.parquet: not a readable table .*run `zeropeak parse"):
        _ = open_run(tmp_path).marks


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema": ')
    with pytest.raises(TraceError, match=r"run\.json: not valid JSON"):
        open_run(tmp_path)


def test_an_unknown_table_is_an_attribute_error(tmp_path: Path) -> None:
    run = write(tmp_path)
    with pytest.raises(AttributeError, match="no table 'evnts'"):
        _ = run.evnts
    assert "zero_events" in dir(run)


@pytest.mark.parametrize("name", ["units", "names", "selection", "figures.style", "figures.lanes", "findings.holders"])
def test_examples_in_docstrings_hold(name: str) -> None:
    module = importlib.import_module(f"zeropeak.reports.{name}")
    tried = doctest.testmod(module)
    assert tried.attempted
    assert not tried.failed


def test_long_names_keep_both_ends() -> None:
    assert middle("abcdef", 6) == "abcdef"
    assert [len(middle("x" * 50, n)) for n in (1, 2, 7, 49)] == [1, 2, 7, 49]


def test_layers_are_one_pattern() -> None:
    assert patterns([("layers.0.mlp", 2), ("layers.1.mlp", 2), ("embed", 3)]) == [
        ("layers.*.mlp", 2, 4),
        ("embed", 1, 3),
    ]


def test_text_is_fitted_to_a_width_and_made_drawable() -> None:
    fitted = fonts.fit("gpt_neox.layers.31.mlp.dense_4h_to_h" * 3, 100, 8)
    assert fonts.width(fitted, 8) <= 100
    assert fitted.startswith("gpt")
    assert all(fonts.width(line, 9) <= 120 for line in fonts.wrap("some words and " + "w" * 300, 120, 9))
    assert fonts.printable("a\x00\nb\t名") == "a□ b □"


def test_folders_are_dropped_from_texts() -> None:
    assert without_folders("cannot open ~/data/x.jsonl or /home/ann/y") == "cannot open …/x.jsonl or …/y"
    assert without_folders("raw/rank-0/rank.json 3/4 https://a.b/c") == "raw/rank-0/rank.json 3/4 https://a.b/c"


def test_of_many_ranks_the_extremes_are_shown(tmp_path: Path) -> None:
    rows = [
        {"rank": rank, "scope": "run", "ts_ns": 1, "allocated_bytes": 100 - rank if rank else 1} for rank in range(9)
    ]
    run = write(tmp_path, ranks=[{"rank": rank} for rank in range(9)], peaks=rows)
    shown = select(run, 3)
    assert shown.why == {1: "highest peak", 5: "peak 5 of 9", 0: "lowest peak"}
    assert shown.note() == "3 of 9 ranks shown: rank 0 (lowest peak), rank 1 (highest peak), rank 5 (peak 5 of 9)"
    assert select(run, 9).all
    assert shown_ranks(range(0, 40, 2)).endswith("and more, 20 in all")
