"""Every rank of every run at the three moments, as dots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zeropeak.reports.compare.figures.colours import colour
from zeropeak.reports.compare.moment import MOMENTS
from zeropeak.reports.figures import style
from zeropeak.reports.figures.drawing import Drawing
from zeropeak.reports.selection import ALIKE
from zeropeak.reports.units import size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from zeropeak.reports.compare.comparison import Comparison
    from zeropeak.reports.compare.table import Cell
    from zeropeak.reports.figures.style import Panel

_MARGIN_IN: Final = 0.6


def drawing(comparison: Comparison) -> Drawing:
    """The figure."""
    caption = (
        "Allocated bytes of each rank in each run. Ranks that do the same lie on a level; one that stands out does "
        "something else, or its data lack a free."
    )
    return Drawing("ranks", caption, lambda panel: draw(panel, comparison))


def draw(panel: Panel, comparison: Comparison) -> None:
    """Draw it."""
    top = panel.title(_title(comparison))
    sides = comparison.sides
    panel.key(_MARGIN_IN, top - 0.12, [(colour(sides, side), side.title) for side in sides])
    highest = max((cell.size_bytes or 0 for row in comparison.rows for cell in row.cells), default=0)
    body = panel.part(_MARGIN_IN, 0, panel.width - _MARGIN_IN, panel.height)
    for index, place in enumerate(body.grid(1, len(MOMENTS), 0.3, 0.45, top - 0.62)):
        ax = place.axes(0, 0, place.width, place.height)
        divisor = style.memory_axis(ax, highest, 1.12, name=index == 0)
        ax.tick_params(axis="y", labelleft=index == 0)
        ax.set_title(MOMENTS[index].name, loc="left", fontsize=style.SIZE_LABEL, weight="bold", pad=3)
        ax.set_xlabel("rank", fontsize=style.SIZE_LABEL)
        _dots(ax, comparison, index, divisor)


def _dots(ax: Axes, comparison: Comparison, index: int, divisor: int) -> None:
    ranks = comparison.common.ranks
    places = {rank: place for place, rank in enumerate(ranks)}
    every = max(1, -(-len(ranks) // 8))
    ax.set_xlim(-0.6, len(ranks) - 0.4)
    ax.set_xticks(range(0, len(ranks), every), [str(rank) for rank in ranks[::every]])
    beside = 0.5 / max(len(comparison.rows), 1) if len(ranks) <= 16 else 0.0
    for turn, row in enumerate(comparison.rows):
        shift = (turn - (len(comparison.rows) - 1) / 2) * beside
        readings = row.cells[index].readings
        ax.plot(
            [places[rank] + shift for rank in readings],
            [reading.size_bytes / divisor for reading in readings.values()],
            linestyle="none",
            marker="o",
            markersize=7 if len(ranks) <= 16 else 3,
            color=colour(comparison.sides, row.side),
            markeredgecolor="white",
            markeredgewidth=0.8 if len(ranks) <= 16 else 0,
        )


def _title(comparison: Comparison) -> str:
    cells = [(row.side.title, cell) for row in comparison.rows for cell in row.cells if _range(cell)]
    worst = max(cells, key=lambda one: _range(one[1]), default=None)
    if worst is None:
        return "The ranks of each run hold the same, to the byte"
    name, cell = worst
    if _range(cell) <= ALIKE * (cell.size_bytes or 0):
        return f"The ranks of each run hold the same within {size(_range(cell))}"
    return f"Rank {cell.highest} of {name} stands out {cell.moment.name}: {size(_range(cell))} above its lowest rank"


def _range(cell: Cell) -> int:
    return (cell.size_bytes or 0) - (cell.lowest_bytes or 0)
