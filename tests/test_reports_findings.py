"""Tables in, findings out."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.written import write_tables

from zeropeak.parse.pipeline import parse_run
from zeropeak.reports import open_run, quality
from zeropeak.reports.findings import find_all, retained_after_release, to_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zeropeak.reports.findings import Finding

KIB = 1024
LINEAR = "AddmmBackward0._saved_mat2"
Rows = dict[str, list[dict[str, Any]]]


def tables(*holders: str | None, alive: int | None = None, step: int = 0, mark: str = "forward") -> Rows:
    """One rank: weights of 4 KiB, one a holder, gathered and released at 20, found alive at 50, dead at 60.

    They lie on 10 KiB of something else; at 80 there is a second, lower peak without them.
    """
    weights = [
        {"rank": 0, "param_id": n, "param": f"layers.{n}.weight", "module": f"layers.{n}"} for n in range(len(holders))
    ]
    held = 4 * KIB * len(holders)
    base, later = 10 * KIB, 9 * KIB
    return {
        "ranks": [
            {
                "rank": 0,
                "world_size": 1,
                "status": "complete",
                "first_ns": 0,
                "last_ns": 100,
                "linear_wrapped": False,
                "memory_source": "kineto",
                "memory_partial": False,
            }
        ],
        "zero_events": [
            {"rank": 0, "event_id": 1, "kind": "release", "name": "release layers.0", "start_ns": 20, "end_ns": 22},
            {"rank": 0, "event_id": 2, "kind": "free", "name": "free layers.0.weight", "start_ns": 20, "end_ns": 20},
            {"rank": 0, "event_id": 3, "kind": "wait", "name": "wait layers.1", "start_ns": 28, "end_ns": 40},
        ],
        "marks": [
            {"rank": 0, "step": -1, "mark": "init", "ts_ns": 5, "released_alive_bytes": 0, "released_alive_count": 0},
            {
                "rank": 0,
                "step": step,
                "micro_step": 0,
                "mark": mark,
                "ts_ns": 50,
                "allocated_bytes": base + held,
                "released_alive_bytes": held if alive is None else alive,
                "released_alive_count": len(holders),
            },
        ],
        "retained": [
            {
                **weight,
                "step": step,
                "micro_step": 0,
                "mark": mark,
                "ts_ns": 50,
                "size_bytes": 4 * KIB,
                "storage_id": n,
                "released_ns": 20,
                "ended_ns": 60,
                "holder": holder,
                "holder_module": None if holder is None else f"layers.{n}",
            }
            for n, (weight, holder) in enumerate(zip(weights, holders, strict=True))
        ],
        "memory_blocks": [
            {
                "rank": 0,
                "block_id": n,
                "size_bytes": 4 * KIB,
                "born_ns": 20,
                "free_requested_ns": 60,
                "released_ns": 20,
                "param_id": n,
                "storage_id": n,
            }
            for n in range(len(holders))
        ],
        "memory_events": [
            {"rank": 0, "ts_ns": ts, "action": "alloc", "size_bytes": 1, "allocated_bytes": allocated}
            for ts, allocated in ((6, base), (20, base + held), (60, base), (80, later), (90, 0))
        ],
        "peaks": [{"rank": 0, "scope": "run", "ts_ns": 30, "allocated_bytes": base + held, "event_id": 3}],
    }


def find(path: Path, rows: Rows, *, stage: int = 3, knob: bool | None = False, **manifest: Any) -> list[Finding]:
    """Write a run and find what outlived its release."""
    zero = {"stage": stage} | ({} if knob is None else {"memory_efficient_linear": knob})
    return retained_after_release.find(open_run(write_tables(path, rows, zero=zero, **manifest)))


def saved(found: Finding) -> str | None:
    """What the advice promises at the peak."""
    match = re.search(r"and ([\d.]+ \w+) less at the peak", found.advice or "")
    return match[1] if match else None


def test_plain_linear_with_the_knob_off(tmp_path: Path) -> None:
    [found] = find(tmp_path, tables(LINEAR, LINEAR, "MmBackward0._saved_mat2"))
    assert found.to_json() | {"evidence": None} == {
        "id": "retained-after-release",
        "verdict": "confirmed",
        "basis": "measured",
        "bytes": 12 * KIB,
        "rank": 0,
        "step": 0,
        "cause": "memory-efficient-linear-off",
        "holder": LINEAR,
        "knob": "zero_optimization.memory_efficient_linear",
        "value": True,
        "expected": [
            {"at": "forward", "step": 0, "now_bytes": 22 * KIB, "then_bytes": 10 * KIB, "sampled": False},
            {"at": "peak", "step": None, "now_bytes": 22 * KIB, "then_bytes": 10 * KIB, "sampled": False},
        ],
        "advice": "Set zero_optimization.memory_efficient_linear to true: expect 12.0 KiB less after the first forward "
        "(22.0 KiB to 10.0 KiB) and 12.0 KiB less at the peak (22.0 KiB to 10.0 KiB).",
        "evidence": None,
    }
    assert found.modules == ["layers.* (3)"]
    assert saved(found) == "12.0 KiB"


def test_evidence_names_the_rows(tmp_path: Path) -> None:
    [found] = find(tmp_path, tables(*[LINEAR] * 7))
    by_what = {one.what: one for one in found.evidence}
    mark = by_what["released but alive, by weak references"]
    assert (mark.table, mark.where) == ("marks", {"rank": 0, "step": 0, "micro_step": 0, "mark": "forward"})
    assert mark.rows[0]["released_alive_bytes"] == 28 * KIB
    assert [row["param_id"] for row in by_what["the 5 largest"].rows] == [0, 1, 2, 3, 4]
    [summed] = by_what["summed by cause and holder"].rows
    assert (summed["cause"], summed["size_bytes"], summed["count"]) == (found.cause, 28 * KIB, 7)
    json.dumps(to_json("r", [found]), allow_nan=False)


def test_the_knob_is_on_by_default_so_a_plain_linear_means_no_wrapper(tmp_path: Path) -> None:
    [found] = find(tmp_path, tables(LINEAR), knob=None, versions={"deepspeed": "0.16.2"})
    assert found.cause == "wrapper-not-installed"
    assert found.advice is not None
    assert "use DeepSpeed 0.19.4 or newer (this run: 0.16.2)" in found.advice


@pytest.mark.parametrize(
    ("wrapped", "holder"),
    [
        (True, "MmBackward0._saved_mat2"),
        (True, LINEAR),
        (False, "ConvolutionBackward0._saved_weight"),
    ],
)
def test_another_op_saved_the_weight(tmp_path: Path, wrapped: bool, holder: str) -> None:
    rows = tables(holder)
    rows["ranks"][0]["linear_wrapped"] = wrapped
    [found] = find(tmp_path, rows, knob=wrapped)
    assert (found.verdict, found.cause, found.holder, found.knob) == (
        "confirmed",
        "other-op-saved-weight",
        holder,
        None,
    )
    assert found.advice is not None
    assert f"instead of the op behind {holder}" in found.advice
    assert saved(found) is None


def test_causes_are_told_apart_within_a_rank(tmp_path: Path) -> None:
    [found] = find(tmp_path, tables(LINEAR, LINEAR, "ConvolutionBackward0._saved_weight"))
    assert (found.bytes, found.cause, saved(found)) == (12 * KIB, "memory-efficient-linear-off", "8.00 KiB")
    summed = next(one for one in found.evidence if one.what == "summed by cause and holder")
    assert {row["cause"]: row["size_bytes"] for row in summed.rows} == {
        "memory-efficient-linear-off": 8 * KIB,
        "other-op-saved-weight": 4 * KIB,
    }


def test_without_a_holder_the_bytes_are_confirmed_and_the_cause_is_only_suspected(tmp_path: Path) -> None:
    rows = tables(None)
    rows["retained"][0]["ended_ns"] = 50 + 5_000_001  # longer than a thread takes to let go
    [found] = find(tmp_path, rows)
    assert (found.verdict, found.holder, found.cause) == ("confirmed", None, "memory-efficient-linear-off")
    assert found.advice is not None
    assert found.advice.startswith("Suspected cause, the holder was not found: ")
    assert "suspected" in found.notes[0]


def test_a_holder_found_in_another_step_counts(tmp_path: Path) -> None:
    rows = tables(None)
    rows["retained"].append(
        {**rows["retained"][0], "step": 1, "ts_ns": 70, "holder": LINEAR, "holder_module": "layers.0"}
    )
    [found] = find(tmp_path, rows)
    assert found.holder == LINEAR
    assert "(searched in step 1)" in found.notes[0]


def test_without_knowing_the_wrapper_the_cause_is_open(tmp_path: Path) -> None:
    rows = tables(LINEAR)
    rows["ranks"][0]["linear_wrapped"] = None
    [found] = find(tmp_path, rows)
    assert (found.verdict, found.cause, found.knob) == ("confirmed", None, None)


def test_the_saving_moves_with_the_peak(tmp_path: Path) -> None:
    rows = tables(LINEAR)
    rows["memory_events"][3]["allocated_bytes"] = 13 * KIB  # a later peak, without released weights
    [found] = find(tmp_path, rows)
    assert saved(found) == "1.00 KiB"  # 14 KiB to 13 KiB


def test_no_curve_means_no_figure_for_the_peak(tmp_path: Path) -> None:
    rows = tables(LINEAR)
    for name in ("memory_events", "memory_blocks", "peaks"):
        del rows[name]
    for row in rows["marks"]:
        row["allocated_bytes"] = None
    [found] = find(tmp_path, rows)
    assert (found.verdict, found.bytes, saved(found)) == ("confirmed", 4 * KIB, None)
    assert found.advice is not None
    assert found.advice.endswith("the saving at the peak is unknown, there is no memory curve.")


def test_released_storages_that_die_rule_it_out(tmp_path: Path) -> None:
    [found] = find(tmp_path, tables(alive=0), knob=True)
    assert (found.verdict, found.bytes, found.step, found.cause, found.advice) == ("ruled_out", 0, 0, None, None)


def test_nothing_released_rules_nothing_out(tmp_path: Path) -> None:
    rows = tables(alive=0)
    rows["zero_events"] = [row for row in rows["zero_events"] if row["kind"] != "free"]
    [found] = find(tmp_path, rows)
    assert (found.verdict, found.bytes) == ("unknown", None)
    assert found.advice is not None
    assert "stage3_max_reuse_distance" in found.advice


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_it_does_not_apply_below_stage_3(tmp_path: Path, stage: int) -> None:
    [found] = find(tmp_path, tables(alive=0), stage=stage)
    assert (found.verdict, found.bytes) == ("not_applicable", None)


def test_a_cut_before_the_first_mark_is_suspected_at_most(tmp_path: Path) -> None:
    rows = tables(LINEAR, LINEAR)
    rows["marks"], rows["retained"] = rows["marks"][:1], []
    rows["ranks"][0]["status"] = "cut"
    for row in rows["memory_blocks"]:
        row["free_requested_ns"] = None
    rows["zero_events"].append(
        {"rank": 0, "event_id": 9, "kind": "release", "name": "release layers.1", "start_ns": 45}
    )
    [found] = find(tmp_path, rows)
    assert (found.verdict, found.bytes, found.cause) == ("suspected", 8 * KIB, None)
    assert found.advice is not None
    assert found.advice.startswith("Not measured: ")


def test_a_cut_with_nothing_alive_is_unknown(tmp_path: Path) -> None:
    rows = tables()
    rows["marks"] = []
    [found] = find(tmp_path, rows)
    assert (found.verdict, found.bytes) == ("unknown", None)


def test_unchecked_releases_are_unknown_and_the_missing_hook_is_named(tmp_path: Path) -> None:
    rows = tables(LINEAR)
    rows["marks"][1]["released_alive_bytes"] = None
    (tmp_path / "raw" / "rank-0").mkdir(parents=True)
    facts = {"hooks_missing": [{"name": "free_param", "why": "not there"}], "zero": {"stage": 3}}
    (tmp_path / "raw" / "rank-0" / "rank.json").write_text(json.dumps(facts))
    [found] = find(tmp_path, rows)
    assert found.verdict == "unknown"
    assert "missing hooks: free_param: not there" in found.headline


def know(path: Path, **facts: Any) -> None:
    (path / "raw" / "rank-0").mkdir(parents=True)
    (path / "raw" / "rank-0" / "rank.json").write_text(json.dumps({"zero": {"stage": 3}} | facts))


@pytest.mark.parametrize("name", ["free", "engine forward"])
@pytest.mark.parametrize("alive", [0, None])
def test_a_hook_that_stepped_aside_leaves_the_verdict_open(tmp_path: Path, name: str, alive: int | None) -> None:
    know(tmp_path, hooks_missing=[{"name": name, "why": "stepped aside after KeyError: 3"}])
    [found] = find(tmp_path, tables(LINEAR, alive=alive))
    assert (found.verdict, found.bytes) == ("unknown", None)
    assert f'hook "{name}" is missing (stepped aside after KeyError: 3)' in found.headline
    [line] = [line.text for line in quality.lines(open_run(tmp_path)) if "Hook" in line.text]
    assert line == f'Hook "{name}" (stepped aside after KeyError: 3): its events are missing on rank 0.'


def test_fast_sharding_leaves_the_verdict_open(tmp_path: Path) -> None:
    know(tmp_path, zero={"stage": 3, "module_granularity_threshold": 50_000})
    [found] = find(tmp_path, tables(alive=0))
    assert found.verdict == "unknown"
    assert "stage3_module_granularity_threshold at 50,000" in found.headline


def test_what_a_thread_lets_go_of_moments_later_is_not_retained(tmp_path: Path) -> None:
    [found] = find(tmp_path, tables(None, None))
    assert (found.verdict, found.bytes) == ("ruled_out", 0)
    assert "up to 8.00 KiB died moments after it" in found.headline


def test_what_is_on_its_way_out_is_counted_apart(tmp_path: Path) -> None:
    [found] = find(tmp_path, tables(LINEAR, None))
    assert (found.verdict, found.bytes) == ("confirmed", 4 * KIB)
    assert found.headline.startswith("After the first forward 4.00 KiB in 1 weight ")
    assert found.headline.endswith("; 4.00 KiB more may have been on their way out (no holder, gone within moments).")
    assert len(next(one for one in found.evidence if one.what.startswith("the ")).rows) == 1


@pytest.mark.parametrize(("last_ns", "verdict"), [(100, "suspected"), (10_000_000, "confirmed")])
def test_a_storage_that_never_ends_counts_in_a_run_that_goes_on(tmp_path: Path, last_ns: int, verdict: str) -> None:
    rows = tables(None)
    rows["retained"][0]["ended_ns"] = None
    rows["ranks"][0]["last_ns"] = last_ns
    [found] = find(tmp_path, rows)
    assert (found.verdict, found.bytes) == (verdict, 4 * KIB)


def test_without_rows_of_the_mark_the_blocks_tell(tmp_path: Path) -> None:
    rows = tables(LINEAR)
    rows["retained"] = []
    rows["memory_blocks"][0]["free_requested_ns"] = 10_000_000
    rows["ranks"][0]["last_ns"] = 10_000_000
    [found] = find(tmp_path, rows)
    assert (found.verdict, found.bytes, found.holder) == ("confirmed", 4 * KIB, None)


def test_a_run_that_does_not_say_its_stage_is_unknown(tmp_path: Path) -> None:
    [found] = find(tmp_path, tables(LINEAR), ds_config={})
    assert found.verdict == "unknown"


def test_a_rank_that_left_nothing_is_unknown_and_comes_last(tmp_path: Path) -> None:
    found = find(tmp_path, tables(LINEAR), world_size=3)
    assert [(one.rank, one.verdict) for one in found] == [(0, "confirmed"), (1, "unknown"), (2, "unknown")]


def test_a_simulated_run_predicts(tmp_path: Path) -> None:
    [found] = find(tmp_path, tables(LINEAR), basis="simulated")
    assert (found.verdict, found.basis) == ("predicted", "simulated")


def test_retention_after_a_later_forward_counts_there(tmp_path: Path) -> None:
    rows = tables(LINEAR, step=2)
    rows["marks"].insert(1, {**rows["marks"][1], "step": 0, "ts_ns": 30, "released_alive_bytes": 0})
    [found] = find(tmp_path, rows)
    assert (found.verdict, found.step) == ("confirmed", 2)
    assert found.headline.startswith("After the forward of step 2 4.00 KiB in 1 weight ")


def test_the_empty_run_is_unknown_on_every_rank(tmp_path: Path) -> None:
    found = find(tmp_path, {}, world_size=2)
    assert [one.verdict for one in found] == ["unknown", "unknown"]
    assert to_json("r", found)["schema"] == 1


@pytest.mark.parametrize(("retain", "verdict", "bytes_"), [(True, "confirmed", 8192), (False, "ruled_out", 0)])
def test_from_raw_files_to_the_verdict(make_run: Callable[..., Path], retain: bool, verdict: str, bytes_: int) -> None:
    path = make_run(ranks=2, retain=retain)
    parse_run(path)
    found = [one for one in find_all(open_run(path)) if one.id == retained_after_release.ID]
    assert [(one.rank, one.verdict, one.bytes) for one in found] == [(0, verdict, bytes_), (1, verdict, bytes_)]
    assert all(bool(saved(one)) is retain for one in found)
