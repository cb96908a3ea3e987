"""What the runs of a comparison have in common: ranks and steps; and what is left out, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeropeak.reports.compare.moment import MOMENTS, PEAK
from zeropeak.reports.selection import ALIKE, shown_ranks
from zeropeak.reports.units import count, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zeropeak.reports.compare.moment import Moment, Reading
    from zeropeak.reports.compare.side import Side


@dataclass(frozen=True)
class Overlap:
    """What is compared.

    Attributes:
        ranks: that all runs have.
        steps: that all runs went through on these ranks, -1 for init; empty when some run knows no steps, so that
            peaks are those of whole runs.
        lead: the rank with the highest peak of any run, of ranks that peak alike the first; figures of one rank show
            it. None when the runs share no rank.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    lead: int | None

    def reading(self, side: Side, rank: int, moment: Moment) -> Reading | None:
        """What a rank of a run held at a moment; None when that is not known."""
        return side.peak(rank, self.steps) if moment == PEAK else side.at_mark(rank, moment)


def overlap(sides: Sequence[Side]) -> Overlap:
    """Ranks and steps that all runs have; a run that was cut does not limit the steps of the others."""
    shared = set.intersection(*(set(side.ranks) for side in sides))
    everywhere = [(side, rank) for side in sides for rank in shared]
    whole = [(side, rank) for side, rank in everywhere if rank not in side.cut_ranks]
    done = [side.complete_steps(rank) for side, rank in whole or everywhere]
    known = done and all(side.knows_steps for side in sides)
    steps = frozenset.intersection(*done) if known else frozenset()
    common = Overlap(tuple(sorted(shared)), tuple(sorted(steps)), None)
    peaks = {
        rank: max((found.size_bytes for side in sides if (found := common.reading(side, rank, PEAK))), default=-1)
        for rank in common.ranks
    }
    # Ranks that do the same differ by a few bytes: the first of them stands for all.
    high = max(peaks.values(), default=0)
    lead = next((rank for rank in common.ranks if peaks[rank] >= (1 - ALIKE) * high), None)
    return Overlap(common.ranks, common.steps, lead)


def limits(sides: Sequence[Side], common: Overlap) -> list[str]:
    """What cannot be compared, and what a reader must know before believing the rest."""
    return [line for side in sides for line in (*_state(side, common), *_gaps(side, common))] + list(
        _shared(sides, common)
    )


def _state(side: Side, common: Overlap) -> Iterator[str]:
    if side.simulated:
        yield f"Every figure of {side.title} was {side.basis.value}, none of it measured."
    if not side.run.manifest:
        yield f"{side.title} has no run.json (zeropeak did not capture it): how it was set up is not known."
    elif side.status not in {None, "complete"}:
        failure = side.run.manifest.get("failure") or {}
        kind = str(failure.get("kind") or side.status).replace("_", " ")
        yield f"{side.title} did not end by itself ({kind}): what it would have held later is not known."
    cut = sorted(set(common.ranks) & side.cut_ranks)
    if cut and side.status in {None, "complete"}:
        yield f"The data of {side.title} misses a part of the run on {shown_ranks(cut)}: peaks may be higher."
    if side.sampled:
        yield (
            f"The curve of {side.title} is counters read around each event: its peaks are the allocator's own counter, "
            "and of its bytes only what ZeRO registered has a category (activations are unattributed)."
        )


def _gaps(side: Side, common: Overlap) -> Iterator[str]:
    if not side.ranks:
        yield f"{side.title} says of no rank what was allocated, so there is nothing of it to compare."
        return
    if not side.has_marks:
        yield (
            f"{side.title} has no marks, which only a capture with zeropeak's hooks sets: what it held after init and "
            "after the first forward is not known."
        )
    if common.lead is None:
        return
    for moment in MOMENTS:
        found = common.reading(side, common.lead, moment)
        if found is None and (side.has_marks or moment == PEAK):
            yield f"{side.title} does not say what was allocated {moment.name}."
        elif found is not None and found.parts is None:
            yield f"{side.title} does not say what its bytes were {moment.name}: no waterfall there."
        elif found is not None and found.gap_bytes:
            yield (
                f"The parts of {side.title} {moment.name} do not sum to what was measured; {size(found.gap_bytes)} "
                "count as unattributed."
            )


def _shared(sides: Sequence[Side], common: Overlap) -> Iterator[str]:
    if common.lead is None:
        yield "The runs have no rank in common, so nothing of them can be compared."
        return
    for side in sides:
        if more := sorted(set(side.ranks) - set(common.ranks)):
            yield f"{shown_ranks(more).capitalize()} of {side.title} left out: not every run has {_them(more)}."
    longer = [side.title for side in sides if side.complete_steps(common.lead) - set(common.steps)]
    if longer and common.steps:
        yield f"Compared over {covered(common)}, which all runs have; {' and '.join(longer)} went on."
    elif not common.steps:
        yield "Not all runs know their steps, so that a peak is that of a whole run, however many steps it had."


def _them(ranks: Sequence[int]) -> str:
    return "it" if len(ranks) == 1 else "them"


def covered(common: Overlap) -> str:
    """The steps that are compared, for people.

    >>> covered(Overlap((0,), (-1, 0, 1), 0)), covered(Overlap((0,), (), 0))
    ('init and 2 steps', 'whole runs')
    """
    steps = [step for step in common.steps if step >= 0]
    parts = ["init"] if -1 in common.steps else []
    parts += [count(len(steps), "step")] if steps else []
    return " and ".join(parts) or "whole runs"
