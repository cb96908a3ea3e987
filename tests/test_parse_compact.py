"""Rows by the million: on disk with the columns that were written, in memory with texts as codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse import compact
from zeropeak.parse.schema import BY_NAME
from zeropeak.parse.spool import Spool

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

EVENTS = BY_NAME["memory_events"]


def events(first: int, count: int, **more: object) -> pa.Table:
    ts = list(range(first, first + count))
    return pa.table({"ts_ns": ts, "action": ["alloc", "free"] * (count // 2), "size_bytes": [8] * count, **more})


def test_rows_come_back_as_they_were_whatever_columns_they_had(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    parts = [events(0, 4), events(4, 2, stream=pa.array([7, None])), events(6, 2)]
    for part in parts:
        spool.write("memory_events", part)
    assert spool.rows["memory_events"] == 8
    for same in (spool, spool.closed()):
        rows = same.table("memory_events")
        assert rows.schema.names == EVENTS.arrow.names
        assert rows["ts_ns"].to_pylist() == list(range(8))
        assert rows["stream"].to_pylist() == [None] * 4 + [7] + [None] * 3
        assert [part.num_columns for part in same.written("memory_events")] == [4, 5, 4]
    assert spool.table("collectives").num_rows == 0


def test_gathered_rows_are_the_rows_with_texts_as_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "ROWS", 5)
    parts = [events(first, 2, device=[None, f"cuda:{first % 3}"]) for first in range(0, 24, 2)]
    found = compact.gather(parts, "device")
    assert list(found) == [None, "cuda:0", "cuda:2", "cuda:1"]
    whole = pa.concat_tables(parts)
    for device, rows in found.items():
        assert pa.types.is_dictionary(rows.schema.field("device").type)
        mine = pc.is_null(whole["device"]) if device is None else pc.equal(whole["device"], device)
        assert compact.plain(rows).equals(whole.filter(mine))
    assert compact.gather([], "device") == {}
    assert compact.gather([events(0, 2)], "device")[None].num_rows == 2


def test_words_may_be_unknown() -> None:
    assert compact.words(np.array([1, 0, 2]), [None, "a", "b"]).to_pylist() == ["a", None, "b"]
    assert compact.same("x", 2).to_pylist() == ["x", "x"]
    assert compact.same(None, 1).to_pylist() == [None]
