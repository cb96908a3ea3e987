"""Machines whose clocks disagree are laid onto each other by their collectives; those that agree are left alone."""

from __future__ import annotations

import gzip
import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.captures import h200, needs_captures, unpack
from tests.written import write_tables

from zeropeak.parse.clocks import ClockMap, Ends, fit_ends
from zeropeak.parse.foreign import parse_files
from zeropeak.parse.hosts import align_hosts
from zeropeak.parse.pipeline import parse_run
from zeropeak.parse.schema import BY_NAME
from zeropeak.parse.stats import Stats
from zeropeak.parse.writer import rewrite
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.conftest import MakeRun

    Times = np.ndarray[tuple[int], np.dtype[np.int64]]

UNIX = 1_700_000_000_000_000_000
STEP_NS = 50_000_000
OFFSET_NS, DRIFT = 3_000_000_000, 20e-6


def job(ranks: int, count: int = 400, seed: int = 7) -> tuple[Times, Times]:
    """Begin and end (ranks x collectives) as a perfect clock saw them; rank 1 comes late to every third.

    A collective ends on all ranks at once, but for some microseconds, 80 us after the last rank came.
    """
    rng = np.random.default_rng(seed)
    begin = UNIX + np.arange(count) * STEP_NS + rng.integers(0, 2_000_000, (ranks, count))
    begin[1, ::3] += 20_000_000
    end = begin.max(axis=0) + 80_000 + rng.integers(0, 10_000, (ranks, count))
    return begin, end


def skewed(ts: Times) -> Times:
    """What a clock shows that is 3 s late and drifts by 20 ppm."""
    moved: Times = ts - OFFSET_NS - np.rint((ts - UNIX) * DRIFT).astype(np.int64)
    return moved


def calls(rank: int, begin: Times, end: Times, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank, "name": "_allgather_base", "start_ns": int(b), "end_ns": int(e), "source": "kineto",
            "in_bytes": 8, "out_bytes": 64, "group": "0", "group_size": 4, "stream": 7, **more,
        }
        for b, e in zip(begin, end, strict=True)
    ]  # fmt: skip


def align(
    path: Path, rows: list[dict[str, Any]], hosts: Mapping[int, str], **more: list[dict[str, Any]]
) -> tuple[pd.DataFrame, dict[str, int]]:
    """The table collectives after the alignment, and what was counted."""
    clocks = [{"rank": rank, "source": "kineto", "offset_ns": 0} for rank in hosts]
    run = write_tables(path, {"collectives": rows, "clocks": clocks, **more})
    stats = Stats()
    align_hosts(run / "tables", hosts, stats)
    counted = {row["what"]: row["count"] for row in stats.table().to_pylist()}
    return pd.read_parquet(run / "tables" / "collectives"), counted


HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}


def test_a_late_and_drifting_machine_is_moved_onto_the_first(tmp_path: Path) -> None:
    begin, end = job(4)
    rows = [
        row
        for rank in range(4)
        for row in calls(rank, *((begin[rank], end[rank]) if rank < 2 else (skewed(begin[rank]), skewed(end[rank]))))
    ]
    marks = [{"rank": rank, "mark": "step", "ts_ns": int(skewed(begin[2])[0])} for rank in (0, 2)]
    found, counted = align(tmp_path / "r", rows, HOSTS, marks=marks)
    assert counted == {"clocks_aligned": 400}
    for rank in range(4):
        mine = found[found["rank"] == rank].sort_values("start_ns")
        assert np.abs(mine["start_ns"].to_numpy() - begin[rank]).max() < 20_000
        assert np.abs(mine["end_ns"].to_numpy() - end[rank]).max() < 20_000
    maps = {(row["rank"], row["source"]): row for row in pd.read_parquet(tmp_path / "r" / "tables" / "clocks").to_dict(
        "records")}  # fmt: skip
    assert set(maps) == {*((rank, "kineto") for rank in range(4)), (2, "collectives"), (3, "collectives")}
    moved = maps[2, "collectives"]
    assert moved["drift"] == pytest.approx(DRIFT, rel=0.02)
    assert moved["shared_events"] == 400
    assert moved["residual_ns"] < 10_000
    # Every other table of the rank moves along; nothing of the first machine does.
    times = pd.read_parquet(tmp_path / "r" / "tables" / "marks").set_index("rank")["ts_ns"]
    assert abs(times[2] - begin[2][0]) < 20_000
    assert times[0] == skewed(begin[2])[0]


