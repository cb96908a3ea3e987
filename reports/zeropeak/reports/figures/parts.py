"""What was alive at a moment: one bar a category, for every rank or, for many ranks, as a range over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from zeropeak.reports import composition
from zeropeak.reports.figures import by_module, stacks, style
from zeropeak.reports.figures.drawing import Drawing
from zeropeak.reports.origin import run_origin_ns
from zeropeak.reports.story import RELEASED_ALIVE, UNATTRIBUTED
from zeropeak.reports.units import count, moment, percent, scale, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from zeropeak.reports.composition import Composition
    from zeropeak.reports.figures.style import Panel
    from zeropeak.reports.run import Run

LIMIT: Final = 4
_LABEL_IN: Final = 1.75
_VALUE_IN: Final = 1.2
"""Room for a value and its share beside the longest bar."""


@dataclass(frozen=True)
class Data:
    """Categories, largest first and ``unattributed`` last, with each rank's bytes.

    Attributes:
        names: categories.
        compositions: of all ranks.
    """

    title: str
    subtitle: str
    names: Sequence[str]
    compositions: Sequence[Composition]

    def sizes(self, name: str) -> list[int]:
        """Bytes of a category by rank."""
        return [one.parts.get(name, 0) for one in self.compositions]


def build(compositions: Sequence[Composition], when: str) -> Data:
    """Data of all ranks that have a composition; ``when``: "at its peak", "after the first forward"."""
    names = stacks.categories(compositions)
    if compositions and UNATTRIBUTED not in names:
        names.append(UNATTRIBUTED)  # zero is worth saying: it adds up
    sizes = {name: max(one.parts.get(name, 0) for one in compositions) for name in names}
    names.sort(key=lambda name: (name == UNATTRIBUTED, -sizes[name]))
    return Data(_title(compositions, when), _subtitle(compositions), names, compositions)


def at_peak(run: Run) -> Drawing:
    """What was alive at each rank's own peak."""
    return _drawing("peak-composition", build(composition.at_peaks(run), "at its peak"))


def after_first_forward(run: Run) -> list[Drawing]:
    """What was alive after the first forward; nothing when no rank got there with its blocks known."""
    compositions = composition.at_mark(run, 0, "forward")
    return (
        [_drawing("first-forward-composition", build(compositions, "after the first forward"))] if compositions else []
    )


def at_moment(run: Run, ts_ns: int) -> list[Drawing]:
    """What was alive at a moment of run time: by category on every rank, by module on the one that held most."""
    when = f"at {moment(ts_ns, run_origin_ns(run))}"
    compositions, blocks = composition.at_moment(run, ts_ns)
    most = max(blocks, key=lambda one: one.total_bytes, default=None)
    return [_drawing("moment-composition", build(compositions, when)), *by_module.at_moment(most, when)]


def _drawing(name: str, data: Data) -> Drawing:
    caption = (
        "Every byte that was allocated, in exactly one category; the bars of a rank sum to what was allocated. "
        "Unattributed is what nothing explains."
    )
    return Drawing(name, caption, lambda panel: draw(panel, data))


def _title(compositions: Sequence[Composition], when: str) -> str:
    if not compositions:
        return f"What was alive {when.replace('its', 'the')} is not known"
    top = max(compositions, key=lambda one: one.total_bytes)
    name = max((n for n in top.parts if n != UNATTRIBUTED), key=lambda n: top.parts[n], default=UNATTRIBUTED)
    what = "weights that ZeRO had already released" if name == RELEASED_ALIVE else style.category_label(name)
    alike = len(compositions) > 1 and all(dict(one.parts) == dict(top.parts) for one in compositions)
    who = "every rank" if alike else f"rank {top.rank}"
    share = percent(top.parts[name], top.total_bytes)
    return f"{share} of what {who} holds {when} is {what}: {size(top.parts[name])} of {size(top.total_bytes)}"


def _subtitle(compositions: Sequence[Composition]) -> str:
    if not compositions:
        return ""
    gaps = [one for one in compositions if one.gap_bytes]
    if gaps:
        worst = max(gaps, key=lambda one: abs(one.gap_bytes))
        return f"does NOT add up: rank {worst.rank}'s parts differ from what was allocated by {size(worst.gap_bytes)}"
    left = max(abs(one.parts.get(UNATTRIBUTED, 0)) / max(one.total_bytes, 1) for one in compositions)
    return f"the parts of each rank sum to what was allocated; {_most(100 * left)} is unattributed"


