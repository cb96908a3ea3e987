"""Allocated memory of one rank over the training steps, its events in lanes below, its peak named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from zeropeak.reports import fonts, words
from zeropeak.reports.figures import lanes as lane_rows
from zeropeak.reports.figures import series as curves
from zeropeak.reports.figures import style
from zeropeak.reports.figures.drawing import Drawing, Head
from zeropeak.reports.units import moment, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from zeropeak.reports.figures.lanes import Lane
    from zeropeak.reports.figures.series import Series
    from zeropeak.reports.figures.style import Panel
    from zeropeak.reports.story import Peak, Span, Story

_MARGIN_IN: Final = 0.95
_LINE_PT: Final = style.SIZE_LABEL * 1.35 * 1.17
"""A line of the peak's label, as its font is drawn."""


@dataclass(frozen=True)
class Data(Head):
    """Everything the figure shows; times in run ns.

    Attributes:
        peak_released_bytes: part of the peak that ZeRO had released.
        missing: said in the figure's place when there is no curve.
    """

    rank: int
    series: Series
    lanes: Sequence[Lane]
    phases: Sequence[Span]
    peak: Peak | None
    peak_released_bytes: int | None
    missing: str | None


def build(story: Story, origin_ns: int) -> Data:
    """Data of one rank."""
    start_ns, end_ns = story.window(story.shown_steps())
    series = curves.build(story, start_ns, end_ns)
    if not len(series) and words.reserved_bytes(story):
        series = curves.build_reserved(story, start_ns, end_ns)
    notes = [note for note in (words.cut(story, origin_ns), _left_out(story, start_ns, end_ns, origin_ns)) if note]
    if story.curve.sampled and len(story.curve):
        notes.append("counters read at events; between them memory may have been higher")
    if series.reduced:
        notes.append("dark band: lowest to highest value within a pixel")
    return Data(
        rank=story.rank,
        title=words.peak_sentence(story),
        subtitle="; ".join(notes),
        origin_ns=origin_ns,
        start_ns=start_ns,
        end_ns=end_ns,
        series=series,
        lanes=lane_rows.build(story.events, start_ns, end_ns),
        phases=story.seen_phases(),
        peak=story.peak,
        peak_released_bytes=story.released_at_peak_bytes,
        missing=words.not_drawn(story, len(series), series.top_bytes),
        since=story.origin,
        releases=story.releases,
    )


def drawing(story: Story, origin_ns: int) -> Drawing:
    """The figure of one rank."""
    data = build(story, origin_ns)
    released = "; vermilion is the part that ZeRO had already released and that is still alive" if data.releases else ""
    caption = f"Allocated memory over time{released}."
    if data.series.reserved_only:
        caption = "Memory that the allocator had taken from the device; what was allocated within it was not recorded."
    if data.lanes:
        caption += (
            " Below, each ZeRO event of the same time, one lane a kind with the number of events; a lane is solid "
            "where events are closer than a pixel."
        )
    return Drawing(f"memory-rank-{story.rank}", caption, lambda panel: draw(panel, data))


