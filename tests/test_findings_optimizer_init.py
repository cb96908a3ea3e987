"""optimizer-init-peak: whether the run's peak lies in what repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.ranks import MIB, Rows, parts, peak, rank
from tests.written import write_tables

from zeropeak.reports import open_run
from zeropeak.reports.findings.optimizer_init_peak import find

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.reports.findings import Finding


def tables(init: int = 10, first_step: int = 20, steady: int = 100, *, steps: int = 2, **more: int) -> Rows:
    """Peaks in MiB: of init, of the first optimizer step, and of every forward, backward and later step."""
    sizes = {("init", -1): init, ("step", 0): first_step, **{(name, 1): n for name, n in more.items()}}
    for step in range(steps):
        sizes |= {("forward", step): steady - 1, ("backward", step): steady}
        sizes.setdefault(("step", step), steady - 5)
    rows = [peak(n * MIB, phase, step, ts=step * 10) for (phase, step), n in sizes.items()]
    return {"ranks": [rank()], "peaks": rows}


def judged(path: Path, rows: Rows, zero: Any = None, **manifest: Any) -> Finding:
    [found] = find(open_run(write_tables(path, rows, zero={"stage": 3, **(zero or {})}, **manifest)))
    return found


def test_a_peak_in_init_is_confirmed(tmp_path: Path) -> None:
    rows = tables(init=150)
    rows["peak_composition"] = parts({"unattributed": 140 * MIB, "parameter_shards": 10 * MIB}, phase="init", step=-1)
    found = judged(tmp_path, rows)
    assert (found.verdict, found.bytes, found.cause, found.step) == ("confirmed", 50 * MIB, "in-init", -1)
    assert (
        "reached in init, 50.0 MiB (33 %) above the 100 MiB that the steps need at most (in the backward of step 0)"
        in (found.headline)
    )
    assert found.advice is not None
    assert "under deepspeed.zero.Init" in found.advice


def test_a_peak_where_the_optimizer_makes_its_states_names_the_group_size(tmp_path: Path) -> None:
    rows = tables(first_step=130)
    rows["params"] = [
        {"rank": 0, "param_id": n, "trainable": n > 0, "numel": 4000, "full_bytes": 8000, "shard_bytes": 2000}
        for n in range(3)
    ]
    found = judged(tmp_path, rows, zero={"sub_group_size": 1000000000})
    assert (found.verdict, found.bytes, found.cause) == ("confirmed", 30 * MIB, "optimizer-states-created")
    # 2 trainable parameters of 1000 elements on this rank, in four groups.
    assert (found.knob, found.value) == ("zero_optimization.sub_group_size", 500)


def test_groups_that_are_small_by_now_are_no_advice(tmp_path: Path) -> None:
    found = judged(tmp_path, tables(first_step=130), zero={"sub_group_size": 100})
    assert (found.knob, found.value) == (None, None)
    assert found.advice is not None
    assert "Offload the optimizer" in found.advice


@pytest.mark.parametrize(("phase", "cause"), [("save", "in-save"), ("eval", "in-eval")])
def test_a_peak_in_saving_or_evaluating(tmp_path: Path, phase: str, cause: str) -> None:
    found = judged(tmp_path, tables(**{phase: 120}))
    assert (found.verdict, found.bytes, found.cause) == ("confirmed", 20 * MIB, cause)


def test_a_peak_in_the_steps_rules_it_out(tmp_path: Path) -> None:
    found = judged(tmp_path, tables(init=99))
    assert (found.verdict, found.bytes) == ("ruled_out", 0)
    assert found.headline == "The peak lies in the backward of step 0 (100 MiB); init reaches 99.0 MiB."


def test_a_peak_in_every_optimizer_step_is_above_forward_and_backward(tmp_path: Path) -> None:
    rows = tables(first_step=200)
    rows["peaks"] = [row for row in rows["peaks"] if (row["phase"], row["step"]) != ("step", 1)]
    rows["peaks"].append(peak(200 * MIB, "step", 1))
    rows["peak_composition"] = parts({"workspace": 80 * MIB, "optimizer_states": 120 * MIB}, phase="step", step=1)
    rows["params"] = [
        {"rank": 0, "param_id": n, "trainable": True, "numel": 100, "full_bytes": 200, "shard_bytes": 100}
        for n in range(8)
    ]
    found = judged(tmp_path, rows, zero={"sub_group_size": 1e9})
    assert (found.verdict, found.bytes, found.cause) == ("confirmed", 100 * MIB, "in-every-optimizer-step")
    [expected] = found.expected
    # Temporaries of 100 of the rank's 400 elements are left of the 80 MiB of all.
    assert (found.value, expected.now_bytes, expected.then_bytes) == (100, 200 * MIB, 140 * MIB)


def test_an_optimizer_step_as_high_as_the_backward_is_ruled_out(tmp_path: Path) -> None:
    rows = tables(first_step=200)
    next(row for row in rows["peaks"] if (row["phase"], row["step"]) == ("step", 1))["allocated_bytes"] = 100 * MIB + 9
    assert judged(tmp_path / "a", {**rows, "peaks": rows["peaks"][2:]}).verdict == "unknown"
    rows["peaks"][1]["allocated_bytes"] = 90 * MIB
    assert judged(tmp_path / "b", rows).verdict == "ruled_out"


def test_less_than_a_percent_above_the_steps_is_ruled_out_with_its_bytes(tmp_path: Path) -> None:
    found = judged(tmp_path, tables(init=1005, steady=1000))
    assert (found.verdict, found.bytes) == ("ruled_out", 5 * MIB)


def test_one_step_is_not_enough_to_be_sure(tmp_path: Path) -> None:
    found = judged(tmp_path, tables(first_step=130, steps=1))
    assert (found.verdict, found.bytes) == ("suspected", 30 * MIB)
    assert found.advice is not None
    assert found.advice.startswith("Not measured: a step after the first; later forwards run on top of the optimizer's")


@pytest.mark.parametrize("known", [True, False])
def test_a_curve_without_init_is_unknown_unless_the_allocator_counted(tmp_path: Path, known: bool) -> None:
    rows = tables()
    rows["peaks"][0] |= {"partial": True, "allocator_peak_bytes": 30 * MIB if known else None}
    found = judged(tmp_path, rows)
    assert found.verdict == ("ruled_out" if known else "unknown")


def test_the_allocators_own_maximum_counts_where_the_curve_is_sampled(tmp_path: Path) -> None:
    rows = tables()
    for row in rows["peaks"]:
        row |= {"source": "counters", "allocator_peak_bytes": row["allocated_bytes"]}
    rows["peaks"][0]["allocator_peak_bytes"] = 300 * MIB
    assert judged(tmp_path, rows).bytes == 200 * MIB


@pytest.mark.parametrize("keep", [[], ["forward"], ["init"]])
def test_without_peaks_on_both_sides_it_abstains(tmp_path: Path, keep: list[str]) -> None:
    rows = tables()
    rows["peaks"] = [row for row in rows["peaks"] if row["phase"] in keep]
    if not rows["peaks"]:
        del rows["peaks"]
    assert judged(tmp_path, rows).verdict == "unknown"
