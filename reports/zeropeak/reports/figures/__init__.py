"""Figures: one module each, data built apart from drawing, listed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zeropeak.reports.figures import by_module, memory_curve, parts, peak_zoom, ranks, released_alive
from zeropeak.reports.origin import run_origin_ns
from zeropeak.reports.selection import select
from zeropeak.reports.story import read_story

if TYPE_CHECKING:
    from zeropeak.reports.figures.drawing import Drawing
    from zeropeak.reports.run import Run

CURVES: Final = 4
"""Ranks with a figure of their own; of more, the extremes."""


def drawings(run: Run, at_ns: int | None = None) -> list[Drawing]:
    """All figures of a run, in the order of the report; with one of the moment ``at_ns`` (run time) when given."""
    origin_ns = run_origin_ns(run)
    stories = [read_story(run, rank) for rank in select(run, CURVES).ranks]
    return [
        *(memory_curve.drawing(story, origin_ns) for story in stories),
        released_alive.drawing(run),
        parts.at_peak(run),
        *by_module.at_peak(run),
        *parts.after_first_forward(run),
        *([] if at_ns is None else parts.at_moment(run, at_ns)),
        ranks.drawing(run),
        *(peak_zoom.drawing(story, origin_ns) for story in stories),
    ]
