"""Weights that the schedule keeps or gathers early: reuse distance, prefetch, persistence, modules above the knobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.written import write_tables
from tests.zero3 import Model, other, peak_of, zero3

from zeropeak.reports import open_run
from zeropeak.reports.findings import (
    module_larger_than_knobs,
    persistent_parameters,
    prefetch_overshoot,
    reuse_distance_hold,
)
from zeropeak.reports.units import size

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from zeropeak.reports.findings.finding import Finding

ZERO = "zero_optimization."
LOSS = {("", "loss"): 90_000}
FINDS = (reuse_distance_hold, prefetch_overshoot, persistent_parameters, module_larger_than_knobs)
BACK = Model({"a": (1000,), "b": (2000,), "head": (4000,)}, work=LOSS)
"""The peak lies between forward and backward; counted from the end of its forward, ``b`` is used again after the head's
two runs (8,000 elements), ``a`` after those and the two of ``b`` (12,000), the head at once."""


def evidence(found: Finding, table: str) -> list[dict[str, object]]:
    """Rows of one table of a finding's evidence."""
    return [row for one in found.evidence if one.table == table for row in one.rows]


def test_what_is_kept_for_reuse_at_the_peak_and_the_distance_that_lets_go(tmp_path: Path) -> None:
    model = other(BACK, reuse=10_000)
    run = zero3(tmp_path / "now", model)
    [found] = reuse_distance_hold.find(run)
    assert (found.verdict, found.bytes, found.step) == ("confirmed", 2 * 6000, 1)
    assert (found.knob, found.value) == (f"{ZERO}stage3_max_reuse_distance", 0)
    [expected] = found.expected
    assert (expected.now_bytes, expected.then_bytes) == (peak_of(run), peak_of(run) - 2 * 6000)
    assert expected.then_bytes == peak_of(zero3(tmp_path / "then", other(model, reuse=0)))
    kept = {row["param"]: row["distance_numel"] for row in evidence(found, "delayed_frees")}
    assert kept == {"b.1": 8000, "head.2": 0}
    assert found.modules == ["head", "b"]
    assert found.headline.startswith("At the peak 2 full parameters that no module was using stayed gathered, because ")


def test_the_largest_distance_that_saves_nearly_all_is_advised(tmp_path: Path) -> None:
    model = Model({"a": (3000,), "head": (100,)}, reuse=5000, work=LOSS)
    run = zero3(tmp_path / "now", model)
    [found] = reuse_distance_hold.find(run)
    assert (found.verdict, found.bytes, found.value) == ("confirmed", 2 * 3100, 200)
    # The head, used again at once, stays.
    assert found.expected[0].then_bytes == peak_of(run) - 2 * 3000
    assert found.expected[0].then_bytes == peak_of(zero3(tmp_path / "then", other(model, reuse=200)))


def test_what_autograd_holds_is_not_saved_by_a_smaller_distance(tmp_path: Path) -> None:
    held = frozenset(BACK.modules)
    model = other(BACK, reuse=10_000, held=held, state=500, zero={"memory_efficient_linear": False})
    [found] = reuse_distance_hold.find(zero3(tmp_path / "now", model, facts={"linear_wrapped": False}))
    assert (found.verdict, found.bytes, found.value, found.expected) == ("confirmed", 12_000, None, ())
    linear, both = (other(model, held=frozenset(), reuse=reuse) for reuse in (10_000, 0))
    before, after = peak_of(zero3(tmp_path / "linear", linear)), peak_of(zero3(tmp_path / "both", both))
    assert found.advice == (
        f"Lowering {ZERO}stage3_max_reuse_distance alone saves nothing here, since autograd holds on to 11.7 KiB of it "
        f"until the backward (retained-after-release). Once {ZERO}memory_efficient_linear is true, a distance of 0 "
        f"saves 11.7 KiB ({size(before)} to {size(after)})."
    )


