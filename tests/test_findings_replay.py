"""The coordinator's rules told again: what another knob would have done, checked against runs that have that knob."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from tests.zero3 import KIB, LIVE, Model, other, peak_of, zero3

from zeropeak.reports import open_run
from zeropeak.reports.findings.coordinator import Knobs, Trace, schedule
from zeropeak.reports.findings.replay import read_replay

if TYPE_CHECKING:
    from pathlib import Path

CHAIN = Model({"a": (1000,), "b": (2000, 100), "head": (4000,)}, work={("", "loss"): 9000, ("b", "backward"): 2000})


def trace(*users: tuple[int, ...], numel: dict[int, int], forward: int = 0) -> Trace:
    """Runs one after the other; the first ``forward`` of them (or all) are forwards."""
    actions = tuple((run, ends) for run in range(len(users)) for ends in (False, True))
    return Trace(users, actions, tuple(run < (forward or len(users)) for run in range(len(users))), numel)


def test_a_prefetch_goes_over_its_bucket_by_up_to_one_parameter() -> None:
    runs = trace((0,), (1,), (2,), (3,), numel={0: 1, 1: 6, 2: 6, 3: 6})
    told = schedule(runs, Knobs(0, 7, LIVE, frozenset()))
    assert told.gathers == [(False, (0,)), (True, (1, 2)), (True, (3,))]


def test_no_prefetch_while_too_much_is_gathered_but_every_fetch() -> None:
    runs = trace((0,), (1,), numel={0: 8, 1: 8})
    assert schedule(runs, Knobs(0, 7, 8, frozenset())).gathers == [(False, (0,)), (False, (1,))]
    assert schedule(runs, Knobs(0, 7, 9, frozenset())).gathers == [(False, (0,)), (True, (1,))]


def test_a_parameter_whose_next_use_a_prefetch_passed_over_stays() -> None:
    runs = trace((0,), (1,), (0,), numel={0: 4, 1: 4})
    assert schedule(runs, Knobs(0, 4, LIVE, frozenset())).releases == {1: (0,), 3: (1,), 5: (0,)}
    assert schedule(runs, Knobs(0, 5, LIVE, frozenset())).releases == {3: (1,), 5: (0,)}


def test_persistent_parameters_are_there_and_never_go() -> None:
    runs = replace(trace((0, 1), (0,), numel={0: 1, 1: 4}), resident=frozenset({0}))
    told = schedule(runs, Knobs(0, 0, LIVE, frozenset({0})))
    assert (told.gathers, list(told.releases.values())) == ([(False, (1,))], [(1,)])


@pytest.mark.parametrize(
    "change",
    [
        {"reuse": 0},
        {"reuse": 4001},
        {"bucket": 0},
        {"bucket": 500},
        {"threshold": 0},
        {"reuse": 0, "bucket": 0, "threshold": 0},
    ],
)
@pytest.mark.parametrize("held", [frozenset(), frozenset({"a", "b"})])
def test_a_changed_knob_is_foretold_to_the_byte(tmp_path: Path, change: dict[str, int], held: frozenset[str]) -> None:
    model = other(CHAIN, reuse=9000, bucket=1500, threshold=100, held=held)
    changed = other(model, **change)
    run = zero3(tmp_path / "now", model)
    names = {"reuse": "max_reuse_distance", "bucket": "prefetch_bucket_size"}
    knobs: dict[str, Any] = {names[name]: value for name, value in change.items() if name in names}
    if "threshold" in change:
        knobs["persistent"] = changed.persistent
    saving = read_replay(run, 0).saving(**knobs)
    assert saving is not None
    assert saving.peak_bytes == peak_of(run)
    assert saving.without_bytes == peak_of(zero3(tmp_path / "then", changed))


# Each example writes and parses two runs: a failing one is shown as it is, shrinking takes minutes.
@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate], derandomize=True)
@example(sizes=[[1], [1, 25]], knobs=(53, 10, 27), value=1, held=False)
@given(
    sizes=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=2), min_size=1, max_size=4),
    knobs=st.tuples(st.integers(0, 200), st.integers(0, 60), st.integers(0, 120)),
    value=st.integers(0, 200),
    held=st.booleans(),
)
def test_any_reuse_distance_is_foretold(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[list[int]],
    knobs: tuple[int, int, int],
    value: int,
    held: bool,
) -> None:
    modules = {f"m{number}": tuple(KIB * size for size in group) for number, group in enumerate(sizes)}
    reuse, bucket, live = (KIB * knob for knob in knobs)
    model = Model(modules, reuse, bucket, live, held=frozenset(modules if held else ()), work={("", "loss"): 50 * KIB})
    run = zero3(tmp_path_factory.mktemp("now"), model)
    saving = read_replay(run, 0).saving(max_reuse_distance=KIB * value)
    assert saving is not None
    assert saving.without_bytes == peak_of(zero3(tmp_path_factory.mktemp("then"), other(model, reuse=KIB * value)))


def test_a_run_that_did_otherwise_is_not_retold(tmp_path: Path) -> None:
    run = zero3(tmp_path, other(CHAIN, reuse=9000), facts={"zero": {"stage": 3, "max_reuse_distance": 0}})
    replay = read_replay(run, 0)
    assert replay.doubt == "the gathers and releases of step 1 are not those that DeepSpeed's rules give"
    assert replay.saving(max_reuse_distance=0) is None


def test_one_rank_lets_go_of_nothing(tmp_path: Path) -> None:
    replay = read_replay(zero3(tmp_path, other(CHAIN, reuse=9000), facts={"world_size": 1}), 0)
    assert replay.doubt == "with one rank nothing is gathered or let go of"


def test_one_step_is_not_retold(tmp_path: Path) -> None:
    replay = read_replay(zero3(tmp_path, other(CHAIN, steps=1)), 0)
    assert replay.doubt == "no step was captured in which the trace of modules was complete"


def test_a_weight_that_was_never_released_in_a_forward_may_be_held_by_autograd(tmp_path: Path) -> None:
    run = zero3(tmp_path, other(CHAIN, reuse=9000))
    replay = read_replay(open_run(run.path), 0)
    replay._released = frozenset()
    assert replay.doubt is None
    assert replay.saving(max_reuse_distance=0) is None