def draw(panel: Panel, data: Data) -> None:
    """Draw it."""
    top = panel.title(data.title, data.subtitle)
    across = panel.width - _MARGIN_IN
    below = 0.45
    rows = lane_rows.HEIGHT_IN * len(data.lanes)
    lane_ax = None
    if data.lanes:
        lane_ax = panel.axes(_MARGIN_IN, below, across, rows)
        lane_rows.draw(lane_ax, data.lanes, data.origin_ns)
        style.time_axis(lane_ax, data.start_ns - data.origin_ns, data.end_ns - data.origin_ns, data.since)
        style.shade_phases(lane_ax, data.phases, data.origin_ns, names=False)
    lift = below + rows + (0.08 if data.lanes else 0)
    if data.missing:
        panel.part(_MARGIN_IN, lift - 0.3, across, top - lift + 0.2).message(data.missing)
        return
    key = [] if data.series.reserved_only else [(style.ALLOCATED, "allocated")]
    if data.releases and key:
        key.append((style.RELEASED, "of it released but alive"))
    if data.series.reserved_bytes is not None:
        key.append((style.QUIET, "reserved by the allocator (dashed)"))
    panel.key(_MARGIN_IN, top - 0.12, key)
    ax = panel.axes(_MARGIN_IN, lift, across, top - lift - 0.45, share_x=lane_ax)
    divisor = style.memory_axis(ax, data.series.top_bytes, peak_headroom(ax, data.peak, data.peak_released_bytes))
    style.time_axis(
        ax, data.start_ns - data.origin_ns, data.end_ns - data.origin_ns, label=data.since if lane_ax is None else ""
    )
    if lane_ax is not None:
        ax.tick_params(axis="x", labelbottom=False, length=0)
    style.shade_phases(ax, data.phases, data.origin_ns)
    curves.draw(ax, data.series, data.origin_ns, divisor)
    if data.peak is not None:
        annotate_peak(ax, data.peak, data.peak_released_bytes, data.origin_ns, divisor)
        if lane_ax is not None:
            lane_ax.axvline(
                (data.peak.ts_ns - data.origin_ns) / 1e9, color=style.PEAK, linewidth=0.7, linestyle=(0, (2, 2))
            )


def peak_headroom(ax: Axes, peak: Peak | None, released_bytes: int | None) -> float:
    """Height of the axes in that of the curve, so that the peak's label lies above everything drawn."""
    if peak is None:
        return 1.12
    height = style.height_pt(ax)
    room = min(_LINE_PT * len(_label(peak, released_bytes, 0)) + 12, 0.6 * height)
    return height / (height - room)


def _label(peak: Peak, released_bytes: int | None, origin_ns: int) -> list[str]:
    what = "highest sample" if words.by_allocator(peak) else "peak"
    text = [
        ", ".join(filter(None, (f"{what} {size(peak.allocated_bytes)} at {moment(peak.ts_ns, origin_ns)}",
                                words.where(peak)))),
        *filter(None, [words.during(peak)]),
    ]  # fmt: skip
    if peak.in_flight is not None and peak.preceding is not None:
        text.append(f"last begun before: {peak.preceding.name}")
    if words.by_allocator(peak):
        text.append(f"the allocator's own counter reached {size(peak.highest_bytes)}")
    if released_bytes:
        text.insert(1, f"{size(released_bytes)} of it released but alive")
    return text


def annotate_peak(ax: Axes, peak: Peak, released_bytes: int | None, origin_ns: int, divisor: int) -> None:
    """Name the peak in the room above the curve, on the side where there is more of it."""
    x, y = (peak.ts_ns - origin_ns) / 1e9, peak.allocated_bytes / divisor
    left, right = ax.get_xlim()
    if not left <= x <= right:
        return
    to_left = (x - left) > (right - left) / 2
    room = style.width_pt(ax) * ((x - left) if to_left else (right - x)) / (right - left) - 14
    text = _label(peak, released_bytes, origin_ns)
    ax.axvline(x, color=style.PEAK, linewidth=0.7, linestyle=(0, (2, 2)), zorder=4)
    ax.plot([x], [y], marker="o", markersize=5, color=style.PEAK, zorder=5, clip_on=False)
    ax.annotate(
        "\n".join(fonts.fit(line, room, style.SIZE_LABEL) for line in text),
        (x, 0.985),
        (-7 if to_left else 7, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="right" if to_left else "left",
        va="top",
        fontsize=style.SIZE_LABEL,
        linespacing=1.35,
        zorder=6,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 2},
    )


def _left_out(story: Story, start_ns: int, end_ns: int, origin_ns: int) -> str | None:
    """What the window leaves out, and how high it was there."""
    parts = []
    for name, begin, end in (("before", story.start_ns, start_ns), ("after", end_ns, story.end_ns)):
        outside = story.curve.window(begin, end)
        if end > begin and len(outside):
            edge = moment(end if name == "before" else begin, origin_ns)
            parts.append(f"{name} {edge} at most {size(int(outside.size_bytes.max()))}")
    return f"not shown: {', '.join(parts)}" if parts else None
