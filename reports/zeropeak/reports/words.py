"""Phrases that titles, annotations and page 1 share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeropeak.profile.labels import Kind, Phase
from zeropeak.reports.units import duration, moment, size

if TYPE_CHECKING:
    from zeropeak.reports.story import Event, Peak, Story


def during(peak: Peak) -> str:
    """What was in flight at a peak.

    "during wait layers.7.mlp", or "1.90 ms after release lm_head", what came last before in the same phase. Empty when
    no event was recorded at all.
    """
    if peak.in_flight is not None:
        return f"during {peak.in_flight.name}{_in_module(peak, peak.in_flight)}"
    last = peak.preceding
    if last is not None:
        ended = last.start_ns if last.end_ns is None or last.end_ns > peak.ts_ns else last.end_ns
        return f"{duration(peak.ts_ns - ended)} after {last.name}{_in_module(peak, last)}"
    if not peak.events_told:
        return _in_module(peak, None).strip()
    yet = f" in this {peak.phase} yet" if peak.before is not None and peak.phase is not None else ""
    return f"with no ZeRO event in flight{yet}{_in_module(peak, None)}"


def _in_module(peak: Peak, event: Event | None) -> str:
    """The running module, unless it is the model itself or the event's own."""
    if not peak.module or (event is not None and event.module == peak.module):
        return ""
    return f" in module {peak.module}"


def where(peak: Peak) -> str:
    """Phase and step of a peak: "backward of step 1". Empty when no phase was recorded at all."""
    return _where(peak.phase, peak.step) if peak.phases_told else ""


def within(peak: Peak) -> str:
    """As :func:`where`, in a sentence: "in the backward of step 1"."""
    if peak.phase is None or peak.phase == "init":
        return "in init" if peak.phase else where(peak)
    return f"in the {where(peak)}"


def place(peak: Peak) -> str:
    """:func:`within` and :func:`during`, as far as they say anything; to follow a comma."""
    if peak.phase == Phase.STEP and peak.in_flight is not None and peak.in_flight.kind == Kind.STEP:
        return within(peak)  # "during step" would say the same again
    return ", ".join(filter(None, (within(peak), during(peak))))


def by_allocator(peak: Peak) -> bool:
    """Whether the allocator's own maximum is known beside a sampled curve; it then is the peak.

    It is read at marks: after the last mark of a rank that was cut, a sample can be higher.
    """
    return peak.sampled and peak.allocator_bytes is not None and peak.allocator_bytes >= peak.allocated_bytes


def allocator_within(peak: Peak) -> str:
    """Where the allocator's own maximum lay: "in the backward of step 1"."""
    known = peak.allocator_phase is not None
    return f"in the {_where(peak.allocator_phase, peak.allocator_step)}" if known else "in a phase that is not known"


def _where(phase: str | None, step: int | None) -> str:
    if phase is None:
        return "outside every phase"
    name = "optimizer's step" if phase == "step" else phase
    return name if step is None or step < 0 else f"{name} of step {step}"


def peak_sentence(story: Story) -> str:
    """Rank, peak, event and the released weights in it; for titles."""
    if story.peak is None:
        if top := reserved_bytes(story):
            return f"Rank {story.rank} reserves up to {size(top)}; how much of it was allocated is not recorded"
        return f"Rank {story.rank}: no memory curve"
    released = story.released_at_peak_bytes
    tail = ""
    if released:
        tail = f", {size(released)} of it already released weights"
    elif released == 0 and "free" in story.events.kinds:
        tail = ", none of it released weights"
    peak = story.peak
    who = f"Rank {story.rank} peaks at {size(peak.highest_bytes)}{or_more(story)}"
    if by_allocator(peak):
        return f"{who}; the samples reach {size(peak.allocated_bytes)} {during(peak)}{tail}"
    return f"{who} {during(peak)}".rstrip() + tail


def reserved_bytes(story: Story) -> int:
    """Most that the allocator of a rank without a curve of allocated memory had reserved; 0 where that is not known."""
    return 0 if len(story.curve) else int(story.reserved.size_bytes.max(initial=0))


def or_more(story: Story) -> str:
    """Said after a peak that need not be the highest."""
    return "" if story.complete else " or more"


def not_drawn(story: Story, steps: int, top_bytes: int) -> str | None:
    """What is said in the place of a curve that has nothing to show; None when it has."""
    if not steps:
        return no_curve(story)
    if top_bytes == 0:
        if not any(span.phase == "forward" for span in story.phases):
            return f"The capture of rank {story.rank} ended before the first forward: there is no memory curve to show."
        return f"Rank {story.rank} has no allocated memory in the time shown."
    return None


def no_curve(story: Story) -> str:
    """Why there is no curve and what would give one."""
    return (
        f"Rank {story.rank} has no memory curve: its capture holds neither allocation events nor counters. "
        "Capture with `zeropeak nsys` or `zeropeak torch` and let the run end by itself."
    )


def cut(story: Story, origin_ns: int) -> str | None:
    """What is missing of a rank's curve."""
    if story.cut:
        return f"{story.status}: the rank's data ends at {moment(story.end_ns, origin_ns)}"
    if story.memory_partial:
        return "the memory curve misses a part of the run"
    return None
