"""A cause on trial: what confirms it, what refutes it, and when nothing can be said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from zeropeak.parse.pipeline import parse_run
from zeropeak.reports import open_run
from zeropeak.reports.compare import Side, compare
from zeropeak.reports.compare.moment import FIRST_FORWARD, PEAK
from zeropeak.reports.compare.trial import Outcome
from zeropeak.reports.findings import Basis, Expected, Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.conftest import MakeRun

    from zeropeak.reports.compare.trial import Trial

KNOB = "zero_optimization.memory_efficient_linear"
HELD = 8192
"""The two weights of a synthetic run with ``retain``."""


@pytest.fixture
def side(make_run: MakeRun) -> Callable[..., Side]:
    """A synthetic run as a side; ``about`` changes its manifest, ``zero`` its zero_optimization."""

    def make(
        label: str, *, about: dict[str, Any] | None = None, zero: dict[str, Any] | None = None, **how: Any
    ) -> Side:
        run = make_run(label, **how)
        manifest = json.loads((run / "run.json").read_text())
        manifest.update(about or {})
        manifest["ds_config"]["zero_optimization"].update(zero or {})
        (run / "run.json").write_text(json.dumps(manifest))
        parse_run(run)
        return Side(open_run(run), label)

    return make


def only(sides: Sequence[Side]) -> Trial:
    [trial] = compare(sides).trials
    return trial


def claim(side: Side, knob: str, value: object, *expected: Expected, verdict: Verdict = Verdict.CONFIRMED) -> None:
    """Let a run have one finding only."""
    side.findings = [
        Finding("made-up", verdict, Basis.MEASURED, 0, knob=knob, value=value, expected=expected)  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize("turned_first", [False, True])
def test_a_cause_is_confirmed_when_its_knob_takes_the_predicted_bytes_away(
    side: Callable[..., Side], turned_first: bool
) -> None:
    sides = [side("off"), side("on", retain=False)]
    trial = only(sides[::-1] if turned_first else sides)
    assert (trial.outcome, trial.finding, trial.knob, trial.value) == (
        Outcome.CONFIRMED,
        "retained-after-release",
        KNOB,
        True,
    )
    assert (trial.before.label, trial.after.label) == ("off", "on")
    assert [(p.rank, p.moment, p.predicted_bytes, p.saved_bytes, p.error) for p in trial.points] == [
        (rank, moment, HELD, HELD, 0.0) for rank in (0, 1) for moment in (FIRST_FORWARD, PEAK)
    ]


def test_a_cause_is_refuted_when_the_bytes_stay(side: Callable[..., Side]) -> None:
    trial = only([side("off"), side("on", retain=True, zero={"memory_efficient_linear": True})])
    assert trial.outcome is Outcome.REFUTED
    assert {point.saved_bytes for point in trial.points} == {0}
    assert trial.worst == -1.0


def test_more_than_predicted_makes_it_suspected(side: Callable[..., Side]) -> None:
    sides = [side("off"), side("on", retain=False)]
    claim(sides[0], KNOB, True, Expected("forward", 0, 14336, 14336 - HELD // 2))
    trial = only(sides)
    assert trial.outcome is Outcome.SUSPECTED
    assert trial.worst == 1.0


def test_a_simulated_run_predicts_at_most(side: Callable[..., Side]) -> None:
    trial = only([side("off"), side("on", retain=False, about={"basis": "simulated"})])
    assert trial.outcome is Outcome.PREDICTED


@pytest.mark.parametrize(
    ("about", "what"),
    [
        ({"seq": 256}, "seq (128, 256)"),
        ({"world_size": 3}, "world_size (2, 3)"),
        ({"versions": {"torch": "2.14.0", "deepspeed": "0.19.8"}}, "versions.torch (2.13.0, 2.14.0)"),
        ({"model": {"preset": "tiny", "layers": 4}}, "model.layers (2, 4)"),
        ({"versions": None}, "the versions (not known)"),
        ({"grad_accum": None}, "grad_accum (not known)"),
    ],
)
def test_another_difference_leaves_it_open(side: Callable[..., Side], about: dict[str, Any], what: str) -> None:
    trial = only([side("off"), side("on", retain=False, about=about)])
    assert trial.outcome is Outcome.UNKNOWN
    assert trial.reason == f"the runs differ in more than this knob: {what}"


def test_a_second_knob_leaves_it_open(side: Callable[..., Side]) -> None:
    trial = only([side("off"), side("on", retain=False, zero={"reduce_bucket_size": 5})])
    assert trial.outcome is Outcome.UNKNOWN
    assert "zero_optimization.reduce_bucket_size (absent, 5)" in trial.reason


def test_another_value_than_advised_leaves_it_open(side: Callable[..., Side]) -> None:
    sides = [side("far"), side("near", zero={"stage3_max_reuse_distance": 7})]
    claim(sides[0], "zero_optimization.max_reuse_distance", 0, Expected("forward", 0, 14336, 14000))
    trial = only(sides)
    assert trial.outcome is Outcome.UNKNOWN
    assert trial.reason == "near sets it to 7, the advice is 0"


@pytest.mark.parametrize("verdict", [Verdict.RULED_OUT, Verdict.UNKNOWN, Verdict.NOT_APPLICABLE])
def test_what_is_not_claimed_is_not_tried(side: Callable[..., Side], verdict: Verdict) -> None:
    sides = [side("off"), side("on", retain=False)]
    claim(sides[0], KNOB, True, Expected("forward", 0, 14336, 6144), verdict=verdict)
    assert compare(sides).trials == []


def test_a_peak_in_a_step_that_one_run_lacks_is_not_judged(side: Callable[..., Side]) -> None:
    """The synthetic peak is that of step 1: with the optimizer's states."""
    trial = only([side("off"), side("on", retain=False, steps=1)])
    assert trial.outcome is Outcome.CONFIRMED
    assert [point.moment for point in trial.told] == [FIRST_FORWARD, FIRST_FORWARD]
    assert {point.untold for point in trial.points if point.moment == PEAK} == {
        "off peaks in a step that on did not run"
    }


def test_a_mark_that_one_run_lacks_is_not_judged(side: Callable[..., Side]) -> None:
    sides = [side("off"), side("on", retain=False, steps=1)]
    claim(sides[0], KNOB, True, Expected("backward", 1, 100, 50))
    trial = only(sides)
    assert trial.outcome is Outcome.UNKNOWN
    assert trial.reason == "on does not say what was allocated after the backward of step 1"


def test_a_prediction_of_no_change_is_not_judged(side: Callable[..., Side]) -> None:
    sides = [side("off"), side("on", retain=False)]
    claim(sides[0], KNOB, True, Expected("forward", 0, 14336, 14336))
    assert only(sides).reason == "it predicts no change that could be measured"


def test_the_peak_of_a_cut_run_is_not_judged(side: Callable[..., Side]) -> None:
    trial = only([side("cut", status="interrupted", steps=1), side("on", retain=False)])
    assert [point.moment for point in trial.told] == [FIRST_FORWARD, FIRST_FORWARD]
    assert {point.untold for point in trial.points if point.moment == PEAK} == {
        f"cut was not captured to its end on rank {rank}, so its peak may be higher" for rank in (0, 1)
    }