def test_machines_that_agree_are_not_changed(tmp_path: Path) -> None:
    begin, end = job(4)
    rows = [row for rank in range(4) for row in calls(rank, begin[rank], end[rank])]
    shutil.copytree(write_tables(tmp_path / "same", {"collectives": rows}) / "tables", tmp_path / "before")
    _, counted = align(tmp_path / "r", rows, HOSTS)
    assert counted == {"clocks_agree": 400}
    for rank in range(4):
        name = f"collectives/rank-{rank}.parquet"
        assert (tmp_path / "r" / "tables" / name).read_bytes() == (tmp_path / "before" / name).read_bytes()


def test_one_machine_is_never_compared(tmp_path: Path) -> None:
    begin, end = job(2)
    rows = [*calls(0, begin[0], end[0]), *calls(1, skewed(begin[1]), skewed(end[1]))]
    found, counted = align(tmp_path / "r", rows, {0: "a", 1: "a"})
    assert counted == {}
    assert found[found["rank"] == 1]["start_ns"].tolist() == skewed(begin[1]).tolist()


def test_too_few_collectives_are_said_and_move_nothing(tmp_path: Path) -> None:
    begin, end = job(2, count=9)
    rows = [*calls(0, begin[0], end[0]), *calls(1, skewed(begin[1]), skewed(end[1]))]
    found, counted = align(tmp_path / "r", rows, {0: "a", 1: "b"})
    assert counted == {"clocks_not_compared": 1}
    assert found[found["rank"] == 1]["start_ns"].tolist() == skewed(begin[1]).tolist()


def test_sequence_numbers_match_ranks_that_recorded_other_stretches(tmp_path: Path) -> None:
    begin, end = job(2)
    numbered = [
        {**row, "sequence": number}
        for rank, some in ((0, slice(0, 300)), (1, slice(100, 400)))
        for number, row in zip(
            range(some.start, some.stop),
            calls(rank, *((t if rank == 0 else skewed(t))[some] for t in (begin[rank], end[rank]))),
            strict=True,
        )
    ]
    found, counted = align(tmp_path / "r", numbered, {0: "a", 1: "b"})
    assert counted == {"clocks_aligned": 200}
    assert np.abs(found[found["rank"] == 1]["end_ns"].sort_values().to_numpy() - end[1][100:]).max() < 20_000


def test_other_stretches_without_numbers_are_not_taken_for_the_same(tmp_path: Path) -> None:
    """Equally many look-alikes on both sides, of which the second rank recorded later ones: steps differ in length."""
    begin, end = job(2, count=300)
    wander = np.cumsum(np.random.default_rng(3).integers(0, 40_000_000, 300))
    begin, end = begin + wander, end + wander
    rows = [*calls(0, begin[0][:200], end[0][:200]), *calls(1, begin[1][100:], end[1][100:])]
    found, counted = align(tmp_path / "r", rows, {0: "a", 1: "b"})
    assert counted == {"clocks_contradict": 200}
    assert found[found["rank"] == 1]["start_ns"].tolist() == begin[1][100:].tolist()


