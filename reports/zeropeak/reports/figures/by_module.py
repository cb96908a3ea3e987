"""What was alive at a moment by module: one stacked bar for each, layers that are alike together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from zeropeak.reports import alive, fonts
from zeropeak.reports.figures import style
from zeropeak.reports.figures.drawing import Drawing
from zeropeak.reports.selection import peak_bytes
from zeropeak.reports.units import count, percent, scale, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from zeropeak.reports.alive import Alive, Group
    from zeropeak.reports.figures.style import Panel
    from zeropeak.reports.run import Run

ROWS: Final = 14
"""Bars; of more groups the smallest are one."""
COLOURS: Final = 7
"""Categories with a colour of their own; of more, the smallest are "the rest"."""
REST: Final = "the rest"
_LABEL_IN: Final = 3.1
_VALUE_IN: Final = 1.25


@dataclass(frozen=True)
class Data:
    """Groups of modules, largest first, and the categories in the order in which bars stack them."""

    title: str
    subtitle: str
    groups: Sequence[Group]
    categories: Sequence[str]
    total_bytes: int


def at_peak(run: Run) -> list[Drawing]:
    """The rank with the highest peak; nothing when no rank has blocks at its peak."""
    peaks = peak_bytes(run)
    for rank in sorted(peaks, key=lambda rank: (-peaks[rank], rank)):
        found = alive.at_peak(run, rank)
        if found is not None:
            return [_drawing("peak-modules", build(found, "at its peak"))]
    return []


def at_moment(found: Alive | None, when: str) -> list[Drawing]:
    """One rank at another moment; ``when``: "at 12.5000 s"."""
    return [] if found is None else [_drawing("moment-modules", build(found, when))]


def build(found: Alive, when: str) -> Data:
    """Data of one rank at a moment."""
    groups = alive.by_module(found)
    sizes: dict[str, int] = {}
    for group in groups:
        for category, size_bytes in group.parts.items():
            sizes[category] = sizes.get(category, 0) + size_bytes
    kept = sorted(sizes, key=lambda name: -sizes[name])[:COLOURS]
    categories = style.category_order(kept)
    if len(kept) < len(sizes):
        categories.append(REST)
    if len(groups) > ROWS:
        small = groups[ROWS - 1 :]
        groups = [*groups[: ROWS - 1], _joined(small)]
    total = found.total_bytes
    named = [group for group in groups if group.name != alive.NO_MODULE]
    title = f"Rank {found.rank} {when} by module"
    if named:
        top = named[0]
        title = (
            f"{percent(top.size_bytes, total)} of what rank {found.rank} holds {when} is in {_label(top)}: "
            f"{size(top.size_bytes)} of {size(total)}"
        )
    inside = total - sum(group.size_bytes for group in groups if group.name == alive.NO_MODULE)
    subtitle = (
        f"{percent(inside, total)} lies in modules: parameters in the one that owns them, all else in the one that was "
        "running when it was born"
    )
    return Data(title, subtitle, groups, categories, total)


def _joined(groups: Sequence[Group]) -> Group:
    parts: dict[str, int] = {}
    for group in groups:
        for category, size_bytes in group.parts.items():
            parts[category] = parts.get(category, 0) + size_bytes
    return alive.Group(count(len(groups), "smaller group"), 1, parts, sum(group.blocks for group in groups))


def _label(group: Group) -> str:
    return group.name if group.members == 1 else f"{group.name} ({group.members})"


def _drawing(name: str, data: Data) -> Drawing:
    caption = (
        "Modules whose names differ in the layer's number only are one bar, their number in brackets. In no module: "
        "what was made outside every forward and backward, such as optimizer states and flat buffers."
    )
    return Drawing(name, caption, lambda panel: draw(panel, data))


def draw(panel: Panel, data: Data) -> None:
    """Draw it."""
    top = panel.title(data.title, data.subtitle) - 0.12
    panel.key(0, top, [(_colour(name), style.category_label(name)) for name in data.categories])
    top -= 0.22
    height = min(top - 0.45, 0.36 * len(data.groups))
    bottom = top - height
    for row, group in enumerate(data.groups):
        label = fonts.fit(_label(group), (_LABEL_IN - 0.15) * 72, style.SIZE_LABEL)
        place = top - (row + 0.5) * height / len(data.groups)
        panel.text(_LABEL_IN - 0.12, place, label, style.SIZE_LABEL, ha="right", va="center")
    _bars(panel.axes(_LABEL_IN, bottom, panel.width - _LABEL_IN, height), data)


def _bars(ax: Axes, data: Data) -> None:
    highest = max((group.size_bytes for group in data.groups), default=1)
    divisor, unit = scale(highest)
    across = style.width_pt(ax) / 72
    ax.set_xlim(0, max(highest, 1) / divisor * across / (across - _VALUE_IN))
    ax.set_ylim(len(data.groups), 0)
    ax.set_yticks([])
    ax.set_xlabel(unit, fontsize=style.SIZE_LABEL)
    ax.spines["left"].set_visible(False)
    for row, group in enumerate(data.groups):
        left = 0.0
        for name, size_bytes in _stack(group, data.categories):
            width = max(size_bytes, 0) / divisor
            ax.barh(row + 0.5, width, 0.62, left=left, linewidth=0, zorder=3, **_fill(name))
            left += width
        share = percent(group.size_bytes, data.total_bytes)
        ax.text(left, row + 0.5, f" {size(group.size_bytes)}  {share}", va="center", fontsize=style.SIZE_LABEL)


def _stack(group: Group, categories: Sequence[str]) -> list[tuple[str, int]]:
    named = [(name, group.parts.get(name, 0)) for name in categories if name != REST]
    rest = group.size_bytes - sum(size_bytes for _, size_bytes in named)
    return [*named, (REST, rest)] if REST in categories else named


def _colour(name: str) -> str:
    return style.QUIET if name in {REST, "unattributed"} else style.category_colour(name)


def _fill(name: str) -> dict[str, Any]:
    return {"color": style.QUIET, "edgecolor": "none"} if name == REST else style.category_fill(name, "none")
