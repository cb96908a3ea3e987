"""Released-but-alive bytes over time, stacked against the rest of what is allocated, a strip a rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zeropeak.reports import words
from zeropeak.reports.figures import series as curves
from zeropeak.reports.figures import style
from zeropeak.reports.figures.drawing import Drawing, Head
from zeropeak.reports.origin import run_origin, run_origin_ns
from zeropeak.reports.selection import Shown, select, shown_ranks
from zeropeak.reports.story import Story, read_story, shared_window
from zeropeak.reports.units import percent, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from zeropeak.reports.figures.series import Series
    from zeropeak.reports.figures.style import Panel
    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Span

LIMIT: Final = 4
_LEFT_IN: Final = 1.2


@dataclass(frozen=True)
class Strip:
    """One rank.

    Attributes:
        marks: (time in run ns, released-but-alive bytes by weak references, name of the mark).
    """

    rank: int
    label: str
    series: Series
    phases: Sequence[Span]
    marks: Sequence[tuple[int, int, str]]
    missing: str | None


@dataclass(frozen=True)
class Data(Head):
    """All strips share the axes; times in run ns."""

    strips: Sequence[Strip]


def build(run: Run) -> Data:
    """Data of the ranks that are shown."""
    shown = select(run, LIMIT)
    stories = [read_story(run, rank) for rank in shown.ranks]
    start_ns, end_ns = shared_window(stories)
    releases = any(story.releases for story in stories) or not stories
    return Data(
        title=_title(stories) if releases else f"Stage {stories[0].stage} releases no weights",
        subtitle=shown.note() if releases else "",
        since=run_origin(run),
        releases=releases,
        origin_ns=run_origin_ns(run),
        start_ns=start_ns,
        end_ns=end_ns,
        strips=[_strip(story, shown, start_ns, end_ns) for story in stories],
    )


def drawing(run: Run) -> Drawing:
    """The figure."""
    data = build(run)
    caption = (
        "Vermilion: full weights that ZeRO had released (param.data swapped out) and whose storage was still "
        "allocated. Grey-blue: everything else. Dots: the same bytes as counted by weak references at the marks after "
        "each forward, backward and step; they do not come from the memory curve, so they check it."
    )
    if not data.releases:
        caption = "Only stage 3 partitions the parameters, gathers them for use and releases them."
    return Drawing("released-but-alive", caption, lambda panel: draw(panel, data))


def _strip(story: Story, shown: Shown, start_ns: int, end_ns: int) -> Strip:
    series = curves.build(story, start_ns, end_ns)
    alone = not len(series)
    if alone:
        series = curves.build_released(story, start_ns, end_ns)
    marks = [
        (mark["ts_ns"], mark["released_alive_bytes"], f"{mark['mark']} {mark['step']}")
        for mark in story.marks
        if mark["released_alive_bytes"] is not None and mark["ts_ns"] is not None and mark["mark"] != "init"
    ]
    missing = words.not_drawn(story, len(series), series.top_bytes)
    why = shown.why.get(story.rank)
    lines = [f"rank {story.rank}", why or "", "rest unknown" if alone and len(series) else ""]
    label = "\n".join(filter(None, lines))
    return Strip(story.rank, label, series, story.seen_phases(), marks, missing)


def _title(stories: Sequence[Story]) -> str:
    worst = {story.rank: mark for story in stories if (mark := _worst(story)) is not None}
    if not worst:
        return "Released but alive: no mark says"
    rank = max(worst, key=lambda r: worst[r]["released_alive_bytes"])
    mark = worst[rank]
    bytes_, allocated = mark["released_alive_bytes"], mark["allocated_bytes"]
    if bytes_ == 0:
        return "No weight that ZeRO released was alive at the end of any forward, backward or step"
    alike = len(worst) > 1 and all(m["released_alive_bytes"] == bytes_ for m in worst.values())
    who = f"{shown_ranks(list(worst)).capitalize()} hold" if alike else f"Rank {rank} holds"
    share = f", {percent(bytes_, allocated)} of all" if allocated else ""
    return f"{who} {size(bytes_)} of released weights after the {mark['mark']} of step {mark['step']}{share}"


def _worst(story: Story) -> dict[str, Any] | None:
    """First of the marks with the most released-but-alive bytes."""
    marks = [mark for mark in story.marks if mark["released_alive_bytes"] is not None and mark["mark"] != "init"]
    return max(marks, key=lambda mark: mark["released_alive_bytes"], default=None)


def draw(panel: Panel, data: Data) -> None:
    """Draw it."""
    top = panel.title(data.title, data.subtitle)
    if not data.releases:
        panel.part(0, 0, panel.width, top).message(f"{data.title}, so none can outlive its release.")
        return
    if not data.strips:
        panel.part(0, 0, panel.width, top).message("No rank left anything behind, so there is nothing to show.")
        return
    panel.key(
        _LEFT_IN,
        top - 0.12,
        [
            (style.RELEASED, "released but alive"),
            (style.ALLOCATED, "everything else allocated"),
            (style.INK, "counted at a mark"),
        ],
    )
    body = panel.part(_LEFT_IN, 0, panel.width - _LEFT_IN, panel.height)
    highest = max(strip.series.top_bytes for strip in data.strips)
    first: Axes | None = None
    for row, (strip, place) in enumerate(
        zip(data.strips, body.grid(len(data.strips), 1, 0.16, 0.45, top - 0.48), strict=True)
    ):
        middle = place.bottom + place.height / 2 - panel.bottom
        for offset, line in enumerate(strip.label.split("\n")):
            panel.text(
                0, middle - offset * 0.17, line, style.SIZE_LABEL, weight="normal" if offset else "bold", va="center"
            )
        if strip.missing:
            place.part(0, -0.3, place.width, place.height + 0.3).message(strip.missing)
            continue
        ax = place.axes(0, 0, place.width, place.height, share_x=first)
        first = first or ax
        last_row = row == len(data.strips) - 1
        divisor = style.memory_axis(ax, highest, 1.12, name=row == 0)
        style.time_axis(
            ax, data.start_ns - data.origin_ns, data.end_ns - data.origin_ns, data.since if last_row else ""
        )
        ax.tick_params(axis="x", labelbottom=last_row)
        style.shade_phases(ax, strip.phases, data.origin_ns, names=row == 0)
        curves.draw(ax, strip.series, data.origin_ns, divisor, line=0.7)
        _draw_marks(ax, strip, data.origin_ns, divisor)


def _draw_marks(ax: Axes, strip: Strip, origin_ns: int, divisor: int) -> None:
    left, right = ax.get_xlim()
    inside = [(ts, bytes_) for ts, bytes_, _ in strip.marks if left <= (ts - origin_ns) / 1e9 <= right]
    if not inside:
        return
    x = np.array([(ts - origin_ns) / 1e9 for ts, _ in inside])
    y = np.array([bytes_ / divisor for _, bytes_ in inside])
    ax.plot(
        x,
        y,
        linestyle="none",
        marker="o",
        markersize=3.5,
        color=style.INK,
        markeredgecolor="white",
        markeredgewidth=0.6,
        zorder=5,
        clip_on=False,
    )
    label_from = (right - left) * 0.09
    last_x = left - label_from
    for ts, bytes_ in inside:
        position = (ts - origin_ns) / 1e9
        if bytes_ and position - last_x >= label_from:
            to_left = position > right - label_from
            ax.annotate(
                size(bytes_),
                (position, bytes_ / divisor),
                (-5 if to_left else 5, 1),
                textcoords="offset points",
                ha="right" if to_left else "left",
                fontsize=style.SIZE_SMALL,
                weight="bold",
                color="white",
                zorder=6,
                bbox={"facecolor": style.INK, "edgecolor": "none", "pad": 1.2, "alpha": 0.75},
            )
            last_x = position
