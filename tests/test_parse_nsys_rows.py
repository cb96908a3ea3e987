"""Columns of an export's rows, packed here or by another process that reads ahead."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeropeak.parse import nsys_export
from zeropeak.parse.nsys_export import open_export
from zeropeak.parse.nsys_rows import Column, fetch, fetch_ahead, open_read_only, pack
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from pathlib import Path

INT, TEXT = pa.int64(), pa.string()
CELLS = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.binary(max_size=4), st.just(b"name")
)


def export(folder: Path, rows: list[tuple[Any, ...]]) -> Path:
    path = folder / "export.sqlite"
    path.unlink(missing_ok=True)
    db = sqlite3.connect(path)
    db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
    db.execute("CREATE TABLE NVTX_EVENTS (start, text)")
    db.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?)", rows)
    db.commit()
    db.close()
    return path


@pytest.mark.parametrize(
    ("values", "packed"),
    [
        ((1, 2), Column(2, b"\1" + bytes(7) + b"\2" + bytes(7))),
        ((None, None), Column(2)),
        ((None, 2), Column(2, bytes(8) + b"\2" + bytes(7), None, b"\0\1")),
        ((b"ab", None, b""), Column(3, b"\2" + bytes(23), b"ab", b"\1\0\1")),
        ((1, b"a"), Column(2, odd=[1, b"a"])),
        ((2**63,), Column(1, odd=[2**63])),
    ],
)
def test_columns_are_packed_by_what_they_hold(values: tuple[object, ...], packed: Column) -> None:
    assert pack(values) == packed


@settings(max_examples=50)
@given(st.lists(st.tuples(CELLS, CELLS), max_size=9))
def test_numbers_and_texts_are_what_sqlite_gives_and_a_damaged_cell_costs_no_other(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[object, object]]
) -> None:
    path = export(tmp_path_factory.mktemp("rows"), rows)
    with open_export(path) as opened:
        batches = list(opened.batches("NVTX_EVENTS", [("start", INT), ("text", TEXT)]))
    found = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert len(found) == len(rows)
    for (number, text), (start, name) in zip(found, rows, strict=True):
        if start is None or isinstance(start, int):
            assert number == start
        if name is None or isinstance(name, bytes):
            assert text == (name.decode("utf-8", "replace") if isinstance(name, bytes) else None)
        else:
            assert text == str(name)


def test_another_process_gives_the_same_in_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = export(tmp_path, [(number, b"x" * (number % 3) if number % 5 else None) for number in range(70_000)])
    query = "SELECT start, text FROM NVTX_EVENTS WHERE start > 3"
    assert list(fetch_ahead(path, query)) == list(fetch(open_read_only(path), query))
    found = []
    for rows in (1, 1 << 40):
        monkeypatch.setattr(nsys_export, "AHEAD_ROWS", rows)
        with open_export(path) as opened:
            columns = [("start", INT), ("text", TEXT)]
            found.append(pa.Table.from_batches(opened.batches("NVTX_EVENTS", columns, most=True)))
    assert found[0].equals(found[1])
    assert found[0].num_rows == 70_000


def test_what_goes_wrong_in_the_other_process_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = export(tmp_path, [(number, b"x" * 500) for number in range(2000)])
    with pytest.raises(sqlite3.DatabaseError, match="no such column: absent"):
        list(fetch_ahead(path, "SELECT absent FROM NVTX_EVENTS"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = b"\xff" * (len(content) - len(content) // 2)
    path.write_bytes(content)
    monkeypatch.setattr(nsys_export, "AHEAD_ROWS", 1)
    with open_export(path) as opened, pytest.raises(TraceError, match="damaged or half-written sqlite file"):
        list(opened.batches("NVTX_EVENTS", [("start", INT)], most=True))


def test_reading_that_is_given_up_leaves_no_process(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = export(tmp_path, [(number, b"x" * 40) for number in range(140_000)])
    batches = fetch_ahead(path, "SELECT start, text FROM NVTX_EVENTS")
    assert len(next(batches)) == 2
    batches.close()  # type: ignore[attr-defined]
    assert not recwarn.list
