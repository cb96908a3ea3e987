"""Allocated and released-but-alive bytes over a window, as many steps as a figure can show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.patches import StepPatch

from zeropeak.reports.curve import envelope
from zeropeak.reports.figures import style

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes

    from zeropeak.reports.columns import Ints
    from zeropeak.reports.curve import Curve
    from zeropeak.reports.story import Story

BINS: Final = 1500
"""Bins of a reduced curve: about two for each pixel's width of a panel in print."""


@dataclass(frozen=True)
class Series:
    """Steps between consecutive edges; reduced ones keep each bin's lowest and highest value.

    Attributes:
        edges_ns: one more than steps, in run time.
        released_bytes: at the moment of ``high_bytes``, so that a stack of the two is true.
        reserved_bytes: highest that the allocator held within each step; None where there is no caching allocator.
        reduced: false when every change of the curve is its own step.
        reserved_only: what was allocated is not known; the other bytes are zero.
    """

    edges_ns: Ints
    low_bytes: Ints
    high_bytes: Ints
    released_bytes: Ints
    reduced: bool
    reserved_bytes: Ints | None = None
    reserved_only: bool = False

    def __len__(self) -> int:
        return len(self.high_bytes)

    @property
    def top_bytes(self) -> int:
        """Highest value, reserved bytes included."""
        reserved = 0 if self.reserved_bytes is None else int(self.reserved_bytes.max(initial=0))
        return max(int(self.high_bytes.max(initial=0)), reserved)

    def edges_s(self, origin_ns: int) -> npt.NDArray[np.float64]:
        """Edges in seconds since ``origin_ns``."""
        return (self.edges_ns - origin_ns) / 1e9


_NONE: Final = np.empty(0, dtype=np.int64)
_EMPTY: Final = Series(_NONE, _NONE, _NONE, _NONE, reduced=False)


def build(story: Story, start_ns: int, end_ns: int, bins: int = BINS) -> Series:
    """Series of a rank between two times; empty without a memory curve.

    A cut rank's series ends where its data ends: nothing is drawn past it.
    """
    return _build(story, story.curve, start_ns, end_ns, bins)


def build_released(story: Story, start_ns: int, end_ns: int, bins: int = BINS) -> Series:
    """Series of a rank without a memory curve: of its released-but-alive bytes alone, which the event log knows."""
    return _build(story, story.released, start_ns, end_ns, bins)


def build_reserved(story: Story, start_ns: int, end_ns: int) -> Series:
    """Series of a rank of which only the reserved bytes are known."""
    moves = story.reserved.ts_ns
    edges = np.unique(np.concatenate([[start_ns], moves[(moves > start_ns) & (moves < end_ns)], [end_ns]]))
    nothing = np.zeros(len(edges) - 1, np.int64)
    return Series(edges, nothing, nothing, nothing, False, _reserved(story, edges), reserved_only=True)


def _build(story: Story, curve: Curve, start_ns: int, end_ns: int, bins: int) -> Series:
    if not len(curve):
        return _EMPTY
    first, last = max(start_ns, int(curve.ts_ns[0])), min(end_ns, max(story.end_ns, int(curve.ts_ns[-1])))
    if last <= first:
        return _EMPTY
    inside = (curve.ts_ns > first) & (curve.ts_ns < last)
    if int(np.count_nonzero(inside)) > 2 * bins:
        reduced = envelope(curve, first, last, bins)
        released = np.minimum(story.released.at(reduced.high_ns), reduced.high_bytes)
        return Series(
            reduced.edges_ns, reduced.low_bytes, reduced.high_bytes, released, True, _reserved(story, reduced.edges_ns)
        )
    moves = story.released.ts_ns
    moves = moves[(moves > first) & (moves < last)]
    edges = np.unique(np.concatenate([[first], curve.ts_ns[inside], moves, [last]])).astype(np.int64)
    high = curve.at(edges[:-1])
    released = np.minimum(story.released.at(edges[:-1]), high)
    return Series(edges, high, high, released, False, _reserved(story, edges))


def _reserved(story: Story, edges_ns: Ints) -> Ints | None:
    """Highest reserved bytes from each edge to the next."""
    reserved = story.reserved
    if not len(reserved):
        return None
    highest = reserved.at(edges_ns[:-1])
    place = np.searchsorted(edges_ns, reserved.ts_ns, side="right") - 1
    inside = (place >= 0) & (place < len(highest))
    np.maximum.at(highest, place[inside], reserved.size_bytes[inside])
    return highest


def draw(ax: Axes, series: Series, origin_ns: int, divisor: int, line: float = 1.0) -> None:
    """Fill allocated and, within it, released-but-alive bytes; outline the highest values."""
    if not len(series):
        return
    edges = series.edges_s(origin_ns)
    low, high, released = (v / divisor for v in (series.low_bytes, series.high_bytes, series.released_bytes))
    if series.reserved_bytes is not None:
        held = series.reserved_bytes / divisor
        ax.add_artist(_outline(held, edges, linestyle=(0, (4, 2)), edgecolor=style.QUIET, linewidth=0.9, zorder=2.5))
        if series.reserved_only:
            return
    bottom: Any = low
    # Added as artists, not by ``Axes.stairs``: that walks every corner to find limits which are set already.
    ax.add_artist(StepPatch(high, edges, fill=True, facecolor=style.ALLOCATED_FILL, linewidth=0, zorder=1))
    if series.reduced:
        band = StepPatch(high, edges, baseline=bottom, fill=True, facecolor=style.ALLOCATED, linewidth=0, zorder=1.5)
        band.set_alpha(0.45)
        ax.add_artist(band)
    ax.add_artist(StepPatch(released, edges, fill=True, facecolor=style.RELEASED_FILL, linewidth=0, zorder=2))
    ax.add_artist(_outline(high, edges, edgecolor=style.ALLOCATED, linewidth=line, zorder=3))


def _outline(values: npt.NDArray[np.float64], edges: npt.NDArray[np.float64], **how: Any) -> StepPatch:
    baseline: Any = None  # its stub knows no baseline but a number
    return StepPatch(values, edges, baseline=baseline, fill=False, **how)