def test_near_misses_of_the_reuse_distance(tmp_path: Path) -> None:
    [none] = reuse_distance_hold.find(zero3(tmp_path / "0", other(BACK, reuse=1, modules={"a": (10,), "b": (10,)})))
    assert (none.verdict, none.bytes) == ("ruled_out", 20)
    assert none.headline == "Kept for reuse at the peak: 20 B, <1 % of the peak (at most 20 B at any time)."
    [off] = reuse_distance_hold.find(zero3(tmp_path / "1", BACK))
    assert (off.verdict, off.headline) == (
        "not_applicable",
        f"{ZERO}stage3_max_reuse_distance is 0: nothing is kept for reuse.",
    )
    # A peak elsewhere: what is kept then does not make it.
    work = {("a", "forward"): 900_000}
    [early] = reuse_distance_hold.find(zero3(tmp_path / "2", other(BACK, reuse=10_000, work=work)))
    assert early.verdict == "ruled_out"


def test_weights_gathered_ahead_at_the_peak(tmp_path: Path) -> None:
    model = Model({"a": (100,), "b": (5000,), "c": (2000,)}, bucket=6000, work={("a", "forward"): 20_000})
    run = zero3(tmp_path / "now", model)
    [found] = prefetch_overshoot.find(run)
    assert (found.verdict, found.bytes, found.knob) == (
        "confirmed",
        2 * 7000,
        f"{ZERO}stage3_prefetch_bucket_size",
    )
    assert "prefetch bucket is 6,000 elements, the largest prefetch took 7,000 (it may go over by one parameter)" in (
        found.headline
    )
    [expected] = found.expected
    assert found.value == 0
    assert expected.now_bytes == peak_of(run)
    assert expected.then_bytes == peak_of(zero3(tmp_path / "then", other(model, bucket=0)))
    assert {row["kind"] for row in evidence(found, "zero_events")} == {"prefetch"}


def test_what_a_collective_allocates_for_itself_goes_with_its_prefetch(tmp_path: Path) -> None:
    model = Model({"a": (100,), "b": (5000,)}, bucket=6000, gloo=True, work={("a", "forward"): 60_000})
    [found] = prefetch_overshoot.find(zero3(tmp_path / "now", model))
    assert (found.verdict, found.bytes, found.modules) == ("confirmed", 2 * 2 * 5000, ["b"])
    assert found.expected[0].then_bytes == peak_of(zero3(tmp_path / "then", other(model, bucket=0)))


def test_a_smaller_bucket_that_saves_nearly_all_is_advised(tmp_path: Path) -> None:
    modules = {"a": (100,), "b": (100,), "c": (20_000,), "d": (3000,)}
    model = Model(modules, bucket=20_000, work={("a", "forward"): 60_000})
    run = zero3(tmp_path / "now", model)
    [found] = prefetch_overshoot.find(run)
    assert (found.verdict, found.value) == ("confirmed", 100)
    assert found.expected[0].then_bytes == peak_of(zero3(tmp_path / "then", other(model, bucket=100)))


def test_near_misses_of_the_prefetch(tmp_path: Path) -> None:
    model = Model({"a": (100,), "b": (5000,)}, bucket=6000, work={("b", "backward"): 90_000})
    [used] = prefetch_overshoot.find(zero3(tmp_path / "0", model))
    assert (used.verdict, used.bytes) == ("ruled_out", 0)
    assert used.headline == "Prefetched and not yet used at the peak: nothing (at most 9.77 KiB at any time)."
    [full] = prefetch_overshoot.find(zero3(tmp_path / "1", other(model, live=50)))
    assert (full.verdict, full.headline) == ("ruled_out", "No prefetch was launched in this run.")
    [early] = prefetch_overshoot.find(zero3(tmp_path / "2", other(model, steps=1)))
    assert early.verdict == "unknown"
    assert early.advice == "Capture three or more steps with `zeropeak nsys` or `zeropeak torch`."


