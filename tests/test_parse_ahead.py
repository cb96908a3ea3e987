"""Several traces are scanned ahead by light processes, and give the tables that one process makes of them."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeropeak.parse import ahead as ahead_module
from zeropeak.parse.ahead import chosen_ahead, shares
from zeropeak.parse.foreign import parse_files
from zeropeak.parse.kineto import workers as kineto_workers
from zeropeak.parse.kineto.part import WHOLE, Part
from zeropeak.parse.kineto.workers import Parts
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from pathlib import Path

MB = 1 << 20


def trace(folder: Path, rank: int, count: int = 3000, packed: bool = False) -> Path:
    """A trace of some kernels."""
    events = [
        {"ph": "X", "cat": "kernel", "name": f"k{n % 7}", "pid": rank, "tid": 7, "ts": n + 0.125, "dur": 1, "args": {}}
        for n in range(1, count)
    ]
    text = json.dumps({"baseTimeNanoseconds": 10**18, "distributedInfo": {"rank": rank}, "traceEvents": events})
    path = folder / f"trace_{rank}.json"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


@pytest.fixture
def short_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_workers, "START_BYTES", 40_000)
    monkeypatch.setattr(ahead_module, "START_BYTES", 40_000)
    monkeypatch.setattr(ahead_module, "IMPORT_BYTES", 50_000)


@given(st.lists(st.integers(1, 700 * MB), min_size=2, max_size=9), st.integers(2, 9))
def test_every_byte_is_scanned_once(lengths: list[int], processes: int) -> None:
    lanes, own = shares(lengths, processes)
    assert len(lanes) < processes
    for index, length in enumerate(lengths):
        mine = own[index]
        parts = [part for lane in lanes for trace, part in lane if trace == index] + ([mine] if mine else [])
        assert [part.begin for part in parts] == [0, *(part.stop for part in parts[:-1])]
        assert parts[-1].stop is None
        assert all(part.begin < length for part in parts)


def test_this_process_takes_what_is_left_when_it_has_imported_and_made_tables() -> None:
    assert shares([100 * MB, 100 * MB], 2) == (
        [[(0, WHOLE), (1, Part(0, 55_050_240))]],
        [None, Part(55_050_240, None)],
    )
    assert shares([30 * MB, 30 * MB], 3) == ([[(0, WHOLE)], [(1, WHOLE)]], [None, None])
    _, own = shares([100 * MB] * 5, 2)
    assert own[-1] == WHOLE, "the last is scanned first, while the others are"


@pytest.mark.usefixtures("short_is_worth_it")
@pytest.mark.parametrize(("count", "packed"), [(1, False), (2, True), (4, False)])
def test_the_tables_are_those_that_one_process_makes(tmp_path: Path, count: int, packed: bool) -> None:
    traces = [trace(tmp_path, rank, packed=packed) for rank in range(count)]
    with chosen_ahead(traces, {}, None, tmp_path / "none", 2) as ahead:
        assert set(ahead.scanners) == set(traces)
    several = parse_files(traces, tmp_path / "several", workers=2)
    alone = parse_files(traces, tmp_path / "alone", workers=1)
    assert several.rows == alone.rows
    assert several.rows["kernels"] == count * 2999
    for path in (tmp_path / "alone").rglob("*.parquet"):
        other = tmp_path / "several" / path.relative_to(tmp_path / "alone")
        assert pq.read_table(path, partitioning=None).equals(pq.read_table(other, partitioning=None)), path
    runs = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("several", "alone")]
    assert [{**run, "name": ""} for run in runs[:1]] == [{**run, "name": ""} for run in runs[1:]]


@pytest.mark.usefixtures("short_is_worth_it")
def test_a_file_that_is_refused_is_named_and_nothing_is_left_running(tmp_path: Path) -> None:
    good, bad = trace(tmp_path, 0), tmp_path / "rank1.json"
    bad.write_text('{"schema": "1", "nodes": [' + "{}," * 30_000 + "{}]}")
    with chosen_ahead([good, bad], {}, None, tmp_path / "out", 2) as ahead:
        processes = [process for one in ahead.scanners.values() if isinstance(one, Parts) for process, _ in one.others]
    assert processes
    assert all(process.ended for process in processes)
    with pytest.raises(TraceError, match=r"rank1\.json: an execution trace"):
        parse_files([good, bad], tmp_path / "out", workers=2)
    assert not list((tmp_path / "out").glob("tables*"))


@pytest.mark.usefixtures("short_is_worth_it")
def test_many_or_undivided_traces_are_left_to_processes_that_make_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = [trace(tmp_path, rank) for rank in range(2)]
    monkeypatch.setattr(ahead_module, "MOST_BYTES", 500_000)
    with chosen_ahead(traces, {}, None, tmp_path / "out", 2) as ahead:
        assert not ahead.scanners
    with chosen_ahead(traces, {}, None, tmp_path / "out", 1) as ahead:
        assert not ahead.scanners
