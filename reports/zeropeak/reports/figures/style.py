"""One look for all figures: colours that colour-blind readers can tell apart, type sizes, and placing in inches."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from zeropeak.parse.schema import CATEGORIES
from zeropeak.reports import fonts
from zeropeak.reports.columns import NEVER
from zeropeak.reports.names import ELLIPSIS
from zeropeak.reports.units import axis_name, axis_value, scale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from zeropeak.reports.story import Span

INK: Final = "#1b1b1b"
QUIET: Final = "#5c5c5c"
HAIRLINE: Final = "#d9d9d9"
ALLOCATED: Final = "#7d97b0"
ALLOCATED_FILL: Final = "#c9d5e1"
RELEASED_FILL: Final = "#db7626"
RELEASED: Final = "#d55e00"
"""Vermilion of the Okabe-Ito palette; used for released-but-alive bytes and nothing else."""
PEAK: Final = "#1b1b1b"
STRESSED: Final = "#fbe3d1"

SIZE_TITLE: Final = 13.0
SIZE_TEXT: Final = 9.5
SIZE_LABEL: Final = 8.5
SIZE_SMALL: Final = 7.5

WIDTH_IN: Final = 10.6
HEIGHT_IN: Final = 6.3
"""Size of a figure, on a page and as PNG."""
PNG_DPI: Final = 150
_PNG: Final = {"compress_level": 4}
"""Twice as fast as the default, a tenth larger."""

EVENT_COLOURS: Final = {
    "fetch": "#0072b2",
    "prefetch": "#56b4e9",
    "wait": "#e69f00",
    "gather": "#cc79a7",
    "release": "#009e73",
    "free": "#1b1b1b",
    "reduce": "#7a5195",
    "all_gather": "#0072b2",
    "step": "#8a8a8a",
}

CATEGORY_COLOURS: Final = {
    "parameter_shards": "#0072b2",
    "replicated_parameters": "#0072b2",
    "persistent_parameters": "#5b9fd0",
    "gathered_in_use": "#56b4e9",
    "prefetched_ahead": "#a5d8f3",
    "kept_for_reuse": "#86c5c0",
    "released_but_alive": RELEASED,
    "gather_buffers": "#e69f00",
    "gradient_buckets": "#009e73",
    "full_gradients": "#58bf9c",
    "gradient_shards": "#a9dcc9",
    "optimizer_states": "#cc79a7",
    "fp32_masters": "#e5b9d2",
    "module_buffers": "#8a8a8a",
    "inputs": "#b3b3b3",
    "activations": "#efdf5f",
    "workspace": "#cdbb6b",
    "other": "#c8c8c8",
    "unattributed": "#ffffff",
}

_PHASE_TINTS: Final = {
    "init": "#f3f3f3",
    "forward": "#eaf3fa",
    "backward": "#fdf3e4",
    "step": "#eeeeee",
    "eval": "#eef6ee",
    "save": "#f6eef4",
}

_RC: Final[dict[str, Any]] = {
    "font.family": fonts.FAMILY,
    "font.size": SIZE_LABEL,
    "text.color": INK,
    "text.parse_math": False,  # names may hold dollar signs
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelsize": SIZE_LABEL,
    "ytick.labelsize": SIZE_LABEL,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,  # embedded as TrueType: text can be searched and copied
    "pdf.compression": 6,
    "path.simplify": True,
    "hatch.linewidth": 0.5,
}


@contextmanager
def applied() -> Iterator[None]:
    """Matplotlib with our settings and nothing of the user's matplotlibrc, inside the ``with`` only."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams  # its stub wants every key as a literal
        settings.update(_RC)
        yield


def category_label(category: str) -> str:
    """Category for people.

    >>> category_label("released_but_alive")
    'released but alive'
    """
    return category.replace("_", " ").replace("fp32", "FP32")


def category_colour(category: str) -> str:
    """Colour of a category; grey for one that this version does not know."""
    return CATEGORY_COLOURS.get(category, CATEGORY_COLOURS["other"])


def category_fill(category: str, edge: str) -> dict[str, Any]:
    """How to fill a category's bar: its colour, or hatching for what nothing explains; ``edge`` of plain ones."""
    hatched = category == "unattributed"
    return {
        "color": category_colour(category),
        "hatch": "////" if hatched else None,
        "edgecolor": QUIET if hatched else edge,
    }


