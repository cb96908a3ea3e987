"""From one run to the other, category by category: a column a moment, the steps sum to the measured difference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zeropeak.reports import fonts
from zeropeak.reports.compare.answer import signed
from zeropeak.reports.figures import style
from zeropeak.reports.figures.drawing import Drawing
from zeropeak.reports.story import RELEASED_ALIVE, UNATTRIBUTED
from zeropeak.reports.units import scale, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from zeropeak.reports.compare.comparison import Pair
    from zeropeak.reports.compare.overlap import Overlap
    from zeropeak.reports.compare.waterfall import Waterfall
    from zeropeak.reports.figures.style import Panel

_LABEL_IN: Final = 1.75
_VALUE_IN: Final = 0.85
_ROW_IN: Final = 0.34


def drawing(pair: Pair, common: Overlap) -> Drawing:
    """The figure of two runs, on the leading rank."""
    falls = pair.of_rank(common.lead)
    caption = (
        f"Down each column: what {pair.before.title} held, then what {pair.after.title} holds more (to the right) or "
        "less (to the left) in each category, then what it holds. The steps sum to the difference of the measured "
        "totals exactly; unattributed is what nothing explains."
    )
    name = f"waterfall-{pair.before.label}-to-{pair.after.label}".replace("/", "-")
    return Drawing(name, caption, lambda panel: draw(panel, pair, falls))


def draw(panel: Panel, pair: Pair, falls: Sequence[Waterfall]) -> None:
    """Draw it."""
    top = panel.title(_title(pair, falls), _subtitle(falls))
    if not falls:
        panel.part(0, 0, panel.width, top).message(
            f"At no moment do both {pair.before.title} and {pair.after.title} say what their bytes were, so there is "
            "nothing to set side by side. Captures with `zeropeak nsys` or `zeropeak torch` say it."
        )
        return
    names = _names(falls)
    height = min(top - 0.75, _ROW_IN * (len(names) + 2))
    bottom = top - 0.3 - height
    rows = [pair.before.title, *(style.category_label(name) for name in names), pair.after.title]
    for row, label in enumerate(rows):
        ends = row in {0, len(rows) - 1}
        middle = bottom + height * (1 - (row + 0.5) / len(rows))
        strong = ends or (names[row - 1] == RELEASED_ALIVE)
        panel.text(
            _LABEL_IN - 0.12,
            middle,
            fonts.fit(label, (_LABEL_IN - 0.15) * 72, style.SIZE_LABEL, bold=True),
            style.SIZE_LABEL,
            ha="right",
            va="center",
            weight="bold" if strong else "normal",
        )
    body = panel.part(_LABEL_IN, 0, panel.width - _LABEL_IN, panel.height)
    for fall, place in zip(falls, body.grid(1, len(falls), 0.15, bottom, top - 0.3), strict=True):
        _draw_one(place.axes(0, 0, place.width, place.height), fall, names)


def _names(falls: Sequence[Waterfall]) -> list[str]:
    return style.category_order(name for fall in falls for name, _ in fall.steps)


def _title(pair: Pair, falls: Sequence[Waterfall]) -> str:
    if not falls:
        return f"What {pair.before.title} and {pair.after.title} held cannot be set side by side"
    fall = next((one for one in falls if one.moment.at == "forward"), falls[-1])
    if not fall.largest:
        return f"{pair.after.title} holds what {pair.before.title} holds {fall.moment.name}, category by category"
    if not fall.difference_bytes:
        steps = ", ".join(f"{signed(size_bytes)} {style.category_label(name)}" for name, size_bytes in fall.largest[:2])
        return f"{pair.after.title} holds as much as {pair.before.title} {fall.moment.name}, of other things: {steps}"
    more = fall.difference_bytes > 0
    name, step = next(one for one in fall.largest if (one[1] > 0) == more)
    much = f"{size(abs(fall.difference_bytes))} {'more' if more else 'less'}"
    return (
        f"{pair.after.title} holds {much} than {pair.before.title} {fall.moment.name}; the largest step that way is "
        f"{signed(step)} {style.category_label(name)}"
    )


def _subtitle(falls: Sequence[Waterfall]) -> str:
    return f"rank {falls[0].rank}; each column sums to the difference that was measured" if falls else ""


def _draw_one(ax: Axes, fall: Waterfall, names: Sequence[str]) -> None:
    steps = dict(fall.steps)
    edges = [fall.before.size_bytes]
    for name in names:
        edges.append(edges[-1] + steps.get(name, 0))
    highest, lowest = max(edges), min(0, *edges)
    divisor, unit = scale(highest)
    across = style.width_pt(ax) / 72
    ax.set_xlim(lowest / divisor * 1.05, max(highest, 1) / divisor * across / (across - _VALUE_IN))
    ax.set_ylim(len(names) + 2, 0)
    ax.set_yticks([])
    ax.xaxis.set_major_locator(style.round_ticks(3))
    ax.set_xlabel(unit, fontsize=style.SIZE_LABEL)
    ax.axvline(0, color=style.QUIET, linewidth=0.6)
    ax.spines["left"].set_visible(False)
    _total(ax, 0, fall.before.size_bytes, divisor)
    for row, name in enumerate(names, 1):
        step, left = steps.get(name, 0), edges[row - 1]
        ax.plot([left / divisor] * 2, [row - 0.19, row + 0.19], color=style.QUIET, linewidth=0.6, zorder=2)
        if step or name == UNATTRIBUTED:
            ax.barh(
                row + 0.5,
                step / divisor,
                0.62,
                left=left / divisor,
                linewidth=0.4 if name == UNATTRIBUTED else 0,
                zorder=3,
                **style.category_fill(name, "none"),
            )
            text, colour = (signed(step) if step else "0 B"), style.INK
        else:
            text, colour = "no difference", style.QUIET
        ax.text(
            max(left, edges[row]) / divisor,
            row + 0.5,
            f" {text}",
            va="center",
            fontsize=style.SIZE_LABEL,
            color=colour,
            weight="bold" if name == RELEASED_ALIVE and step else "normal",
        )
    _total(ax, len(names) + 1, fall.after.size_bytes, divisor)
    ax.set_title(
        f"{fall.moment.name}: {signed(fall.difference_bytes) if fall.difference_bytes else 'no difference'}",
        loc="left",
        fontsize=style.SIZE_LABEL,
        weight="bold",
        pad=4,
    )


def _total(ax: Axes, row: int, size_bytes: int, divisor: int) -> None:
    ax.barh(row + 0.5, size_bytes / divisor, 0.62, color=style.ALLOCATED, linewidth=0, zorder=3)
    ax.text(
        size_bytes / divisor, row + 0.5, f" {size(size_bytes)}", va="center", fontsize=style.SIZE_LABEL, weight="bold"
    )