def _most(percentage: float) -> str:
    return "less than 0.01 %" if percentage < 0.01 else f"at most {percentage:.2f} %"


def draw(panel: Panel, data: Data) -> None:
    """Draw it."""
    top = panel.title(data.title, data.subtitle)
    if not data.compositions:
        panel.part(0, 0, panel.width, top).message(
            "The tables hold no composition of a peak: the run has no memory curve, or what its allocations hold was "
            "not registered. Capture with `zeropeak nsys` or `zeropeak torch` and let the run end by itself."
        )
        return
    body = panel.part(_LABEL_IN, 0, panel.width - _LABEL_IN, panel.height)
    height = min(top - 0.75, 0.42 * len(data.names))
    for row, name in enumerate(data.names):
        panel.text(
            _LABEL_IN - 0.12,
            top - 0.3 - (row + 0.5) * height / len(data.names),
            style.category_label(name),
            style.SIZE_LABEL,
            ha="right",
            va="center",
            weight="bold" if name == RELEASED_ALIVE else "normal",
        )
    bottom = top - 0.3 - height
    if len(data.compositions) <= LIMIT:
        for column, place in enumerate(body.grid(1, len(data.compositions), 0.15, bottom, top - 0.3)):
            _draw_rank(place.axes(0, 0, place.width, place.height), data, column)
    else:
        _draw_ranges(body.axes(0, bottom, body.width - 2.2, height), data)


def _frame(ax: Axes, data: Data, room: float) -> int:
    highest = max(max(data.sizes(name)) for name in data.names)
    lowest = min(0, *(min(data.sizes(name)) for name in data.names))
    divisor, unit = scale(highest)
    ax.set_xlim(lowest / divisor * 1.05, max(highest, 1) / divisor * room)
    ax.set_ylim(len(data.names), 0)
    ax.set_yticks([])
    ax.xaxis.set_major_locator(style.round_ticks(3))
    ax.set_xlabel(unit, fontsize=style.SIZE_LABEL)
    ax.axvline(0, color=style.QUIET, linewidth=0.6)
    ax.spines["left"].set_visible(False)
    return divisor


def _draw_rank(ax: Axes, data: Data, column: int) -> None:
    one = data.compositions[column]
    total = one.total_bytes
    across = style.width_pt(ax) / 72
    divisor = _frame(ax, data, across / (across - _VALUE_IN))
    for row, name in enumerate(data.names):
        size_bytes = one.parts.get(name, 0)
        _bar(ax, row, 0, size_bytes / divisor, name)
        share = f"  {percent(size_bytes, total)}" if size_bytes > 0 else ""
        ax.text(
            max(size_bytes, 0) / divisor,
            row + 0.5,
            f" {size(size_bytes)}{share}",
            va="center",
            fontsize=style.SIZE_LABEL,
            weight="bold" if name == RELEASED_ALIVE and size_bytes else "normal",
        )
    ax.set_title(f"rank {one.rank}: {size(total)}", loc="left", fontsize=style.SIZE_LABEL, weight="bold", pad=4)


def _draw_ranges(ax: Axes, data: Data) -> None:
    divisor = _frame(ax, data, 1.02)
    for row, name in enumerate(data.names):
        sizes = np.array(data.sizes(name))
        low, mid, high = int(sizes.min()), int(np.median(sizes)), int(sizes.max())
        _bar(ax, row, 0, mid / divisor, name)
        if low != high:
            ax.plot(
                [low / divisor, high / divisor],
                [row + 0.5] * 2,
                color=style.INK,
                linewidth=1.2,
                marker="|",
                markersize=6,
                zorder=4,
            )
        where = (
            "" if size(low) == size(high) else f" to {size(high)} (rank {data.compositions[int(sizes.argmax())].rank})"
        )
        ax.annotate(
            f"{size(low)}{where}",
            (1, row + 0.5),
            (6, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            fontsize=style.SIZE_LABEL,
            annotation_clip=False,
        )
    ax.set_title(
        f"{count(len(data.compositions), 'rank')}: bar to the median, line from lowest to highest",
        loc="left",
        fontsize=style.SIZE_LABEL,
        weight="bold",
        pad=4,
    )


def _bar(ax: Axes, row: int, left: float, right: float, name: str) -> None:
    ax.barh(
        row + 0.5,
        right - left,
        0.62,
        left=left,
        linewidth=0.4 if name == UNATTRIBUTED else 0,
        zorder=3,
        **style.category_fill(name, "none"),
    )