def test_machines_are_placed_beside_a_neighbour_that_was_moved(tmp_path: Path) -> None:
    """Host c shares collectives with b alone."""
    begin, end = job(3)
    rows = [
        *calls(0, begin[0], end[0], group="ab", group_size=2),
        *calls(1, skewed(begin[1]), skewed(end[1]), group="ab", group_size=2),
        *calls(1, skewed(begin[1]), skewed(end[1]), group="bc", group_size=2),
        *calls(2, begin[2] + 10**9, end[2] + 10**9, group="bc", group_size=2),
    ]
    found, counted = align(tmp_path / "r", rows, {0: "a", 1: "b", 2: "c"})
    assert counted["clocks_aligned"] == 400
    assert np.abs(found[found["rank"] == 2]["end_ns"].sort_values().to_numpy() - end[2]).max() < 30_000


def test_groups_of_one_name_are_not_taken_for_one_group(tmp_path: Path) -> None:
    begin, end = job(4)
    rows = [row for rank in range(4) for row in calls(rank, begin[rank], end[rank], group="pairs", group_size=2)]
    assert align(tmp_path / "r", rows, HOSTS)[1] == {"clocks_not_compared": 1}


def test_broadcasts_and_launches_say_nothing_about_clocks(tmp_path: Path) -> None:
    begin, end = job(2)
    rows = [
        *calls(0, begin[0], end[0], name="broadcast"), *calls(1, skewed(begin[1]), skewed(end[1]), name="broadcast"),
        *calls(0, begin[0], end[0], stream=None), *calls(1, skewed(begin[1]), skewed(end[1]), stream=None),
    ]  # fmt: skip
    assert align(tmp_path / "r", rows, {0: "a", 1: "b"})[1] == {"clocks_not_compared": 1}


@settings(deadline=None)
@given(
    st.integers(-(10**12), 10**12), st.floats(-5e-5, 5e-5), st.integers(0, 3), st.integers(20, 300), st.integers(0, 99)
)
def test_any_offset_and_drift_is_found(offset: int, drift: float, late: int, count: int, seed: int) -> None:
    begin, end = job(2, count, seed)
    begin[late % 2] -= 1_000_000 * late

    def other(ts: Times) -> Times:
        moved: Times = ts + offset + np.rint((ts - UNIX) * drift).astype(np.int64)
        return moved

    found = fit_ends(Ends(begin[0], end[0], other(begin[1]), other(end[1])))
    assert np.abs(found.apply(other(end[1])) - end[1]).max() < 30_000


def test_ends_that_do_not_go_together_fit_no_clock() -> None:
    begin, end = job(2)
    shuffled = np.random.default_rng(1).permutation(400)
    with pytest.raises(TraceError, match="different stretches"):
        fit_ends(Ends(begin[0], end[0], skewed(begin[1])[shuffled], skewed(end[1])[shuffled]))


def kineto(path: Path, rank: int, begin: Times, end: Times, base: int | None = UNIX, **more: Any) -> Path:
    events = [
        {
            "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllGather", "pid": rank, "tid": 7,
            "ts": (int(b) - UNIX) / 1000, "dur": int(e - b) / 1000,
            "args": {"stream": 7, "Collective name": "_allgather_base", "In msg nelems": 4, "Out msg nelems": 8,
                     "Group size": 2, "dtype": "Half", "Process Group Name": "0"},
        }
        for b, e in zip(begin, end, strict=True)
    ]  # fmt: skip
    info = {"rank": rank, "world_size": 2, "backend": "nccl"}
    base_time = {} if base is None else {"baseTimeNanoseconds": base}
    content = {"schemaVersion": 1, "distributedInfo": info, **base_time, **more, "traceEvents": events}
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def test_traces_of_two_machines_are_aligned_and_of_one_are_not(tmp_path: Path) -> None:
    begin, end = job(2)
    late = skewed(begin[1]), skewed(end[1])
    files = [kineto(tmp_path / "r0.json.gz", 0, begin[0], end[0]), kineto(tmp_path / "r1.json.gz", 1, *late)]
    parse_files(files, tmp_path / "two")
    kernels = pd.read_parquet(tmp_path / "two" / "tables" / "kernels")
    assert np.abs(kernels[kernels["rank"] == 1]["start_ns"].sort_values().to_numpy() - begin[1]).max() < 20_000
    stats = pd.read_parquet(tmp_path / "two" / "tables" / "import_stats")
    said = stats[stats["what"] == "clocks_aligned"].to_dict("records")
    assert [(row["count"], "+3.0" in row["detail"]) for row in said] == [(400, True)]
    files = [
        kineto(tmp_path / "r0.json.gz", 0, begin[0], end[0], host_name="node-a"),
        kineto(tmp_path / "r1.json.gz", 1, *late, host_name="node-a"),
    ]
    parse_files(files, tmp_path / "one")
    kernels = pd.read_parquet(tmp_path / "one" / "tables" / "kernels")
    assert kernels[kernels["rank"] == 1]["start_ns"].min() == late[0].min()
    assert "node-a" not in (tmp_path / "one" / "run.json").read_text()


