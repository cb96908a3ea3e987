"""The moments around a rank's peak: memory above, and the events of the same time as a waterfall below."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from zeropeak.reports import fonts, words
from zeropeak.reports.around import Neighbour, When, around
from zeropeak.reports.figures import series as curves
from zeropeak.reports.figures import style
from zeropeak.reports.figures.drawing import Drawing, Head
from zeropeak.reports.figures.memory_curve import annotate_peak, peak_headroom
from zeropeak.reports.units import duration, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from zeropeak.reports.figures.series import Series
    from zeropeak.reports.figures.style import Panel
    from zeropeak.reports.story import Peak, Span, Story

_SMALL_CHANGE: Final = 0.2
"""Share of the highest value below which a window's change is small."""
_NAME_IN: Final = 3.15
_ROW_IN: Final = 0.19
_MARGIN: Final = 0.03
_LABEL_ROOM: Final = 0.16
"""Share of the span that is left free at the right for the labels of the last events."""


@dataclass(frozen=True)
class Data(Head):
    """Times in run ns; ``rows`` in order of their begin.

    Attributes:
        low_bytes: where the memory axis begins.
    """

    series: Series
    phases: Sequence[Span]
    rows: Sequence[Neighbour]
    peak: Peak | None
    peak_released_bytes: int | None
    missing: str | None
    low_bytes: int


def build(story: Story, origin_ns: int) -> Data:
    """Data of one rank."""
    rows = around(story)
    start_ns, end_ns = _window(story, rows)
    series = curves.build(story, start_ns, end_ns)
    missing = words.no_curve(story) if story.peak is None else None
    return Data(
        title=_title(story),
        subtitle=f"the events around it on rank {story.rank}, in order of their begin"
        if rows
        else ""
        if len(story.events)
        else "no ZeRO event was recorded",
        origin_ns=origin_ns,
        start_ns=start_ns,
        end_ns=end_ns,
        series=series,
        phases=story.seen_phases(),
        rows=rows,
        peak=story.peak,
        peak_released_bytes=story.released_at_peak_bytes,
        missing=missing or words.not_drawn(story, len(series), series.top_bytes),
        low_bytes=_low(series),
        since=story.origin,
        releases=story.releases,
    )


def drawing(story: Story, origin_ns: int) -> Drawing:
    """The figure of one rank."""
    data = build(story, origin_ns)
    caption = "Above: allocated memory"
    if data.low_bytes:
        caption += f", on an axis that begins at {size(data.low_bytes)} instead of 0, since it changes little here"
    elif data.releases:
        caption += ", the released-but-alive part in vermilion"
    caption += ". "
    if data.rows:
        caption += "Below: one row an event, from its begin to its end; a diamond is a moment (free). "
    else:
        caption = f"A{caption.removeprefix('Above: a')}"
    if any(row.when is When.IN_FLIGHT for row in data.rows):
        caption += "Highlighted rows were in flight at the peak (dotted line)."
    else:
        caption += "The peak is the dotted line."
    return Drawing(f"peak-zoom-rank-{story.rank}", caption, lambda panel: draw(panel, data))


