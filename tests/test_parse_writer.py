"""Tables on disk: schema, order, atomic replacement."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zeropeak.parse import writer as module
from zeropeak.parse.schema import BY_NAME, TABLES
from zeropeak.parse.writer import TableWriter
from zeropeak.profile.errors import ZeropeakError

if TYPE_CHECKING:
    from pathlib import Path


def test_missing_columns_are_null_and_types_are_the_schemas(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "tables") as writer:
        writer.write("kernels", pa.table({"start_ns": pa.array([5], pa.int32()), "name": ["k"]}), 3)
    rows = pq.read_table(tmp_path / "tables" / "kernels" / "rank-3.parquet")
    assert rows.schema.equals(BY_NAME["kernels"].arrow)
    assert rows.to_pylist()[0] | {"end_ns": None} == rows.to_pylist()[0]
    assert rows["rank"].to_pylist() == [3]


def test_rows_are_sorted_as_declared(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "tables") as writer:
        for start in (9, 3, 5):
            writer.write("kernels", pa.table({"start_ns": [start]}), 0)
    assert pd.read_parquet(tmp_path / "tables" / "kernels")["start_ns"].tolist() == [3, 5, 9]


def test_a_long_table_is_streamed_in_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_BYTES", 200)
    with TableWriter(tmp_path / "tables") as writer:
        for start in range(10):
            writer.write("kernels", pa.table({"start_ns": [start]}), 0)
    assert pq.ParquetFile(tmp_path / "tables" / "kernels" / "rank-0.parquet").num_row_groups > 1
    assert writer.rows == {"kernels": 10}


def test_a_table_without_rows_still_reads(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "tables") as writer:
        writer.declare([0, 1])
    for table in TABLES:
        rows = pd.read_parquet(tmp_path / "tables" / table.name)
        assert rows.columns.tolist() == [column.name for column in table.columns]


def test_rows_without_a_rank_go_to_their_own_file(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "tables") as writer:
        writer.write("nvtx_ranges", pa.table({"start_ns": [1]}), None)
        writer.write("nvtx_ranges", pa.table({"start_ns": [2]}), 0)
    rows = pd.read_parquet(tmp_path / "tables" / "nvtx_ranges")
    assert sorted(path.name for path in (tmp_path / "tables" / "nvtx_ranges").iterdir()) == [
        "rank-0.parquet",
        "rank-none.parquet",
    ]
    assert rows["rank"].isna().sum() == 1


def test_an_undeclared_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="kernels has no column colour"), TableWriter(tmp_path / "tables") as writer:
        writer.write("kernels", pa.table({"start_ns": [1], "colour": [2]}), 0)


def test_nulls_in_a_column_without_them_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"kernels\.start_ns: 1 nulls"), TableWriter(tmp_path / "tables") as writer:
        writer.write("kernels", pa.table({"start_ns": pa.array([None], pa.int64())}), 0)


def test_old_tables_stay_until_the_new_are_complete(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "tables") as writer:
        writer.write("kernels", pa.table({"start_ns": [1]}), 0)
    with pytest.raises(KeyError), TableWriter(tmp_path / "tables") as writer:
        writer.write("kernels", pa.table({"colour": [2]}), 0)
    assert pd.read_parquet(tmp_path / "tables" / "kernels")["start_ns"].tolist() == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]
    with TableWriter(tmp_path / "tables") as writer:
        writer.write("kernels", pa.table({"start_ns": [3]}), 0)
    assert pd.read_parquet(tmp_path / "tables" / "kernels")["start_ns"].tolist() == [3]


def test_a_full_disk_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(ZeropeakError, match="no space left for the tables"), TableWriter(tmp_path / "tables"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ZeropeakError, match="cannot be written"), TableWriter(tmp_path / "file" / "tables"):
        pass
