"""The bug report's table as bars: what each run holds after init, after the first forward and at its peak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zeropeak.reports import fonts
from zeropeak.reports.compare.answer import answer, more
from zeropeak.reports.compare.figures.colours import colour
from zeropeak.reports.compare.moment import MOMENTS
from zeropeak.reports.compare.overlap import covered
from zeropeak.reports.figures import style
from zeropeak.reports.figures.drawing import Drawing
from zeropeak.reports.units import count, scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from zeropeak.reports.compare.comparison import Comparison
    from zeropeak.reports.compare.table import Cell
    from zeropeak.reports.figures.style import Panel

_LABEL_IN: Final = 2.1
_ROW_IN: Final = 0.3
_VALUE_IN: Final = 2.3
_MOST_IN_TITLE: Final = 3


def drawing(comparison: Comparison) -> Drawing:
    """The figure."""
    caption = (
        "Allocated bytes of the rank that holds most; the thin line goes from the rank with least to it. A peak is the "
        f"highest of {covered(comparison.common)}."
    )
    if any(row.reported for row in comparison.rows):
        caption += " As reported: the bug report's own figures."
    return Drawing("moments", caption, lambda panel: draw(panel, comparison))


def draw(panel: Panel, comparison: Comparison) -> None:
    """Draw it."""
    ranks = len(comparison.common.ranks)
    subtitle = f"{count(ranks, 'rank')} of each run" if ranks else ""
    top = panel.title(_title(comparison), subtitle)
    highest = max((cell.size_bytes or 0 for row in comparison.rows for cell in row.cells), default=0)
    if not highest:
        panel.part(0, 0, panel.width, top).message("No run says what was allocated at any of these moments.")
        return
    rows = len(comparison.rows)
    group = min((top - 0.35) / len(MOMENTS), _ROW_IN * rows + 0.42)
    for place, moment in enumerate(MOMENTS):
        bottom = top - (place + 1) * group
        panel.text(0, bottom + group - 0.2, moment.name, style.SIZE_TEXT, weight="bold", va="center")
        ax = panel.axes(_LABEL_IN, bottom + 0.05, panel.width - _LABEL_IN, group - 0.4)
        _draw_group(panel, ax, comparison, place, highest, (bottom + 0.05, group - 0.4))


def _title(comparison: Comparison) -> str:
    """The other runs against the first one, at the first forward if it is known."""
    first, *others = comparison.rows
    for place in (1, 2, 0):
        base = first.cells[place].size_bytes
        known = [(row.side.title, row.cells[place].size_bytes) for row in others]
        if base is not None and 0 < len(known) <= _MOST_IN_TITLE and all(held is not None for _, held in known):
            told = ", ".join(f"{title} {more((held or 0) - base)}" for title, held in known)
            return f"{MOMENTS[place].name.capitalize()}, against {first.side.title}: {told}"
    return answer(comparison).headline


def _draw_group(
    panel: Panel, ax: Axes, comparison: Comparison, place: int, highest: int, span: tuple[float, float]
) -> None:
    across = style.width_pt(ax) / 72
    divisor, _ = scale(highest)
    ax.set_xlim(0, highest / divisor * across / (across - _VALUE_IN))
    ax.set_ylim(len(comparison.rows), 0)
    ax.set(xticks=[], yticks=[])
    ax.spines["bottom"].set_visible(False)
    for index, row in enumerate(comparison.rows):
        cell = row.cells[place]
        middle = span[0] + span[1] * (1 - (index + 0.5) / len(comparison.rows))
        name = fonts.fit(row.side.title, (_LABEL_IN - 0.2) * 72, style.SIZE_LABEL)
        panel.text(_LABEL_IN - 0.12, middle, name, style.SIZE_LABEL, ha="right", va="center")
        if cell.size_bytes is not None:
            ax.barh(index + 0.5, cell.size_bytes / divisor, 0.68, color=colour(comparison.sides, row.side), linewidth=0)
        if cell.lowest_bytes is not None and cell.size_bytes is not None and len(cell.readings) > 1 and not cell.alike:
            ends = [cell.lowest_bytes / divisor, cell.size_bytes / divisor]
            ax.plot(ends, [index + 0.5] * 2, color=style.INK, linewidth=1.1, marker="|", markersize=6)
        ax.annotate(
            _text(cell),
            ((cell.size_bytes or 0) / divisor, index + 0.5),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=style.SIZE_LABEL,
            annotation_clip=False,
        )


def _text(cell: Cell) -> str:
    said = f"  ({cell.reported} as reported)" if cell.reported else ""
    return ("not known" if cell.size_bytes is None else cell.words()) + said
