"""The ranks side by side: their curves on shared axes, and what was alive at each one's peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from zeropeak.reports import composition, words
from zeropeak.reports.figures import series as curves
from zeropeak.reports.figures import stacks, style
from zeropeak.reports.figures.drawing import Drawing, Head
from zeropeak.reports.origin import run_origin, run_origin_ns
from zeropeak.reports.selection import alike, cut_ranks, peak_alike, peak_bytes, select, shown_ranks
from zeropeak.reports.story import read_story, shared_window
from zeropeak.reports.units import size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

    from zeropeak.reports.composition import Composition
    from zeropeak.reports.figures.series import Series
    from zeropeak.reports.figures.style import Panel
    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Peak, Span, Story

LIMIT: Final = 8
_LEFT_IN: Final = 0.45
_RIGHT_SHARE: Final = 0.36
_MOST_CATEGORIES: Final = 9


@dataclass(frozen=True)
class Small:
    """One small multiple."""

    rank: int
    why: str
    series: Series
    phases: Sequence[Span]
    peak: Peak | None
    cut: bool
    missing: str | None


@dataclass(frozen=True)
class Data(Head):
    """Curves of the ranks that are shown, compositions of all; times in run ns."""

    small: Sequence[Small]
    compositions: Sequence[Composition]
    stack: Sequence[tuple[str, list[int]]]


def build(run: Run) -> Data:
    """Data of all ranks."""
    peaks = peak_bytes(run)
    shown = select(run, LIMIT if len(run.rank_ids) <= LIMIT else 4)
    origin_ns = run_origin_ns(run)
    stories = [read_story(run, rank) for rank in shown.ranks]
    start_ns, end_ns = shared_window(stories)
    compositions = composition.at_peaks(run)
    cut = cut_ranks(run)
    return Data(
        title=_title(
            {rank: bytes_ for rank, bytes_ in peaks.items() if rank not in cut} or peaks,
            len(run.rank_ids) + run.missing_count,
        ),
        subtitle=_subtitle(run, peaks, cut, shown.note()),
        origin_ns=origin_ns,
        start_ns=start_ns,
        end_ns=end_ns,
        small=[
            _small(story, shown.why.get(story.rank, ""), curves.build(story, start_ns, end_ns, bins=500), cut)
            for story in stories
        ],
        compositions=compositions,
        since=run_origin(run),
        releases=any(story.releases for story in stories) or not stories,
        stack=stacks.layers(compositions, _MOST_CATEGORIES),
    )


def _small(story: Story, why: str, series: Series, cut: Sequence[int]) -> Small:
    missing = None
    if words.not_drawn(story, len(series), series.top_bytes):
        begun = not len(series) or any(span.phase == "forward" for span in story.phases)
        missing = "no memory curve" if begun else "the capture ended before the first forward"
    return Small(story.rank, why, series, story.seen_phases(), story.peak, story.rank in cut, missing)


def drawing(run: Run) -> Drawing:
    """The figure."""
    data = build(run)
    released = "the released-but-alive part in vermilion, " if data.releases else ""
    caption = (
        f"Left: allocated memory of each rank on shared axes, {released}the peak as a dot. "
        "Right: what was alive at each rank's own peak; a bar's height is the peak, "
        "or the highest sample where the memory curve is sampled."
    )
    return Drawing("ranks", caption, lambda panel: draw(panel, data))


def _title(peaks: Mapping[int, int], total: int) -> str:
    if not peaks:
        return "No rank has a memory peak to compare"
    high, low = max(peaks, key=lambda rank: peaks[rank]), min(peaks, key=lambda rank: peaks[rank])
    if len(peaks) == 1:
        return f"Rank {high} peaks at {size(peaks[high])}"
    if alike(peaks):
        return peak_alike(peaks, total)
    return f"Rank {high} peaks highest at {size(peaks[high])}, {size(peaks[high] - peaks[low])} above rank {low}"


def _subtitle(run: Run, peaks: Mapping[int, int], cut: Sequence[int], note: str) -> str:
    parts = [note] if note else []
    if cut and peaks:
        parts.append(f"{shown_ranks(cut)} cut: the real peak may be higher")
    if run.missing_ranks:
        parts.append(f"nothing captured of {shown_ranks(run.missing_ranks)}")
    without = [rank for rank in run.rank_ids if rank not in peaks]
    if without and peaks:
        parts.append(f"no peak for {shown_ranks(without)}")
    return "; ".join(parts)


def draw(panel: Panel, data: Data) -> None:
    """Draw it."""
    top = panel.title(data.title, data.subtitle)
    if not data.small:
        panel.part(0, 0, panel.width, top).message("No rank left anything behind, so there is nothing to compare.")
        return
    right = panel.width * _RIGHT_SHARE if data.stack else 0
    highest = max([one.series.top_bytes for one in data.small] + [one.measured_bytes or 0 for one in data.compositions])
    body = panel.part(_LEFT_IN, 0, panel.width - _LEFT_IN - right - (0.35 if right else 0), panel.height)
    _draw_small(body, data, highest, top)
    if data.stack:
        _draw_stack(panel.part(panel.width - right, 0, right, panel.height), data, highest, top)


def _draw_small(body: Panel, data: Data, highest: int, top: float) -> None:
    columns = 1 if len(data.small) == 1 else 2
    rows = -(-len(data.small) // columns)
    first: Axes | None = None
    places = body.grid(rows, columns, 0.34, 0.45, top - 0.3)
    for place, one in zip(places, data.small, strict=False):
        ax = place.axes(0, 0, place.width, place.height - 0.05, share_x=first)
        first = first or ax
        left_most, bottom_most = place.left == body.left, places.index(place) + columns >= len(data.small)
        divisor = style.memory_axis(
            ax, highest, 1.12, name=left_most and not all(small.missing for small in data.small)
        )
        style.time_axis(
            ax, data.start_ns - data.origin_ns, data.end_ns - data.origin_ns, data.since if bottom_most else ""
        )
        ax.tick_params(axis="x", labelbottom=bottom_most)
        ax.tick_params(axis="y", labelleft=left_most)
        style.shade_phases(ax, one.phases, data.origin_ns, names=False)
        if not one.missing:
            curves.draw(ax, one.series, data.origin_ns, divisor, line=0.7)
        label = f"rank {one.rank}" + (f"  {size(one.peak.highest_bytes)}" if one.peak else "")
        ax.set_title(label, loc="left", fontsize=style.SIZE_LABEL, weight="bold", pad=3)
        remark = ", ".join(filter(None, [one.why, "cut" if one.cut else ""]))
        ax.set_title(remark, loc="right", fontsize=style.SIZE_SMALL, color=style.QUIET, pad=3)
        if one.missing:
            if all(small.missing for small in data.small):  # else its axes are those of its neighbours
                ax.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
                ax.yaxis.grid(visible=False)
                ax.set_xlabel("")
            ax.text(0.5, 0.5, one.missing, transform=ax.transAxes, ha="center", va="center", color=style.QUIET)
        elif one.peak:
            ax.plot(
                [(one.peak.ts_ns - data.origin_ns) / 1e9],
                [one.peak.allocated_bytes / divisor],
                "o",
                markersize=4,
                color=style.PEAK,
                zorder=5,
            )


def _draw_stack(body: Panel, data: Data, highest: int, top: float) -> None:
    legend = 0.19 * len(data.stack)
    ax = body.axes(0.2, 0.45 + legend + 0.42, body.width - 0.2, top - 0.3 - (0.45 + legend + 0.42) - 0.05)
    divisor = style.memory_axis(ax, highest, 1.12)
    stacks.draw(ax, data.compositions, data.stack, divisor)
    low = min((sum(min(sizes[i], 0) for _, sizes in data.stack) for i in range(len(data.compositions))), default=0)
    if low < 0:
        ax.set_ylim(bottom=1.2 * low / divisor)
    ax.set_xlabel("rank", fontsize=style.SIZE_LABEL)
    ax.set_title("alive at each rank's peak", loc="left", fontsize=style.SIZE_LABEL, weight="bold", pad=3)
    if len(data.compositions) <= 5:
        for place, one in enumerate(data.compositions):
            height = (one.measured_bytes or one.total_bytes) / divisor
            ax.text(place, height, size(one.measured_bytes), ha="center", va="bottom", fontsize=style.SIZE_SMALL)
    for row, (name, sizes) in enumerate(reversed(data.stack)):
        height = 0.45 + legend - 0.19 * row - 0.1
        label = style.category_label(name)
        share = " to ".join(dict.fromkeys((size(min(sizes)), size(max(sizes)))))
        body.text(
            0.2,
            height,
            "\N{BLACK SQUARE}" if name != "unattributed" else "\N{WHITE SQUARE}",
            style.SIZE_TEXT + 1,
            color=style.category_colour(name) if name != "unattributed" else style.QUIET,
            va="center",
        )
        body.text(0.38, height, label, style.SIZE_LABEL, va="center")
        body.text(body.width, height, share, style.SIZE_LABEL, va="center", ha="right", color=style.QUIET)
