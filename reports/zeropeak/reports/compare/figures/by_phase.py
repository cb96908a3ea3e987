"""Allocated memory of the runs over the phases of training, each phase as wide as every other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.patches import StepPatch

from zeropeak.reports import fonts
from zeropeak.reports.compare.figures.colours import colour, line
from zeropeak.reports.figures import style
from zeropeak.reports.figures.drawing import Drawing
from zeropeak.reports.units import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from zeropeak.reports.compare.aligned import Aligned, Alignment, Place
    from zeropeak.reports.compare.side import Side
    from zeropeak.reports.figures.style import Panel

_MARGIN_IN: Final = 0.6


def drawing(alignment: Alignment, sides: Sequence[Side]) -> Drawing:
    """The figure."""
    caption = (
        "Allocated memory of one rank in each run, phase by phase: a phase takes the same room in every run, however "
        "long it lasted, so that the same work lies above the same place. A line is the highest value within a pixel, "
        "the band below it reaches to the lowest."
    )
    return Drawing("by-phase", caption, lambda panel: draw(panel, alignment, sides))


def draw(panel: Panel, alignment: Alignment, sides: Sequence[Side]) -> None:
    """Draw it."""
    top = panel.title(_title(alignment), _subtitle(alignment))
    if not alignment.places:
        panel.part(0, 0, panel.width, top).message(
            "The runs share no phase of training that has a memory curve: only captures with zeropeak's hooks know "
            "their phases (`zeropeak nsys`, `zeropeak torch`)."
        )
        return
    panel.key(_MARGIN_IN, top - 0.12, [(colour(sides, one.side), one.side.title) for one in alignment.runs])
    ax = panel.axes(_MARGIN_IN, 0.3, panel.width - _MARGIN_IN, top - 0.3 - 0.5)
    highest = max(max(one.peak_bytes) for one in alignment.runs)
    divisor = style.memory_axis(ax, highest, 1.12)
    ax.set_xlim(0, len(alignment.places))
    ax.set_xticks([])
    _shade(ax, alignment.places)
    edges = np.linspace(0, len(alignment.places), len(alignment.places) * alignment.bins + 1)
    for one in alignment.runs:
        _draw_run(ax, one, edges, divisor, colour(sides, one.side), line(sides, one.side))
    _label_peaks(ax, alignment, sides, divisor)


def _shade(ax: Axes, places: Sequence[Place]) -> None:
    room = style.width_pt(ax) / len(places)
    for index, place in enumerate(places):
        ax.axvspan(index, index + 1, facecolor=style.phase_tint(place.phase), edgecolor="none", zorder=-2)
        ax.axvline(index, color="white", linewidth=0.8, zorder=-1)
        ax.annotate(
            fonts.fit(_name(place), room - 2, style.SIZE_SMALL),
            (index + 0.5, 0),
            (0, -4),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=style.SIZE_SMALL,
            color=style.QUIET,
            annotation_clip=False,
        )


def _draw_run(ax: Axes, one: Aligned, edges: Any, divisor: int, tint: str, dash: Any) -> None:
    high, low = one.high_bytes.ravel() / divisor, one.low_bytes.ravel() / divisor
    band = StepPatch(high, edges, baseline=low, fill=True, facecolor=tint, linewidth=0, zorder=2)  # type: ignore[arg-type]
    band.set_alpha(0.25)
    ax.add_artist(band)
    baseline: Any = None  # its stub knows no baseline but a number
    ax.add_artist(
        StepPatch(high, edges, baseline=baseline, fill=False, edgecolor=tint, linewidth=1.2, linestyle=dash, zorder=3)
    )


def _label_peaks(ax: Axes, alignment: Alignment, sides: Sequence[Side], divisor: int) -> None:
    """A dot at each run's highest value."""
    for one in alignment.runs:
        flat = one.high_bytes.ravel()
        place = int(flat.argmax())
        ax.plot(
            [(place + 0.5) / alignment.bins],
            [flat[place] / divisor],
            "o",
            markersize=5,
            color=colour(sides, one.side),
            markeredgecolor="white",
            markeredgewidth=0.8,
            zorder=5,
        )


def _name(place: Place) -> str:
    step = "" if place.phase in {"init", "save", "eval"} else f" {place.step}"
    return f"{place.phase}{step}{f'.{place.turn}' if place.turn else ''}"


def _title(alignment: Alignment) -> str:
    if not alignment.places:
        return "The curves cannot be aligned by phase"
    peaks = ", ".join(f"{one.side.title} {size(max(one.peak_bytes))}" for one in alignment.runs)
    what = "highest samples" if any(one.sampled for one in alignment.runs) else "peaks"
    return f"Phase by phase on rank {alignment.rank}; {what} here: {peaks}"


def _subtitle(alignment: Alignment) -> str:
    parts = []
    if alignment.without:
        parts.append(f"no curve with phases: {', '.join(side.title for side in alignment.without)}")
    if sampled := [one.side.title for one in alignment.runs if one.sampled]:
        parts.append(f"{', '.join(sampled)}: counters read at events; between them memory may have been higher")
    return "; ".join(parts)