def test_a_clock_without_a_base_is_placed_by_collectives_or_refused(tmp_path: Path) -> None:
    begin, end = job(2)
    files = [
        kineto(tmp_path / "r0.json.gz", 0, begin[0] + STEP_NS, end[0] + STEP_NS, base=None),
        kineto(tmp_path / "r1.json.gz", 1, begin[1], end[1]),
    ]
    parse_files(files, tmp_path / "two")
    calls_ = pd.read_parquet(tmp_path / "two" / "tables" / "collectives")
    assert np.abs(calls_[calls_["rank"] == 0]["end_ns"].sort_values().to_numpy() - end[0]).max() < 20_000
    kineto(files[0], 0, begin[0][:5] + STEP_NS, end[0][:5] + STEP_NS, base=None)
    with pytest.raises(TraceError, match=r"r0\.json\.gz: its clock cannot be related"):
        parse_files(files, tmp_path / "none")


def test_hosts_of_a_run_without_collectives_keep_their_base_times(make_run: MakeRun) -> None:
    run = make_run(ranks=2, nsys=False, kineto=False)
    parse_run(run)
    before = pd.read_parquet(run / "tables" / "zero_events")
    facts = json.loads((run / "raw" / "rank-1" / "rank.json").read_text())
    (run / "raw" / "rank-1" / "rank.json").write_text(json.dumps({**facts, "boot_id": "another"}))
    parse_run(run)
    after = pd.read_parquet(run / "tables" / "zero_events")
    # Rank 1 has its own machine's reading now; nothing else moved it.
    apart = (after["start_ns"] - before["start_ns"]).groupby(after["rank"]).unique()
    assert (apart[0].tolist(), len(apart[1])) == ([0], 1)
    assert "collectives" not in set(pd.read_parquet(run / "tables" / "clocks")["source"])
    assert "clocks_not_compared" in set(pd.read_parquet(run / "tables" / "import_stats")["what"])


@pytest.mark.h200
@needs_captures
def test_real_ranks_of_one_machine_agree_and_are_found_again_when_skewed(tmp_path: Path) -> None:
    unpack(h200("s3m0"), tmp_path / "in")
    parse_files(sorted((tmp_path / "in").rglob("kineto_r*")), tmp_path / "out")
    tables = tmp_path / "out" / "tables"
    counted = pd.read_parquet(tables / "import_stats").set_index("what")["count"]
    assert counted["clocks_agree"] == 1791  # all but the 7 broadcasts
    assert set(pd.read_parquet(tables / "clocks")["source"]) == {"kineto"}
    path = tables / "collectives" / "rank-1.parquet"
    before = pd.read_parquet(path)["end_ns"]
    skew = ClockMap(int(before.median()), -OFFSET_NS, -DRIFT)
    rewrite(BY_NAME["collectives"], path, skew.apply_table)
    moved = align_hosts(tables, {0: "a", 1: "b"}, Stats()).moved[1]
    assert moved.shared_events >= 1780
    assert moved.drift == pytest.approx(DRIFT, rel=0.05)
    assert moved.residual_ns is not None
    assert moved.residual_ns < 5_000
    assert (pd.read_parquet(path)["end_ns"] - before).abs().max() < 20_000
