"""The answer in words, for page 1: peak, event, what was alive, verdict, what to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from zeropeak.reports import shortage, words
from zeropeak.reports.basis import PREDICTED, fits, simulated, what_it_is
from zeropeak.reports.figures.style import category_label
from zeropeak.reports.given import of_files
from zeropeak.reports.largest import knob_of_largest
from zeropeak.reports.origin import run_origin, run_origin_ns
from zeropeak.reports.outside import outside
from zeropeak.reports.outside import sentence as outside_sentence
from zeropeak.reports.paragraph import Paragraph
from zeropeak.reports.selection import alike, cut_ranks, peak_alike, peak_bytes, shown_ranks
from zeropeak.reports.shortage import shortages
from zeropeak.reports.story import UNATTRIBUTED, ended_before_capture, read_story
from zeropeak.reports.units import count, duration, exact, moment, percent, size
from zeropeak.reports.verdicts import SURE, grouped, verdict_paragraphs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeropeak.reports.findings import Finding
    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Part, Peak, Story

_MOST_PARTS: Final = 5


@dataclass(frozen=True)
class Answer:
    """Page 1.

    Attributes:
        headline: one sentence.
        worst: rank with the highest peak; None without any peak.
    """

    headline: str
    worst: int | None
    paragraphs: Sequence[Paragraph]

    def short(self) -> list[str]:
        """The headline, verdicts and what to change, one line each."""
        return [
            self.headline,
            *(f"{paragraph.label}: {paragraph.text}" for paragraph in self.paragraphs if paragraph.strong),
        ]


def answer(run: Run, findings: Sequence[Finding]) -> Answer:
    """Page 1 of a run."""
    worst = highest(run)
    limit = run.manifest.get("gpu_memory_bytes")
    paragraphs = [Paragraph("Basis", what_it_is(run), strong=True)] if simulated(run) else []
    paragraphs += [Paragraph("Out of memory", shortage.sentence(one, limit), strong=True) for one in shortages(run)]
    if worst is not None:
        story = read_story(run, worst)
        if story.peak is not None and words.by_allocator(story.peak):
            paragraphs.append(Paragraph("Samples", _samples(run, story), strong=True))
        paragraphs += [
            *_course(story, "Predicted" if simulated(run) else "Allocated"),
            Paragraph("Peak", _peak(run, story)),
            Paragraph("Alive then", _alive(run, story.composition)),
        ]
        if simulated(run) and (fit := fits(run, worst, findings)):
            paragraphs.append(Paragraph("GPU", fit, strong=True))
        # A finding that names the same knob says more.
        named = {one.knob for one in findings if one.verdict in SURE and one.knob}
        if (largest := knob_of_largest(run, story)) and not any(knob in largest for knob in named):
            paragraphs.append(Paragraph("Largest part", largest, strong=True))
        if beside := outside(run):
            paragraphs.append(Paragraph("Outside", outside_sentence(beside)))
    paragraphs += verdict_paragraphs(grouped(findings, len(run.rank_ids) + run.missing_count, worst))
    headline = _headline(run, worst)
    return Answer(f"{PREDICTED}{headline}" if simulated(run) else headline, worst, paragraphs)


def highest(run: Run) -> int | None:
    """Rank with the highest peak; the lowest such rank."""
    peaks = peak_bytes(run)
    if peaks:
        return min(peaks, key=lambda rank: (-peaks[rank], rank))
    sampled = {rank: story.peak.highest_bytes for rank in run.rank_ids if (story := read_story(run, rank)).peak}
    return min(sampled, key=lambda rank: (-sampled[rank], rank)) if sampled else None


def _headline(run: Run, worst: int | None) -> str:
    if not run.rank_ids:
        if ended_before_capture(run):
            return "The capture ended before any rank wrote anything."
        return "The run is empty: no rank left anything behind."
    if worst is None:
        reserved = {rank: words.reserved_bytes(read_story(run, rank)) for rank in run.rank_ids}
        if top := max(reserved.values()):
            rank = max(reserved, key=lambda rank: (reserved[rank], -rank))
            return (
                f"Allocated memory was not recorded, so where it peaked is not known; the allocator reserved up to "
                f"{size(top)} (rank {rank})."
            )
        return "No rank has a memory curve, so where memory peaked is not known."
    story = read_story(run, worst)
    assert story.peak is not None
    peaks = peak_bytes(run)
    peak = story.peak
    if alike(peaks):
        who = peak_alike(peaks, len(run.rank_ids) + run.missing_count, words.or_more(story))
        then = f", rank {worst}"
    else:
        who = f"Rank {worst} peaks {'highest, ' if len(peaks) > 1 else ''}at {size(peak.highest_bytes)}"
        who, then = f"{who}{words.or_more(story)}", ","
    if words.by_allocator(peak):
        by = " by the allocator's own counter"
        return f"{who}{by}{then if alike(peaks) else ','} {words.allocator_within(peak)}."
    if not words.place(peak):
        return f"{who}; no file tells during which ZeRO event."
    return f"{who}{then} {words.place(peak)}.{_already(story, peak)}"


def _already(story: Story, peak: Peak) -> str:
    released = story.released_at_peak_bytes
    if not released:
        return ""
    share = percent(released, peak.allocated_bytes)
    return f" {size(released)} of it ({share}) were weights that ZeRO had already released."


def _samples(run: Run, story: Story) -> str:
    """What the samples reached, beside the allocator's own maximum."""
    peak = story.peak
    assert peak is not None
    when = moment(peak.ts_ns, run_origin_ns(run))
    return (
        f"The samples reached {size(peak.allocated_bytes)} at {when}, {words.within(peak)}, {words.during(peak)}."
        f"{_already(story, peak)}"
    )


