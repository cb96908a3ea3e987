"""Waterfalls add up, whatever the tables hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from zeropeak.parse.pipeline import parse_run
from zeropeak.parse.schema import CATEGORIES
from zeropeak.reports import open_run
from zeropeak.reports.compare import Side, compare
from zeropeak.reports.compare.moment import MOMENTS, PEAK, Moment, Reading, whole
from zeropeak.reports.compare.overlap import Overlap
from zeropeak.reports.compare.waterfall import waterfall

if TYPE_CHECKING:
    from tests.conftest import MakeRun

SIZES = st.integers(-(2**40), 2**40)
PARTS = st.dictionaries(st.sampled_from([*CATEGORIES, "of a newer zeropeak"]), SIZES, min_size=1)


class Told:
    """A run that holds one thing."""

    def __init__(self, reading: Reading | None) -> None:
        self.reading = reading

    def peak(self, rank: int, steps: object) -> Reading | None:
        return self.reading


@given(total=SIZES, sample=SIZES, parts=PARTS)
def test_parts_sum_to_what_was_allocated(total: int, sample: int, parts: dict[str, int]) -> None:
    known, _ = whole(total, sample, parts)
    assert known is not None
    assert sum(known.values()) == total


@given(totals=st.tuples(SIZES, SIZES), samples=st.tuples(SIZES, SIZES), parts=st.tuples(PARTS, PARTS))
def test_steps_sum_to_the_difference(
    totals: tuple[int, int], samples: tuple[int, int], parts: tuple[dict[str, int], dict[str, int]]
) -> None:
    sides = [
        Told(Reading(total, parts=whole(total, sample, part)[0]))
        for total, sample, part in zip(totals, samples, parts, strict=True)
    ]
    fall = waterfall(sides[0], sides[1], Overlap((0,), (), 0), 0, PEAK)  # type: ignore[arg-type]
    assert fall is not None
    assert sum(size for _, size in fall.steps) == totals[1] - totals[0] == fall.difference_bytes
    assert "unattributed" in dict(fall.steps)


def test_without_parts_there_is_no_waterfall() -> None:
    sides = Told(Reading(7, parts={"inputs": 7})), Told(Reading(7))
    assert waterfall(*sides, Overlap((0,), (), 0), 0, PEAK) is None  # type: ignore[arg-type]


def test_every_rank_and_moment_of_a_run_has_one(make_run: MakeRun) -> None:
    runs = [make_run("off"), make_run("on", retain=False)]
    for run in runs:
        parse_run(run)
    [pair] = compare([Side(open_run(run), run.name) for run in runs]).pairs
    assert [(fall.rank, fall.moment) for fall in pair.waterfalls] == [(r, m) for r in (0, 1) for m in MOMENTS]
    forward = next(fall for fall in pair.waterfalls if fall.moment == Moment("forward", 0))
    assert [step for step in forward.steps if step[1]] == [("released_but_alive", -8192)]
    assert forward.difference_bytes == -8192


def test_a_run_against_itself_differs_in_nothing(make_run: MakeRun) -> None:
    run = make_run()
    parse_run(run)
    comparison = compare([Side(open_run(run), "a"), Side(open_run(run), "b")])
    [pair] = comparison.pairs
    assert {fall.steps for fall in pair.waterfalls} == {(("unattributed", 0),)}
    assert (pair.differences.settings, pair.differences.unknown) == ((), ())
    assert comparison.trials == []


def test_a_peak_between_samples_is_a_step_of_its_own(make_run: MakeRun) -> None:
    """On a GPU without a history the allocator's own counter is the peak, the parts are of the highest sample."""
    runs = [make_run("off", counters=True, kineto=False), make_run("on", counters=True, kineto=False, retain=False)]
    for run in runs:
        parse_run(run)
    comparison = compare([Side(open_run(run), run.name) for run in runs])
    [pair] = comparison.pairs
    peak = next(fall for fall in pair.waterfalls if fall.moment == PEAK)
    assert sum(size for _, size in peak.steps) == peak.difference_bytes
    assert any("counters read around each event" in line for line in comparison.limits)