def _low(series: Series) -> int:
    """Where the memory axis begins: 0, or below the window's lowest value when its change would else be too flat."""
    low, high = int(series.low_bytes.min(initial=2**62)), series.top_bytes
    change = high - low
    if not 0 < change < _SMALL_CHANGE * high:
        return 0
    return max(low - change // 4, 0)


def _title(story: Story) -> str:
    peak = story.peak
    if peak is None:
        return f"Rank {story.rank}: no memory curve, so no peak to zoom into"
    what = "highest sample" if words.by_allocator(peak) else "peak"
    before = f", after {peak.preceding.name}" if peak.in_flight and peak.preceding else ""
    if not words.during(peak):
        return f"Rank {story.rank}'s {what} of {size(peak.allocated_bytes)} and the moments around it"
    return f"Rank {story.rank}'s {what} of {size(peak.allocated_bytes)} came {words.during(peak)}{before}"


def _window(story: Story, rows: Sequence[Neighbour]) -> tuple[int, int]:
    """From the first neighbour's begin to the last one's end; ranges that began long before are cut."""
    if story.peak is None:
        return story.start_ns, max(story.end_ns, story.start_ns + 1)
    ts_ns = story.peak.ts_ns
    starts = [row.event.start_ns for row in rows if row.when is When.BEFORE]
    ends = [row.event.end_ns or row.event.start_ns for row in rows if row.when is When.AFTER]
    ends += [
        row.event.end_ns for row in rows if row.when is When.IN_FLIGHT and row.event.end_ns is not None and not ends
    ]
    start_ns, end_ns = min(starts, default=ts_ns), max(ends, default=ts_ns)
    if end_ns == start_ns:
        start_ns, end_ns = ts_ns - 500_000, ts_ns + 500_000
    span = end_ns - start_ns
    return start_ns - int(span * _MARGIN), end_ns + int(span * _LABEL_ROOM)


def draw(panel: Panel, data: Data) -> None:
    """Draw it."""
    top = panel.title(data.title, data.subtitle)
    if data.missing:
        panel.part(0, 0, panel.width, top).message(data.missing)
        return
    across = panel.width - _NAME_IN
    rows = _ROW_IN * len(data.rows)
    lower = panel.axes(_NAME_IN, 0.45, across, rows) if data.rows else None
    if lower is not None:
        style.time_axis(lower, data.start_ns - data.origin_ns, data.end_ns - data.origin_ns, data.since)
        _draw_rows(lower, data)
    lift = 0.45 + rows + (0.1 if data.rows else 0)
    ax = panel.axes(_NAME_IN, lift, across, top - lift - 0.22, share_x=lower)
    divisor = style.memory_axis(
        ax,
        data.series.top_bytes,
        peak_headroom(ax, data.peak, data.peak_released_bytes),
        low_bytes=data.low_bytes,
    )
    style.time_axis(
        ax, data.start_ns - data.origin_ns, data.end_ns - data.origin_ns, label=data.since if lower is None else ""
    )
    if lower is not None:
        ax.tick_params(axis="x", labelbottom=False, length=0)
    style.shade_phases(ax, data.phases, data.origin_ns)
    curves.draw(ax, data.series, data.origin_ns, divisor)
    key = [(style.ALLOCATED, "allocated")]
    if data.releases and not data.low_bytes:
        key.append((style.RELEASED, "of it released but alive"))
    for row, (colour, name) in enumerate(key):
        panel.key(0, top - 0.35 - 0.22 * row, [(colour, name)])
    if data.peak is not None:
        annotate_peak(ax, data.peak, data.peak_released_bytes, data.origin_ns, divisor)


def _draw_rows(ax: Axes, data: Data) -> None:
    left, right = ax.get_xlim()
    for row, neighbour in enumerate(data.rows):
        event = neighbour.event
        flying = neighbour.when is When.IN_FLIGHT
        begin = (event.start_ns - data.origin_ns) / 1e9
        end = right if event.end_ns is None else (event.end_ns - data.origin_ns) / 1e9
        colour = style.EVENT_COLOURS.get(event.kind or "", style.QUIET)
        if flying:
            ax.axhspan(row, row + 1, facecolor=style.STRESSED, linewidth=0, zorder=0)
        shown = (max(begin, left), min(end, right))
        if event.end_ns == event.start_ns:
            ax.plot([begin], [row + 0.5], marker="D", markersize=4, color=colour, zorder=3, linestyle="none")
        else:
            least = (right - left) / 1200
            ax.broken_barh(
                [(shown[0], max(shown[1] - shown[0], least))],
                (row + 0.16, 0.68),
                facecolor=colour,
                linewidth=0,
                zorder=3,
            )
        _label(ax, row, neighbour, shown, (left, right))
    ax.set_ylim(len(data.rows), 0)
    names = [fonts.fit(row.event.name, (_NAME_IN - 0.15) * 72, style.SIZE_LABEL) for row in data.rows]
    ax.set_yticks([row + 0.5 for row in range(len(data.rows))], names)
    for label, neighbour in zip(ax.get_yticklabels(), data.rows, strict=True):
        label.set_color(style.INK)
        label.set_fontweight("bold" if neighbour.when is When.IN_FLIGHT else "normal")
    ax.tick_params(axis="y", length=0, labelsize=style.SIZE_LABEL, pad=3)
    ax.spines["left"].set_visible(False)
    ax.xaxis.grid(True, color=style.HAIRLINE, linewidth=0.6)
    ax.set_axisbelow(True)
    if data.peak is not None:
        ax.axvline(
            (data.peak.ts_ns - data.origin_ns) / 1e9, color=style.PEAK, linewidth=0.7, linestyle=(0, (2, 2)), zorder=4
        )


def _label(ax: Axes, row: int, neighbour: Neighbour, shown: tuple[float, float], limits: tuple[float, float]) -> None:
    """Bytes and duration beside the bar, on the side where there is room."""
    event = neighbour.event
    took = (
        "never ended"
        if event.end_ns is None
        else ""
        if event.end_ns == event.start_ns
        else duration(event.end_ns - event.start_ns)
    )
    text = ", ".join(filter(None, [size(event.full_bytes) if event.full_bytes else "", took]))
    room = (limits[1] - shown[1]) / (limits[1] - limits[0]) * style.width_pt(ax)
    to_left = fonts.width(text, style.SIZE_SMALL) + 6 > room
    ax.annotate(
        text,
        (shown[0] if to_left else shown[1], row + 0.5),
        (-5 if to_left else 5, 0),
        textcoords="offset points",
        ha="right" if to_left else "left",
        va="center",
        fontsize=style.SIZE_SMALL,
        color=style.QUIET,
        zorder=5,
    )
