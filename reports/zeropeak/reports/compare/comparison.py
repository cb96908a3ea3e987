"""A comparison: everything that is said of some runs side by side, before it is drawn or written."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from zeropeak.reports.compare.aligned import Alignment, align
from zeropeak.reports.compare.moment import MOMENTS
from zeropeak.reports.compare.overlap import Overlap, limits, overlap
from zeropeak.reports.compare.settings import Differences, differences
from zeropeak.reports.compare.table import Cell, Row, rows
from zeropeak.reports.compare.trial import Outcome, Point, Trial, trials
from zeropeak.reports.compare.waterfall import Waterfall, waterfall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeropeak.reports.compare.side import Side

COMPARISON_SCHEMA: Final = 1
"""Version of comparison.json."""
_SUREST: Final = (Outcome.CONFIRMED, Outcome.PREDICTED, Outcome.SUSPECTED, Outcome.REFUTED, Outcome.UNKNOWN)


@dataclass(frozen=True)
class Pair:
    """Two runs.

    Attributes:
        waterfalls: of every rank that is compared at every moment, where both runs say what their bytes were.
        trials: findings of either run whose knob is turned in the other, surest first.
    """

    before: Side
    after: Side
    differences: Differences
    waterfalls: Sequence[Waterfall]
    trials: Sequence[Trial]

    def of_rank(self, rank: int | None) -> list[Waterfall]:
        """The waterfalls of one rank, in order of the moments."""
        return [one for one in self.waterfalls if one.rank == rank]


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        rows: the bug report's table, a row a run in the order given.
        pairs: any two of them, in that order.
        alignment: curves by phase of the leading rank; None when the runs share no rank.
        limits: what cannot be compared, in sentences.
    """

    sides: Sequence[Side]
    common: Overlap
    rows: Sequence[Row]
    pairs: Sequence[Pair]
    alignment: Alignment | None
    limits: Sequence[str]

    @property
    def trials(self) -> list[Trial]:
        """All trials, surest first."""
        return surest(trial for pair in self.pairs for trial in pair.trials)

    @property
    def simulated(self) -> bool:
        """Whether any figure was not measured."""
        return any(side.simulated for side in self.sides)

    def to_json(self, answer: Sequence[str]) -> dict[str, Any]:
        """The content of comparison.json; sizes in bytes."""
        return {
            "schema": COMPARISON_SCHEMA,
            "answer": list(answer),
            "runs": [_side_json(side) for side in self.sides],
            "ranks": list(self.common.ranks),
            "steps": list(self.common.steps),
            "rank_shown": self.common.lead,
            "limits": list(self.limits),
            "table": [_cell_json(row.side, cell) for row in self.rows for cell in row.cells],
            "reported_by": next((row.reported.source for row in self.rows if row.reported), None),
            "pairs": [_pair_json(pair) for pair in self.pairs],
            "phases": [] if self.alignment is None else _phases_json(self.alignment),
        }


def compare(sides: Sequence[Side], left_out: Sequence[str] = ()) -> Comparison:
    """Compare runs.

    Args:
        sides: two or more, in the order in which they are shown.
        left_out: sentences on runs that could not take part.
    """
    common = overlap(sides)
    pairs = [_pair(before, after, common) for before, after in combinations(sides, 2)]
    alignment = None if common.lead is None else align(sides, common.lead, common.steps)
    return Comparison(sides, common, rows(sides, common), pairs, alignment, [*left_out, *limits(sides, common)])


def surest(found: Any) -> list[Trial]:
    """Trials in the order of how much they tell."""
    return sorted(found, key=lambda trial: _SUREST.index(trial.outcome))


def _pair(before: Side, after: Side, common: Overlap) -> Pair:
    falls = [waterfall(before, after, common, rank, moment) for rank in common.ranks for moment in MOMENTS]
    return Pair(
        before,
        after,
        differences(before.run, after.run),
        [one for one in falls if one is not None],
        surest([*trials(before, after, common), *trials(after, before, common)]),
    )


def _side_json(side: Side) -> dict[str, Any]:
    manifest = side.run.manifest
    return {
        "label": side.label,
        "run": side.run.name,
        "basis": side.basis.value,
        "status": side.status,
        "config": manifest.get("config_name"),
        "tool": manifest.get("tool"),
        "versions": manifest.get("versions"),
        "ranks": list(side.ranks),
        "how": side.captured or None,
    }


def _cell_json(side: Side, cell: Cell) -> dict[str, Any]:
    return {
        "run": side.label,
        "basis": side.basis.value,
        "at": cell.moment.at,
        "step": cell.moment.step
        if cell.highest is None or cell.moment.step is not None
        else cell.readings[cell.highest].step,
        "rank": cell.highest,
        "bytes": cell.size_bytes,
        "at_least": cell.at_least,
        "lowest_bytes": cell.lowest_bytes,
        "by_rank": {str(rank): reading.size_bytes for rank, reading in cell.readings.items()},
        "reported": cell.reported,
    }


def _pair_json(pair: Pair) -> dict[str, Any]:
    return {
        "before": pair.before.label,
        "after": pair.after.label,
        "basis": "simulated" if pair.before.simulated or pair.after.simulated else "measured",
        "differ_in": [{"key": one.key, "before": one.before, "after": one.after} for one in pair.differences.settings],
        "not_known": list(pair.differences.unknown),
        "waterfalls": [_waterfall_json(one) for one in pair.waterfalls],
        "verdicts": [_trial_json(trial) for trial in pair.trials],
    }


def _waterfall_json(one: Waterfall) -> dict[str, Any]:
    return {
        "at": one.moment.at,
        "step": one.moment.step,
        "rank": one.rank,
        "before_bytes": one.before.size_bytes,
        "after_bytes": one.after.size_bytes,
        "difference_bytes": one.difference_bytes,
        "parts": dict(one.steps),
    }


def _trial_json(trial: Trial) -> dict[str, Any]:
    return {
        "finding": trial.finding,
        "of": trial.before.label,
        "turned_in": trial.after.label,
        "knob": trial.knob,
        "value": trial.value,
        "verdict": trial.outcome.value,
        "reason": trial.reason or None,
        "points": [_point_json(point) for point in trial.points],
    }


def _point_json(point: Point) -> dict[str, Any]:
    return {
        "rank": point.rank,
        "at": point.moment.at,
        "step": point.moment.step,
        "predicted_bytes": point.predicted_bytes,
        "measured_bytes": point.saved_bytes,
        "relative_error": point.error,
        "before_bytes": point.before_bytes,
        "after_bytes": point.after_bytes,
        "why_not": point.untold,
    }


def _phases_json(alignment: Alignment) -> list[dict[str, Any]]:
    return [
        {
            "step": place.step,
            "phase": place.phase,
            "turn": place.turn,
            "rank": alignment.rank,
            "simulated": [one.side.label for one in alignment.runs if one.side.simulated],
            "peak_bytes": {one.side.label: one.peak_bytes[index] for one in alignment.runs},
        }
        for index, place in enumerate(alignment.places)
    ]
