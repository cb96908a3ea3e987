"""not-partitioned: parameters that every rank holds whole, or that stay gathered in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.ranks import MIB, Rows, event, know, phases, rank
from tests.written import write_tables

from zeropeak.reports import open_run
from zeropeak.reports.findings.not_partitioned import find

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.reports.findings import Finding

FULL = 4 * MIB


def tables(*freed: int, persistent: tuple[int, ...] = (), whole: bool = False, steps: int = 3) -> Rows:
    """Ten weights of 4 MiB on one of 4 ranks; each step's forward frees ``freed`` of them."""
    params = [
        {
            "rank": 0,
            "param_id": n,
            "shape": [64, 64] if n < 9 else [64],
            "numel": 4096 if n < 9 else 64,
            "full_bytes": FULL,
            "shard_bytes": FULL if whole else FULL // 4,
            "persistent": n in persistent,
        }
        for n in range(10)
    ]
    events, moved = [], []
    for step in range(steps):
        if step:
            events.append(event("prefetch", step, number=500 + step))
        for n in freed:
            number = 100 * step + n
            events.append(event("free", step, number=number))
            moved.append({"rank": 0, "event_id": number, "param_id": n})
        events.append(event("free", step, "backward", number=900 + step))
        moved.append({"rank": 0, "event_id": 900 + step, "param_id": 0})
    return {
        "ranks": [rank(world_size=4)],
        "params": params,
        "phases": phases(steps),
        "zero_events": events,
        "zero_event_params": moved,
    }


def judged(path: Path, rows: Rows, zero: Any = None, **manifest: Any) -> Finding:
    about = {"world_size": 4, "fake_world": True, **manifest}
    [found] = find(
        open_run(write_tables(path, {k: v for k, v in rows.items() if v}, zero={"stage": 3, **(zero or {})}, **about))
    )
    return found


def test_partitioned_in_a_world_of_one_rank(tmp_path: Path) -> None:
    rows = tables(*range(10), whole=True)
    rows["marks"] = [{"rank": 0, "step": -1, "mark": "init", "ts_ns": 90, "allocated_bytes": 60 * MIB}]
    found = judged(tmp_path, rows)
    assert (found.verdict, found.cause, found.bytes) == ("confirmed", "one-rank-at-zero-init", 30 * MIB)
    [expected] = found.expected
    assert (expected.at, expected.now_bytes, expected.then_bytes) == ("init", 60 * MIB, 30 * MIB)
    assert found.advice is not None
    assert "before deepspeed.zero.Init builds the model" in found.advice


def test_one_rank_has_nobody_to_share_with(tmp_path: Path) -> None:
    found = judged(tmp_path, tables(*range(10), whole=True), world_size=1, fake_world=False)
    assert (found.verdict, found.cause, found.bytes) == ("confirmed", "one-rank", 0)


def test_all_below_the_persistence_threshold(tmp_path: Path) -> None:
    found = judged(tmp_path, tables(persistent=tuple(range(10))), zero={"stage3_param_persistence_threshold": 5000})
    assert (found.verdict, found.cause, found.bytes) == ("confirmed", "all-persistent", 40 * MIB)
    # The largest vector stays gathered, the matrices do not.
    assert (found.knob, found.value) == ("zero_optimization.stage3_param_persistence_threshold", 64)


def reused(kept: int, alive: int = 0) -> Rows:
    rows = tables(9)
    rows["marks"] = [
        {"rank": 0, "step": s, "micro_step": 0, "mark": "forward", "ts_ns": 129 + 100 * s, "allocated_bytes": 90 * MIB,
         "released_alive_bytes": alive}
        for s in range(3)
    ]  # fmt: skip
    rows["mark_composition"] = [
        {"rank": 0, "step": 1, "micro_step": 0, "mark": "forward", "ts_ns": 229, "category": "kept_for_reuse",
         "size_bytes": kept}
    ]  # fmt: skip
    return rows


def test_all_used_again_within_the_reuse_distance(tmp_path: Path) -> None:
    found = judged(tmp_path, reused(36 * MIB), zero={"stage3_max_reuse_distance": 1e9})
    assert (found.verdict, found.cause, found.bytes, found.step) == (
        "confirmed",
        "all-within-reuse-distance",
        36 * MIB,
        1,
    )
    assert (found.knob, found.value) == ("zero_optimization.stage3_max_reuse_distance", 0)
    [expected] = found.expected
    assert (expected.at, expected.step, expected.then_bytes) == ("forward", 1, 54 * MIB)
    assert "within stage3_max_reuse_distance (1,000,000,000 elements)" in found.headline


def test_where_released_weights_stay_alive_no_saving_is_promised(tmp_path: Path) -> None:
    found = judged(tmp_path, reused(36 * MIB, alive=MIB))
    assert (found.verdict, found.expected) == ("confirmed", [])
    assert found.advice is not None
    assert "expect" not in found.advice


def test_a_forward_that_lets_go_of_some_rules_it_out_with_what_stays(tmp_path: Path) -> None:
    found = judged(tmp_path, tables(0, 1, 2, persistent=(9,)))
    assert (found.verdict, found.bytes) == ("ruled_out", 28 * MIB)
    assert found.headline == (
        "The forward of step 1 lets go of 12.0 MiB of 40.0 MiB of parameters; 4.00 MiB are persistent."
    )


def test_a_parameter_freed_twice_counts_once(tmp_path: Path) -> None:
    rows = tables(0, 1)
    again = {**rows["zero_events"][-2], "event_id": 777}
    rows["zero_events"].append(again)
    rows["zero_event_params"].append({"rank": 0, "event_id": 777, "param_id": 1})
    assert judged(tmp_path, rows).bytes == 32 * MIB


def test_the_first_step_lets_go_of_all_whatever_the_distance(tmp_path: Path) -> None:
    found = judged(tmp_path, tables(*range(10), steps=1))
    assert (found.verdict, found.advice) == ("unknown", "Capture three steps.")


def test_without_the_releases_or_the_parameters_it_abstains(tmp_path: Path) -> None:
    know(tmp_path / "a", zero={"stage": 3}, hooks_missing=[{"name": "free", "why": "not there"}])
    assert judged(tmp_path / "a", tables(0)).verdict == "unknown"
    rows = tables(0)
    del rows["params"]
    assert judged(tmp_path / "b", rows).verdict == "unknown"


@pytest.mark.parametrize("stage", [0, 2])
def test_below_stage_3_it_cannot_occur(tmp_path: Path, stage: int) -> None:
    assert judged(tmp_path, tables(0), zero={"stage": stage}).verdict == "not_applicable"