def test_small_parameters_that_stay(tmp_path: Path) -> None:
    modules = {"a": (100,), "norm": (3000,), "b": (5000,), "scale": (10,)}
    model = Model(modules, threshold=3000, work={("a", "backward"): 20_000, ("", "loss"): 9000})
    run = zero3(tmp_path / "now", model)
    [found] = persistent_parameters.find(run)
    assert (found.verdict, found.bytes, found.knob) == (
        "confirmed",
        2 * 3110,
        f"{ZERO}stage3_param_persistence_threshold",
    )
    assert found.value == 2999
    assert found.expected[0].then_bytes == peak_of(zero3(tmp_path / "then", other(model, threshold=2999)))
    assert found.headline.startswith("Parameters of at most 3,000 elements (3 of 4 parameters) stay gathered ")
    assert found.advice is not None
    assert found.advice.endswith("That makes 1 parameter more to gather for each use.")


def test_near_misses_of_persistence(tmp_path: Path) -> None:
    model = Model({"a": (10,), "b": (5000,)}, threshold=10, work=LOSS)
    [small] = persistent_parameters.find(zero3(tmp_path / "0", model))
    assert (small.verdict, small.bytes) == ("ruled_out", 20)
    assert "stay gathered: 20 B, <1 % of the peak" in small.headline
    [none] = persistent_parameters.find(zero3(tmp_path / "1", other(model, threshold=9)))
    assert none.verdict == "not_applicable"


def test_small_parameters_that_reuse_keeps_anyway(tmp_path: Path) -> None:
    model = Model({"a": (100,), "norm": (3000,)}, threshold=3000, reuse=100_000, work=LOSS)
    [found] = persistent_parameters.find(zero3(tmp_path, model))
    assert (found.verdict, found.value, found.expected) == ("confirmed", None, ())
    assert found.advice is not None
    assert found.advice.startswith(f"Lowering {ZERO}stage3_param_persistence_threshold saves nothing here: ")


def test_one_module_that_no_knob_makes_smaller(tmp_path: Path) -> None:
    model = Model({"a": (100,), "wte": (9000, 10)}, bucket=50, live=200, work={("wte", "forward"): 20_000})
    run = zero3(tmp_path, model)
    [found] = module_larger_than_knobs.find(run)
    assert (found.verdict, found.bytes, found.knob, found.value, found.expected) == (
        "confirmed",
        2 * 9010,
        None,
        None,
        (),
    )
    assert found.headline.startswith(
        f"wte alone has 9,010 elements (17.6 KiB), more than {ZERO}stage3_prefetch_bucket_size (50) and "
        f"{ZERO}stage3_max_live_parameters (200); it was running at the peak with "
    )
    assert found.advice is not None
    assert "cannot lower this part" in found.advice


def test_a_fetch_in_flight_counts_to_its_module(tmp_path: Path) -> None:
    model = Model({"a": (100,), "wte": (9000, 10)}, bucket=50, live=200)
    [found] = module_larger_than_knobs.find(zero3(tmp_path, model))
    # The flat buffer and both copies out of it.
    assert (found.verdict, found.bytes) == ("confirmed", 2 * 2 * 9010)


def test_near_misses_of_a_large_module(tmp_path: Path) -> None:
    model = Model({"a": (100,), "wte": (9000,)}, bucket=10_000, live=20_000, work={("wte", "forward"): 20_000})
    [fits] = module_larger_than_knobs.find(zero3(tmp_path / "0", model))
    assert (fits.verdict, fits.headline) == (
        "ruled_out",
        "No module is larger than the knobs: wte is the largest with 9,000 elements (17.6 KiB).",
    )
    [away] = module_larger_than_knobs.find(zero3(tmp_path / "1", other(model, bucket=50, work=LOSS)))
    assert away.verdict == "ruled_out"
    assert "was running at the peak" in away.headline


