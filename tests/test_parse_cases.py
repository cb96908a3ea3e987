"""Other people's nsys exports and ours from H200 GPUs, counted a second time with plain sqlite3."""

from __future__ import annotations

import json
import lzma
import shutil
import sqlite3
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from tests.captures import CAPTURES, cases, h200, needs, needs_captures, unpack

from zeropeak.parse.foreign import parse_files
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from pathlib import Path

CASES = cases("nsys", "*.sqlite")
SMALL = CAPTURES / "nsys2025.3_small_4ranks.sqlite.xz"
GIB = 1 << 30

needs_cases = needs(CASES)


def count(path: Path, query: str) -> int:
    db = sqlite3.connect(path)
    try:
        return int(db.execute(query).fetchone()[0] or 0)
    except sqlite3.OperationalError:
        return 0
    finally:
        db.close()


def rows(out: Path, table: str) -> pd.DataFrame:
    return pd.read_parquet(out / "tables" / table)


@needs_cases
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_all_rows_of_public_exports_arrive(path: Path, tmp_path: Path) -> None:
    parse_files([path], tmp_path)
    kernels = rows(tmp_path, "kernels")
    for category in ("kernel", "memcpy", "memset"):
        table = f"CUPTI_ACTIVITY_KIND_{category.upper()}"
        assert (kernels["category"] == category).sum() == count(path, f"SELECT count(*) FROM {table}")
    for category in ("memcpy", "memset"):
        expected = count(path, f"SELECT sum(bytes) FROM CUPTI_ACTIVITY_KIND_{category.upper()}")
        assert kernels.loc[kernels["category"] == category, "size_bytes"].sum() == expected
    ranges = "SELECT count(*) FROM NVTX_EVENTS WHERE eventType IN (34, 59, 60)"
    assert len(rows(tmp_path, "nvtx_ranges")) == count(path, ranges)


@needs_captures
def test_a_stock_deepspeed_trace_gives_events_and_reserved_memory_of_four_ranks(tmp_path: Path) -> None:
    path = tmp_path / "small.sqlite"
    with lzma.open(SMALL) as packed, path.open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    parse_files([path], tmp_path)
    events = rows(tmp_path, "zero_events")
    kinds = events.groupby(["rank", "kind"]).size().unstack()
    assert kinds.index.tolist() == [0, 1, 2, 3]
    named = "SELECT count(*) FROM NVTX_EVENTS JOIN StringIds ON id = textId WHERE value LIKE '%{}'"
    assert kinds["free"].sum() == count(path, named.format("free_param"))
    assert kinds["step"].sum() == count(path, named.format("Optimizer_Stage3.step"))
    launched = count(path, named.format("Coordinator.__all_gather_params"))
    assert kinds["fetch"].sum() + kinds["prefetch"].sum() == launched
    assert (kinds["prefetch"] == 2).all()
    memory = rows(tmp_path, "memory_events")
    for rank, part in memory.groupby("rank"):
        assert part.sort_values("ts_ns")["reserved_bytes"].iloc[-1] == 2_290_354_176 - 106_954_752, rank
    calls = rows(tmp_path, "collectives")
    assert calls["name"].value_counts().to_dict() == {"allgather_fn": 360, "reduce_scatter_fn": 12}
    by_event = calls.merge(events, on=["rank", "event_id"], validate="one_to_one")
    assert by_event.groupby("name_x")["kind"].value_counts().to_dict() == {
        ("allgather_fn", "fetch"): 352, ("allgather_fn", "prefetch"): 8, ("reduce_scatter_fn", "reduce"): 12
    }  # fmt: skip
    phases = rows(tmp_path, "phases")
    assert phases.groupby(["rank", "phase"]).size().tolist() == [3] * 12


@needs_cases
def test_a_truncated_export_is_refused(tmp_path: Path) -> None:
    whole = CASES[-1].read_bytes()
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match=r"cut\.sqlite: damaged or half-written"):
        parse_files([cut], tmp_path / "out")


@needs_captures
@pytest.mark.h200
@pytest.mark.parametrize("case", ["s2m0", "s3m0", "s3m1"])
@pytest.mark.parametrize("kind", ["kineto", "snapshot"])
def test_curves_of_the_full_size_runs_are_exact_at_every_mark(case: str, kind: str, tmp_path: Path) -> None:
    unpack(h200(case), tmp_path / "in")
    parse_files(sorted((tmp_path / "in").rglob(f"{kind}_r*")), tmp_path / "out")
    truth = json.loads((CAPTURES / "truth_pythia6.9b_2xH200.json").read_text())[case]
    memory = rows(tmp_path / "out", "memory_events")
    for rank in (0, 1):
        log = pd.read_json(tmp_path / "in" / f"events_r{rank}.json.gz")
        mine = memory[
            (memory["rank"] == rank) & (memory["device"] == f"cuda:{rank}") & memory["action"].isin(["alloc", "free"])
        ]
        marks = log[log["kind"] == "mark"]
        begin: object = 0
        for mark in marks.itertuples():
            before = mine[mine["ts_ns"] <= mark.t0]
            if before.empty:
                continue
            said = next(row for row in truth if row["rank"] == rank and row["mark"] == mark.name)
            assert abs(before["allocated_bytes"].iloc[-1] / GIB - said["MA"]) < 0.01
            if "step" in str(mark.name).split(" ", 1)[1]:
                begin = mark.t0
            else:
                since = before[before["ts_ns"] > begin]
                assert abs(since["allocated_bytes"].max() / GIB - said["MaxMA"]) < 0.01


def moves(out: Path, rank: int) -> pd.DataFrame:
    memory = rows(out, "memory_events")
    mine = memory["action"].isin(["alloc", "free"]) & (memory["device"] == f"cuda:{rank}") & (memory["rank"] == rank)
    return memory[mine].sort_values("ts_ns", kind="stable")


@needs_captures
@pytest.mark.h200
@pytest.mark.parametrize("case", ["s2m0", "s3m0", "s3m1"])
def test_curves_of_kineto_and_snapshot_differ_only_in_when_the_clock_was_read(case: str, tmp_path: Path) -> None:
    unpack(h200(case), tmp_path / "in")
    for kind in ("kineto", "snapshot"):
        parse_files(sorted((tmp_path / "in").rglob(f"{kind}_r*")), tmp_path / kind)
    for rank in (0, 1):
        kineto, snapshot = moves(tmp_path / "kineto", rank), moves(tmp_path / "snapshot", rank)
        # Move by move: the same allocations and frees, and the same bytes after each. Largest difference: 0.
        told = [part[["action", "address", "allocated_bytes"]].to_numpy() for part in (kineto, snapshot)]
        assert (told[0] == told[1]).all()
        # The history reads its clock first, the profiler a little later: 1 to 2 us, and 3.5 ms at most, where the
        # thread was interrupted between the two. In that time the curves are one move apart.
        late = kineto["ts_ns"].to_numpy() - snapshot["ts_ns"].to_numpy()
        print(f"{case} rank {rank}: 0 bytes at every of {len(late)} moves; up to {late.max():,} ns late")
        assert late.min() >= 0
        assert np.median(late) < 3_000
        assert (late > 100_000).mean() < 0.001
        assert late.max() < 10_000_000