def category_order(categories: Iterable[str]) -> list[str]:
    """In the order in which reports stack them; unknown ones before ``unattributed``."""
    order = list(CATEGORIES)
    known = {name: index for index, name in enumerate(order)}
    return sorted(set(categories), key=lambda name: (known.get(name, len(order) - 1.5), name))


@dataclass(frozen=True)
class Panel:
    """A rectangle of a figure, in inches from the figure's lower left corner; a drawing fills one."""

    figure: Figure
    left: float
    bottom: float
    width: float
    height: float
    before_titles: str = ""
    """Begins every title, e.g. that nothing was measured."""

    def part(self, left: float, bottom: float, width: float, height: float) -> Panel:
        """A rectangle within this one."""
        return Panel(self.figure, self.left + left, self.bottom + bottom, width, height)

    def place(
        self, left: float, bottom: float, width: float, height: float
    ) -> tuple[tuple[float, float], float, float]:
        """A place within the panel in the figure's coordinates: corner, width, height."""
        across, up = self.figure.get_size_inches()
        return ((self.left + left) / across, (self.bottom + bottom) / up), width / across, height / up

    def axes(self, left: float, bottom: float, width: float, height: float, share_x: Axes | None = None) -> Axes:
        """Axes at a place within the panel."""
        corner, across, up = self.place(left, bottom, width, height)
        return self.figure.add_axes((*corner, across, up), sharex=share_x)

    def text(self, left: float, bottom: float, text: str, size: float = SIZE_TEXT, **how: Any) -> None:
        """One line at a place within the panel."""
        across, up = self.figure.get_size_inches()
        self.figure.text((self.left + left) / across, (self.bottom + bottom) / up, text, fontsize=size, **how)

    def title(self, title: str, subtitle: str = "") -> float:
        """Title (at most two lines) and subtitle at the top; the height that is left below, in inches."""
        top = self.height - 0.16
        for line in _at_most(2, fonts.wrap(self.before_titles + title, self.width * 72, SIZE_TITLE, bold=True)):
            self.text(0, top, line, SIZE_TITLE, weight="bold", va="center")
            top -= 0.25
        for line in _at_most(2, fonts.wrap(subtitle, self.width * 72, SIZE_TEXT)):
            self.text(0, top + 0.02, line, SIZE_TEXT, color=QUIET, va="center")
            top -= 0.19
        return top - 0.02

    def grid(self, rows: int, columns: int, gap: float, bottom: float, top: float) -> list[Panel]:
        """Equal rectangles between two heights, row by row from the top left, ``gap`` inches apart."""
        width = (self.width - gap * (columns - 1)) / columns
        height = (top - bottom - gap * (rows - 1)) / rows
        return [
            self.part(column * (width + gap), top - height - row * (height + gap), width, height)
            for row in range(rows)
            for column in range(columns)
        ]

    def key(self, left: float, bottom: float, entries: Sequence[tuple[str, str]]) -> float:
        """Coloured squares with names in a row; (colour, name) each. The width used, in inches."""
        start = left
        for colour, name in entries:
            self.text(left, bottom, "\N{BLACK SQUARE}", SIZE_TEXT + 1, color=colour, va="center")
            self.text(left + 0.16, bottom, name, SIZE_LABEL, color=INK, va="center")
            left += 0.34 + fonts.width(name, SIZE_LABEL) / 72
        return left - start

    def message(self, text: str) -> None:
        """A sentence in the place of a figure that the data cannot give."""
        ax = self.axes(0, 0.3, self.width, self.height - 0.3)
        ax.set(xticks=[], yticks=[])
        for spine in ax.spines.values():
            spine.set(visible=True, color=HAIRLINE)
        lines = fonts.wrap(text, (self.width - 2) * 72, SIZE_TEXT + 1.5)
        ax.text(
            0.5, 0.5, "\n".join(lines), ha="center", va="center", fontsize=SIZE_TEXT + 1.5, color=QUIET, linespacing=1.6
        )