def _course(story: Story, label: str) -> list[Paragraph]:
    """Allocated bytes at the marks that bug reports quote, and at the peak."""
    assert story.peak is not None
    parts = []
    for name, mark, step in (("init", "init", None), ("the first forward", "forward", 0)):
        found = next((m for m in story.marks if m["mark"] == mark and step in {None, m["step"]}), None)
        if found is not None and found["allocated_bytes"] is not None:
            parts.append(f"{size(found['allocated_bytes'])} after {name}")
    if not parts:
        return []
    peak = f"peak {size(story.peak.highest_bytes)}{words.or_more(story)} (rank {story.rank})"
    return [Paragraph(label, f"{', '.join([*parts, peak])}.", strong=True)]


def _peak(run: Run, story: Story) -> str:
    peak = story.peak
    assert peak is not None
    when = moment(peak.ts_ns, run_origin_ns(run))
    text = f"Rank {story.rank}: {exact(peak.allocated_bytes)} at {when} after {run_origin(run)}. "
    if words.by_allocator(peak):
        text = (
            f"Rank {story.rank}: {exact(peak.highest_bytes)} by the allocator's own counter, at a moment not known. "
            f"Highest sample: {exact(peak.allocated_bytes)} at {when} after {run_origin(run)}. "
        )
    if peak.in_flight is not None:
        text += f"In flight: {_event(peak.in_flight.name, peak.in_flight.param_count, peak.in_flight.full_bytes)}. "
    else:
        text += "No ZeRO event was in flight. " if peak.events_told else "The files hold no ZeRO events. "
    if (last := peak.before) is not None:
        ago = f"{duration(peak.ts_ns - last.start_ns)} earlier"
        where = f", in the {last.phase}" if peak.preceding is None and last.phase else ""
        text += f"Last begun before: {_event(last.name, last.param_count, last.full_bytes)}, {ago}{where}. "
    if peak.module is not None:
        text += f"Module running: {peak.module or 'the model itself'}. "
    if peak.reserved_bytes is not None:
        text += f"Reserved by the allocator: {size(peak.reserved_bytes)}. "
    if cut := set(cut_ranks(run)) - {story.rank}:
        text += f"{shown_ranks(sorted(cut)).capitalize()} stopped early and may have peaked higher. "
    return text.strip()


def _event(name: str, params: int | None, full_bytes: int | None) -> str:
    details = [f"{params} parameter{'s' if params != 1 else ''}"] if params else []
    details += [size(full_bytes)] if full_bytes else []
    return f"{name} ({', '.join(details)})" if details else name


def _alive(run: Run, composition: Sequence[Part]) -> str:
    if not composition:
        return "Not known: the tables hold no composition of this peak."
    total = sum(part.size_bytes for part in composition)
    named = [part for part in composition if part.category != UNATTRIBUTED and part.size_bytes]
    if not named:
        why = "; only zeropeak's own event log says what a block holds" if of_files(run) else ""
        return f"Not known: all {size(total)} are unattributed{why}."
    text = "; ".join(
        f"{size(p.size_bytes)} {category_label(p.category)} ({percent(p.size_bytes, total)})"
        for p in named[:_MOST_PARTS]
    )
    rest = named[_MOST_PARTS:]
    if rest:
        text += (
            f"; {size(sum(p.size_bytes for p in rest))} in {count(len(rest), 'smaller category', 'smaller categories')}"
        )
    left = sum(part.size_bytes for part in composition if part.category == UNATTRIBUTED)
    return f"{text}; {size(left)} unattributed."
