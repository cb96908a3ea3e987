"""Tables on disk: schema, order, atomic replacement."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


NUMBERS = st.one_of(st.none(), st.integers(0, 3))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6), st.integers(0, 5), st.booleans())
def test_rows_in_order_are_left_and_others_sorted_nulls_last(
    keys: list[tuple[int | None, int | None]], skipped: int, in_order: bool
) -> None:
    if in_order:
        keys.sort(key=lambda row: [(number is None, number or 0) for number in row])
    rows = pa.table(
        {
            "a": pa.array([key[0] for key in keys], pa.int64()),
            "b": pa.array([key[1] for key in keys], pa.int64()),
            "place": list(range(len(keys))),
        }
    ).slice(skipped)
    expected = rows.sort_by([("a", "ascending"), ("b", "ascending")])
    order = module.sorting(rows, ("a", "b"))
    assert (rows if order is None else rows.take(order)).equals(expected)
    if rows.num_rows:
        # A real sort is needed exactly when it moves a row.
        assert module._in_order(rows.combine_chunks(), ("a", "b")) == expected.equals(rows)


def test_what_lies_under_a_null_does_not_count() -> None:
    numbers, valid = np.array([1, 9, 5]), np.packbits([True, False, False], bitorder="little")
    hidden = pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(valid), pa.py_buffer(numbers)])
    assert module._in_order(pa.table({"a": hidden, "b": [0, 1, 2]}), ("a", "b"))
    assert not module._in_order(pa.table({"a": hidden, "b": [0, 2, 1]}), ("a", "b"))


def test_a_file_is_the_same_in_bytes_whether_its_rows_came_in_order(tmp_path: Path) -> None:
    rows = pa.table({"start_ns": list(range(5000)), "name": [f"kernel {number % 700}" for number in range(5000)]})
    with TableWriter(tmp_path / "tables") as writer:
        for begin in range(0, 5000, 100):
            writer.write("kernels", rows.slice(begin, 100), 0)
            writer.write("kernels", rows.slice(4900 - begin, 100), 1)
    in_order, sorted_ = (pq.ParquetFile(tmp_path / f"tables/kernels/rank-{rank}.parquet") for rank in (0, 1))
    assert in_order.read().drop_columns("rank").equals(sorted_.read().drop_columns("rank"))
    sizes = [
        [
            in_or.metadata.row_group(0).column(column).total_compressed_size
            for column in range(1, in_or.metadata.num_columns)
        ]
        for in_or in (in_order, sorted_)
    ]
    assert sizes[0] == sizes[1]


def test_times_and_counters_are_stored_by_their_differences_and_read_back_exactly(tmp_path: Path) -> None:
    born = [-(2**63), 2**63 - 1, None, 0, 1_796_056_701_106_906_000]
    with TableWriter(tmp_path / "tables") as writer:
        writer.write("memory_blocks", pa.table({"block_id": range(5), "born_ns": born, "size_bytes": [9] * 5}), 0)
    path = tmp_path / "tables" / "memory_blocks" / "rank-0.parquet"
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    stored = {column.path_in_schema for column in columns if "DELTA_BINARY_PACKED" in column.encodings}
    assert stored == {"block_id", "born_ns", "free_requested_ns", "freed_ns", "released_ns"}
    rows = pq.read_table(path)
    assert rows["born_ns"].to_pylist() == [-(2**63), 0, 1_796_056_701_106_906_000, 2**63 - 1, None]
    assert rows["block_id"].to_pylist() == [0, 3, 4, 1, 2]


def test_a_long_table_is_streamed_in_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_BYTES", 200)
    with TableWriter(tmp_path / "tables") as writer:
        for start in range(10):
            writer.write("kernels", pa.table({"start_ns": [start]}), 0)
    assert pq.ParquetFile(tmp_path / "tables" / "kernels" / "rank-0.parquet").num_row_groups > 1
    assert writer.rows == {"kernels": 10}


def test_many_rows_at_once_are_written_bit_by_bit_where_that_keeps_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITING_BYTES", 200)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)
    with TableWriter(tmp_path / "tables") as writer:
        writer.write("kernels", pa.table({"start_ns": list(range(9))}), 0)
        writer.write("kernels", pa.table({"start_ns": list(range(9, 0, -1))}), 1)
    files = [pq.ParquetFile(tmp_path / "tables" / "kernels" / f"rank-{rank}.parquet") for rank in (0, 1)]
    assert [file.num_row_groups for file in files] == [3, 1]
    assert [file.read()["start_ns"].to_pylist() for file in files] == [list(range(9)), list(range(1, 10))]


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
