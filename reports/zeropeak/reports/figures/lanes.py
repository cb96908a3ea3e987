"""Events as lanes of marks under a curve: one lane a kind, solid where events are closer than a pixel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from zeropeak.reports.columns import NEVER
from zeropeak.reports.figures import style

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from zeropeak.reports.columns import Ints
    from zeropeak.reports.story import Events

HEIGHT_IN: Final = 0.17
_PIXELS: Final = 1400


@dataclass(frozen=True)
class Lane:
    """Events of one kind in a window.

    Attributes:
        start_ns, end_ns: what is drawn: events that touch or nearly touch are one.
        count: events in the window.
    """

    kind: str
    start_ns: Ints
    end_ns: Ints
    count: int


def build(events: Events, start_ns: int, end_ns: int) -> list[Lane]:
    """Lanes of the kinds that occur between two times, in the vocabulary's order."""
    pixel = max((end_ns - start_ns) // _PIXELS, 1)
    found = []
    for kind in events.kinds:
        if kind not in style.EVENT_COLOURS:
            continue
        those = events.of_kind(kind)
        inside = (those.start_ns <= end_ns) & (those.end_ns >= start_ns)
        if not inside.any():
            continue
        begin = np.maximum(those.start_ns[inside], start_ns)
        finish = np.minimum(np.where(those.end_ns[inside] == NEVER, end_ns, those.end_ns[inside]), end_ns)
        found.append(Lane(kind, *merged(begin, np.maximum(finish, begin + pixel), pixel), int(inside.sum())))
    return found


def merged(start_ns: Ints, end_ns: Ints, gap_ns: int) -> tuple[Ints, Ints]:
    """Join intervals (ordered by start) that are closer than ``gap_ns``.

    >>> merged(np.array([0, 5, 20]), np.array([4, 8, 30]), 2)
    (array([ 0, 20]), array([ 8, 30]))
    """
    if not len(start_ns):
        return start_ns, end_ns
    reach = np.maximum.accumulate(end_ns)
    first = np.flatnonzero(np.concatenate([[True], start_ns[1:] >= reach[:-1] + gap_ns]))
    return start_ns[first], reach[np.append(first[1:] - 1, len(start_ns) - 1)]


def draw(ax: Axes, lanes: Sequence[Lane], origin_ns: int) -> None:
    """Draw the lanes, first kind on top; axes of ``HEIGHT_IN`` a lane."""
    for row, lane in enumerate(lanes):
        spans = list(zip((lane.start_ns - origin_ns) / 1e9, (lane.end_ns - lane.start_ns) / 1e9, strict=True))
        ax.broken_barh(spans, (row + 0.14, 0.72), facecolor=style.EVENT_COLOURS[lane.kind], linewidth=0)
    ax.set_ylim(len(lanes), 0)
    ax.set_yticks([row + 0.5 for row in range(len(lanes))], [f"{lane.kind} {lane.count:,}" for lane in lanes])
    ax.tick_params(axis="y", length=0, labelsize=style.SIZE_SMALL, pad=2)
    ax.spines["left"].set_visible(False)
