"""Curves of several runs on one axis: each phase of each step gets the same room, however long a run took for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from zeropeak.reports.columns import NEVER, Ints
from zeropeak.reports.curve import envelope
from zeropeak.reports.story import read_story

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from zeropeak.reports.compare.side import Side
    from zeropeak.reports.curve import Curve
    from zeropeak.reports.story import Story

BINS: Final = 1500
"""Bins over the whole width: about two for each pixel of a page in print."""
STEPS_SHOWN: Final = 4
"""Steps of one picture; of more, a phase is too narrow to tell its shape."""


class Place(NamedTuple):
    """A phase that runs share. ``turn`` counts phases of its name within the step (micro-steps), from 0."""

    step: int
    phase: str
    turn: int


@dataclass(frozen=True)
class Aligned:
    """A rank's curve in one run, phase by phase.

    Attributes:
        low_bytes, high_bytes: lowest and highest value in each of ``bins`` equal parts of each phase, one row a place.
        peak_bytes: highest value of each phase, with what follows it until the next one begins.
    """

    side: Side
    low_bytes: Ints
    high_bytes: Ints
    peak_bytes: Sequence[int]
    sampled: bool


@dataclass(frozen=True)
class Alignment:
    """Runs with a curve, on the places that they share; ``bins`` a place."""

    rank: int
    places: Sequence[Place]
    bins: int
    runs: Sequence[Aligned]
    without: Sequence[Side]


def align(sides: Sequence[Side], rank: int, steps: Collection[int]) -> Alignment:
    """Align a rank's curves by the phases that all runs with a curve share, of ``steps`` (empty: of all).

    A phase's part of a curve goes on until the next phase begins, so that nothing between two phases is lost.
    """
    stories = [(side, read_story(side.run, rank)) for side in sides if rank in side.run.rank_ids]
    spans = {side.label: _spans(story) for side, story in stories if len(story.curve)}
    with_curve = [(side, story) for side, story in stories if spans.get(side.label)]
    without = [side for side in sides if not spans.get(side.label)]
    shared = [
        place for place in (spans[with_curve[0][0].label] if with_curve else {}) if _is_shared(place, spans, steps)
    ]
    bins = max(1, BINS // max(len(shared), 1))
    return Alignment(
        rank,
        shared,
        bins,
        [_aligned(side, story, spans[side.label], shared, bins) for side, story in with_curve],
        without,
    )


def _is_shared(place: Place, spans: Mapping[str, Mapping[Place, tuple[int, int]]], steps: Collection[int]) -> bool:
    wanted = place.step < STEPS_SHOWN and (not steps or place.step in steps)
    return wanted and all(place in found for found in spans.values() if found)


def _spans(story: Story) -> dict[Place, tuple[int, int]]:
    """Phases of a rank in order, each with its begin and that of the next (the curve's end for the last)."""
    phases = [span for span in story.phases if span.start_ns != NEVER]
    seen: Counter[tuple[int, str]] = Counter()
    found = {}
    for index, span in enumerate(phases):
        step = -1 if span.step is None else span.step
        end = (
            phases[index + 1].start_ns
            if index + 1 < len(phases)
            else min(span.end_ns, max(story.end_ns, span.start_ns))
        )
        found[Place(step, span.phase, seen[step, span.phase])] = (span.start_ns, max(end, span.start_ns + 1))
        seen[step, span.phase] += 1
    return found


def _aligned(
    side: Side, story: Story, spans: Mapping[Place, tuple[int, int]], places: Sequence[Place], bins: int
) -> Aligned:
    parts = [_part(story.curve, *spans[place], bins) for place in places]
    low = np.array([part[0] for part in parts], dtype=np.int64).reshape(len(places), bins)
    high = np.array([part[1] for part in parts], dtype=np.int64).reshape(len(places), bins)
    return Aligned(side, low, high, [int(row.max()) for row in high], story.curve.sampled)


def _part(curve: Curve, start_ns: int, end_ns: int, bins: int) -> tuple[Ints, Ints]:
    inside = envelope(curve, start_ns, end_ns, bins)
    return inside.low_bytes, inside.high_bytes
