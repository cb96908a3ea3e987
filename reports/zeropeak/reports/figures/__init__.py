"""Figures: one module each, data built apart from drawing, listed here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from zeropeak.reports.basis import PREDICTED, simulated
from zeropeak.reports.figures import by_module, memory_curve, parts, peak_zoom, ranks, released_alive
from zeropeak.reports.given import of_files
from zeropeak.reports.origin import run_origin_ns
from zeropeak.reports.selection import select
from zeropeak.reports.story import UNATTRIBUTED, read_story

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeropeak.reports.figures.drawing import Drawing
    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Story

CURVES: Final = 4
"""Ranks with a figure of their own; of more, the extremes."""


def drawings(run: Run, at_ns: int | None = None) -> list[Drawing]:
    """All figures of a run, in the order of the report; with one of the moment ``at_ns`` (run time) when given."""
    origin_ns = run_origin_ns(run)
    stories = [read_story(run, rank) for rank in select(run, CURVES).ranks]
    if of_files(run):
        return _of_files(run, stories, origin_ns, at_ns)
    figures = [
        *(memory_curve.drawing(story, origin_ns) for story in stories),
        released_alive.drawing(run),
        parts.at_peak(run),
        *by_module.at_peak(run),
        *parts.after_first_forward(run),
        *([] if at_ns is None else parts.at_moment(run, at_ns)),
        ranks.drawing(run),
        *(peak_zoom.drawing(story, origin_ns) for story in stories),
    ]
    return [_predicted(figure) for figure in figures] if simulated(run) else figures


def _predicted(figure: Drawing) -> Drawing:
    """The same figure, whose title and caption say that nothing was measured."""
    return replace(
        figure,
        caption=f"{figure.caption} Every value is predicted.",
        draw=lambda panel: figure.draw(replace(panel, before_titles=PREDICTED)),
    )


def _of_files(run: Run, stories: Sequence[Story], origin_ns: int, at_ns: int | None) -> list[Drawing]:
    """Those that have something to show: page 1 says what files from elsewhere do not tell."""
    told = [story for story in stories if len(story.curve) or len(story.reserved) or len(story.events)]
    peaked = [story for story in stories if story.peak is not None]
    named = any(part.category != UNATTRIBUTED for story in peaked for part in story.composition)
    return [
        *(memory_curve.drawing(story, origin_ns) for story in told),
        *([released_alive.drawing(run)] if any(story.releases for story in stories) else []),
        *([parts.at_peak(run), *by_module.at_peak(run)] if named else []),
        *([] if at_ns is None else parts.at_moment(run, at_ns)),
        *([ranks.drawing(run)] if len(peaked) > 1 else []),
        *(peak_zoom.drawing(story, origin_ns) for story in peaked),
    ]