def new_panel() -> Panel:
    """A figure of its own, for PNG."""
    figure = Figure(figsize=(WIDTH_IN + 0.5, HEIGHT_IN + 0.4), dpi=PNG_DPI)
    return Panel(figure, 0.25, 0.2, WIDTH_IN, HEIGHT_IN)


def save_png(folder: Path, name: str, draw: Callable[[Panel], None]) -> str:
    """Draw a figure of its own into ``folder``; the file's name."""
    panel = new_panel()
    draw(panel)
    file = f"{name}.png"
    panel.figure.savefig(folder / file, metadata={"Software": "zeropeak"}, pil_kwargs=_PNG)
    return file


def memory_axis(ax: Axes, top_bytes: int, headroom: float = 1.0, name: bool = True, low_bytes: int = 0) -> int:
    """Label the y axis in one unit, from the lowest to the largest value and some room; its bytes are returned.

    Args:
        headroom: height of the axis, in that of the values.
    """
    divisor, unit = scale(top_bytes)
    ax.set_ylim(low_bytes / divisor, (low_bytes + max(top_bytes - low_bytes, 1) * headroom) / divisor)
    if name:
        ax.annotate(
            unit,
            (0, 1),
            (-5, 3),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=SIZE_SMALL,
            color=QUIET,
            annotation_clip=False,
        )
    ax.yaxis.set_major_locator(round_ticks(5, prune_top=headroom > 1))
    ax.yaxis.grid(True, color=HAIRLINE, linewidth=0.6)
    ax.set_axisbelow(True)
    return divisor


def round_ticks(most: int, prune_top: bool = False) -> MaxNLocator:
    """At most so many ticks, at round numbers."""
    return MaxNLocator(nbins=most, steps=[1, 2, 5, 10], prune="upper" if prune_top else None)


def time_axis(ax: Axes, start_ns: int, end_ns: int, label: str = "") -> None:
    """Set the x axis in seconds, or ticks of a predicted run.

    Args:
        label: what they are counted from, when the axis is to say so.
    """
    ax.set_xlim(start_ns / 1e9, end_ns / 1e9)
    ax.xaxis.set_major_formatter(lambda value, _: axis_value(value))
    ax.xaxis.set_major_locator(round_ticks(max(2, min(9, round(width_pt(ax) / 50)))))
    if label:
        ax.set_xlabel(axis_name(label), fontsize=SIZE_LABEL)


def width_pt(ax: Axes) -> float:
    """Width of axes on paper, in points."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    return float(ax.get_position().width * figure.get_size_inches()[0] * 72)


def height_pt(ax: Axes) -> float:
    """Height of axes on paper, in points."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    return float(ax.get_position().height * figure.get_size_inches()[1] * 72)


def shade_phases(ax: Axes, spans: Iterable[Span], origin_ns: int, names: bool = True) -> None:
    """Shade the phases and, where there is room, name them along the top; set the x limits before."""
    left, right = ax.get_xlim()
    across = width_pt(ax)
    for span in spans:
        begin = max((span.start_ns - origin_ns) / 1e9, left)
        end = right if span.end_ns == NEVER else min((span.end_ns - origin_ns) / 1e9, right)
        if end <= begin:
            continue
        ax.axvspan(begin, end, facecolor=phase_tint(span.phase), edgecolor="none", zorder=-2)
        ax.axvline(begin, color="white", linewidth=0.8, zorder=-1)
        if names:
            _name_phase(ax, span, begin, end, (end - begin) / (right - left) * across)


def phase_tint(phase: str) -> str:
    """Background of a phase."""
    return _PHASE_TINTS.get(phase, "#f3f3f3")


def _name_phase(ax: Axes, span: Span, begin: float, end: float, room_pt: float) -> None:
    step = "" if span.step is None or span.step < 0 or span.phase in {"init", "save", "eval"} else f" {span.step}"
    for name in (f"{span.phase}{step}", span.phase):
        if fonts.width(name, SIZE_SMALL) < room_pt - 3:
            ax.annotate(
                name,
                ((begin + end) / 2, 1),
                (0, 3),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=SIZE_SMALL,
                color=QUIET,
                annotation_clip=False,
            )
            return


def _at_most(number: int, lines: list[str]) -> list[str]:
    if len(lines) <= number:
        return lines
    return [*lines[: number - 1], lines[number - 1] + " " + ELLIPSIS]