@pytest.mark.parametrize("module", FINDS)
def test_stage_2_a_missing_rank_a_missing_hook_and_no_memory(tmp_path: Path, module: ModuleType) -> None:
    find = module.find
    [second] = find(zero3(tmp_path / "0", BACK, facts={"zero": {"stage": 2}}))
    assert second.verdict == "not_applicable"
    rank = {"rank": 0, "world_size": 2, "status": "complete"}
    params = [{"rank": 0, "param_id": 0, "numel": 1, "persistent": True}]
    here, gone = find(
        open_run(write_tables(tmp_path / "1", {"ranks": [rank], "params": params}, zero={"stage": 3}, world_size=2))
    )
    assert (here.verdict, here.headline) == (
        "unknown",
        "The rank has no memory curve, so what was alive at its peak is not known.",
    )
    assert (gone.rank, gone.verdict, gone.headline) == (1, "unknown", "The rank left nothing behind.")
    [stageless] = find(open_run(write_tables(tmp_path / "2", {"ranks": [{"rank": 0}]})))
    assert (stageless.verdict, stageless.bytes) == ("unknown", None)


@pytest.mark.parametrize("module", [reuse_distance_hold, prefetch_overshoot, module_larger_than_knobs])
def test_without_the_hooks_nothing_is_said(tmp_path: Path, module: ModuleType) -> None:
    missing = [{"name": "module forward begin", "why": "no such function"}]
    [found] = module.find(zero3(tmp_path, BACK, facts={"hooks_missing": missing}))
    assert found.verdict == "unknown"
    assert 'hook "module forward begin" is missing (no such function)' in found.headline


def test_a_simulated_run_predicts(tmp_path: Path) -> None:
    [found] = reuse_distance_hold.find(zero3(tmp_path, other(BACK, reuse=10_000), basis="simulated"))
    assert (found.verdict, found.basis) == ("predicted", "simulated")


def test_a_leaf_module_is_fetched_with_all_below_it(tmp_path: Path) -> None:
    rows: dict[str, list[dict[str, Any]]] = {
        "ranks": [{"rank": 0, "world_size": 4, "memory_source": "kineto"}],
        "modules": [{"rank": 0, "module_id": n, "name": name} for n, name in enumerate(("", "moe", "moe.a", "moe.b"))],
        "params": [{"rank": 0, "param_id": n, "module_id": 2 + n, "numel": 500, "full_bytes": 1000} for n in (0, 1)],
        "zero_events": [{"rank": 0, "event_id": 9, "kind": "fetch", "module_id": 1, "start_ns": 10, "end_ns": 11}],
        "zero_event_params": [{"rank": 0, "event_id": 9, "param_id": n} for n in (0, 1)],
        "module_ranges": [
            {"rank": 0, "event_id": 8, "module_id": 1, "direction": "forward", "start_ns": 9, "end_ns": 50}
        ],
        "memory_blocks": [
            {"rank": 0, "block_id": n, "size_bytes": 1000, "born_ns": 12, "param_id": n, "category": "param_full"}
            for n in (0, 1)
        ],
        "memory_events": [{"rank": 0, "ts_ns": 12, "action": "alloc", "size_bytes": 1, "allocated_bytes": 2500}],
        "peaks": [{"rank": 0, "scope": "run", "ts_ns": 12, "allocated_bytes": 2500}],
        "peak_composition": [{"rank": 0, "scope": "run", "category": "gathered_in_use", "size_bytes": 2000}],
    }
    zero = {"stage": 3, "stage3_prefetch_bucket_size": 600, "stage3_max_live_parameters": 900}
    [found] = module_larger_than_knobs.find(open_run(write_tables(tmp_path, rows, zero=zero, fake_world=True)))
    assert (found.verdict, found.bytes, found.modules) == ("confirmed", 2000, ["moe"])
    assert found.headline.startswith("moe alone has 1,000 elements (1.95 KiB), more than ")
