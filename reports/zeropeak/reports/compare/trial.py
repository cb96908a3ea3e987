"""A cause on trial: does turning the knob that a finding names take away the bytes that it predicts?

The finding is of one run, the other run has its knob turned; both must be alike in everything else.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from zeropeak.reports.compare.moment import PEAK, Moment
from zeropeak.reports.compare.settings import alike, differences, shown
from zeropeak.reports.findings import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zeropeak.reports.compare.overlap import Overlap
    from zeropeak.reports.compare.settings import Differences
    from zeropeak.reports.compare.side import Side
    from zeropeak.reports.findings import Expected, Finding

TOLERANCE: Final = 0.05
"""A saving came as predicted when it is within this share of the prediction: what else a knob moves (one layer's
activations, on the tiny model 0.5 %) stays below, a cause that does not hold is far from it."""
_SAME_PEAK: Final = 0.01
"""The peak that a prediction is of and that of the steps compared are the same within this share of the prediction."""
_CLAIMS: Final = (Verdict.CONFIRMED, Verdict.PREDICTED, Verdict.SUSPECTED)


class Outcome(StrEnum):
    """How sure a cause is after its knob was turned."""

    CONFIRMED = "confirmed"
    """The predicted bytes went away, at every point that could be compared."""
    PREDICTED = "predicted"
    """As confirmed, but a run was simulated."""
    SUSPECTED = "suspected"
    """More went away than predicted: the knob moves something else too."""
    REFUTED = "refuted"
    """The predicted bytes did not go away, or not all."""
    UNKNOWN = "unknown"
    """The runs do not tell; the reason says why."""


@dataclass(frozen=True)
class Point:
    """One rank at one moment.

    Attributes:
        predicted_bytes: saving that the finding expects.
        before_bytes, after_bytes: allocated in the two runs; None when that is not known.
        untold: why the saving is not known; None when it is.
    """

    rank: int
    moment: Moment
    predicted_bytes: int
    before_bytes: int | None
    after_bytes: int | None
    untold: str | None = None

    @property
    def saved_bytes(self) -> int | None:
        """Saving that came; negative when the knob made it worse."""
        if self.untold or self.before_bytes is None or self.after_bytes is None:
            return None
        return self.before_bytes - self.after_bytes

    @property
    def error(self) -> float | None:
        """Of the prediction, relative to it, with its sign: -0.01 when 1 % less came; None without a saving."""
        if self.saved_bytes is None or not self.predicted_bytes:
            return None
        return (self.saved_bytes - self.predicted_bytes) / abs(self.predicted_bytes)


@dataclass(frozen=True)
class Trial:
    """A finding's knob, turned.

    Attributes:
        before, after: run with the finding, and run with the knob turned.
        points: every expectation of the finding on every rank that both runs have.
        reason: why nothing can be said; empty when it can.
    """

    before: Side
    after: Side
    finding: str
    knob: str
    value: object
    outcome: Outcome
    points: Sequence[Point]
    reason: str = ""

    @property
    def told(self) -> list[Point]:
        """Points with a prediction and a saving."""
        return [point for point in self.points if point.error is not None]

    @property
    def worst(self) -> float | None:
        """Largest error of a prediction, with its sign."""
        return max((point.error for point in self.told if point.error is not None), key=abs, default=None)


def trials(before: Side, after: Side, common: Overlap) -> list[Trial]:
    """Every finding of ``before`` whose knob is turned in ``after``, surest first."""
    differing = differences(before.run, after.run)
    claims: defaultdict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in before.findings:
        if finding.verdict in _CLAIMS and finding.knob and finding.value is not None and finding.rank in common.ranks:
            claims[finding.id, finding.knob].append(finding)
    return [
        _trial(before, after, common, claim, differing)
        for (_, knob), claim in claims.items()
        if differing.of(knob) is not None
    ]


def _trial(before: Side, after: Side, common: Overlap, claim: Sequence[Finding], differing: Differences) -> Trial:
    lead = claim[0]
    knob = lead.knob or ""
    turned = differing.of(knob)
    points = [_point(before, after, common, one.rank, e) for one in claim for e in one.expected]
    trial = Trial(before, after, lead.id, knob, lead.value, Outcome.UNKNOWN, points)
    if turned is not None and not alike(turned.after, lead.value):
        return _untold(trial, f"{after.title} sets it to {shown(turned.after)}, the advice is {shown(lead.value)}")
    if others := differing.besides(knob):
        return _untold(trial, f"the runs differ in more than this knob: {', '.join(others)}")
    if not points:
        return _untold(trial, "the finding does not say what turning it saves")
    if not trial.told:
        return _untold(trial, points[0].untold or "it predicts no change that could be measured")
    outcome = _judge(trial.told)
    if outcome is Outcome.CONFIRMED and (before.simulated or after.simulated):
        outcome = Outcome.PREDICTED
    return Trial(before, after, lead.id, knob, lead.value, outcome, points)


def _untold(trial: Trial, reason: str) -> Trial:
    return Trial(
        trial.before, trial.after, trial.finding, trial.knob, trial.value, Outcome.UNKNOWN, trial.points, reason
    )


def _judge(points: Iterable[Point]) -> Outcome:
    errors = [point.error for point in points if point.error is not None]
    if min(errors) < -TOLERANCE:
        return Outcome.REFUTED
    return Outcome.SUSPECTED if max(errors) > TOLERANCE else Outcome.CONFIRMED


def _point(before: Side, after: Side, common: Overlap, rank: int, expected: Expected) -> Point:
    """Measured at the moment that the expectation is of."""
    predicted = expected.now_bytes - expected.then_bytes
    if expected.at == PEAK.at:
        return _peak_point(before, after, common, rank, predicted, expected.now_bytes)
    moment = Moment(expected.at, expected.step)
    now, then = before.readings(rank, moment), after.readings(rank, moment)
    # The expectation names no micro-step: it is the one where this much was allocated.
    place = now.index(expected.now_bytes) if expected.now_bytes in now else 0
    lacking = [side.title for side, found in ((before, now), (after, then)) if len(found) <= place]
    if lacking:
        untold = (
            f"{' and '.join(lacking)} {'do' if len(lacking) > 1 else 'does'} not say what was allocated {moment.name}"
        )
        return Point(rank, moment, predicted, None, None, untold)
    return Point(rank, moment, predicted, now[place], then[place])


def _peak_point(before: Side, after: Side, common: Overlap, rank: int, predicted: int, now_bytes: int) -> Point:
    one, other = before.peak(rank, common.steps), after.peak(rank, common.steps)
    found = None if one is None else one.size_bytes, None if other is None else other.size_bytes
    untold = None
    for side, reading in ((before, one), (after, other)):
        if reading is None:
            untold = f"{side.title} has no memory curve on rank {rank}"
        elif reading.at_least:
            untold = f"{side.title} was not captured to its end on rank {rank}, so its peak may be higher"
    if untold is None and one is not None and abs(one.size_bytes - now_bytes) > _SAME_PEAK * abs(predicted):
        untold = f"{before.title} peaks in a step that {after.title} did not run"
    return Point(rank, PEAK, predicted, *found, untold)
