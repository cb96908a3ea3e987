"""Gradient buckets: what reduce_bucket_size sets aside, how much of it is ever filled, and what a smaller one saves.

DeepSpeed allocates each bucket at its full size, whatever goes into it: in stage 3 one for each gradient type, for the
whole run; in stages 1 and 2 for each backward, and two of each with ``overlap_comm`` (one fills while the other is
reduced). A reduction may copy the bucket once more. ``allgather_bucket_size`` cuts the all-gathers after the step of
stages 1 and 2 into pieces of the parameters themselves; what these events allocate is looked at, not assumed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc

from zeropeak.parse import lookup
from zeropeak.profile.labels import Kind, Stored
from zeropeak.reports import given, setting
from zeropeak.reports.columns import ABSENT, NEVER, ints
from zeropeak.reports.curve import Intervals
from zeropeak.reports.findings.judging import (
    PARTITIONS,
    judge,
    not_applicable,
    noticeable,
    of_peak,
    ruled_out,
    sure,
    unattributed_peak,
    unknown,
    unseen,
)
from zeropeak.reports.findings.reductions import read_fill
from zeropeak.reports.findings.registered import of_composition, read_registered
from zeropeak.reports.findings.saving import peak_without
from zeropeak.reports.story import read_story
from zeropeak.reports.units import count, size

if TYPE_CHECKING:
    from zeropeak.reports.columns import Flags, Ints
    from zeropeak.reports.findings.finding import Evidence, Finding
    from zeropeak.reports.findings.reductions import Fill
    from zeropeak.reports.findings.registered import Registered
    from zeropeak.reports.findings.saving import Saving
    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Peak, Story

ID: Final = "reduce-bucket"
TITLE: Final = "Gradient buckets are large"
KNOB: Final = "reduce_bucket_size"
_CATEGORY: Final = "gradient_buckets"
BUCKET: Final = "ipg bucket"
"""Owner under which the capture registers a bucket; a copy made for a reduction has another."""


def find(run: Run) -> list[Finding]:
    """One finding a rank, missing ranks included."""
    return judge(run, ID, of_rank)


def of_rank(run: Run, blank: Finding) -> Finding:
    """The finding on one rank, filled in from a blank one."""
    stage = setting.stage(run, blank.rank)
    if stage is None:
        return unknown(blank, *given.no_stage(run))
    if stage == 0:
        return not_applicable(blank, f"ZeRO stage 0 has no bucket that {KNOB} would set.")
    story = read_story(run, blank.rank)
    if stage < PARTITIONS and (unsaid := unseen(run, blank, ("gradient ready",), "Gradient buckets")):
        return unsaid
    if unsaid := unattributed_peak(run, blank, story):
        return unsaid
    assert story.peak is not None
    every = read_registered(run, blank.rank).of(Stored.GRADIENT_BUCKET)
    alive = every.alive(story.peak.ts_ns)
    evidence = [of_composition(story, [_CATEGORY], "gradient buckets at the run's peak")]
    rest = _all_gathers(run, story, stage)
    blank = replace(blank, notes=[rest] if rest else [], allocated_bytes=story.peak.highest_bytes)
    if not len(every):
        return unknown(
            blank,
            "No gradient bucket was registered in this run.",
            "Capture a whole step with `zeropeak nsys` or `zeropeak torch`; with contiguous_gradients false there is "
            "no bucket.",
        )
    bytes_ = alive.total_bytes
    if not noticeable(bytes_, story.peak):
        most = int(every.intervals().curve().size_bytes.max(initial=0))
        return ruled_out(
            blank,
            f"Gradient buckets held {of_peak(bytes_, story.peak)} (at most {size(most)} at any time).",
            bytes_,
            evidence,
        )
    return _confirmed(run, blank, story, every, alive, evidence)


def _confirmed(
    run: Run, blank: Finding, story: Story, every: Registered, alive: Registered, evidence: list[Evidence]
) -> Finding:
    peak, rank = story.peak, story.rank
    assert peak is not None
    now, fill = setting.knob(run, rank, KNOB), read_fill(run, rank)
    buckets = alive.keep(_is_bucket(alive))
    evidence = [*evidence, alive.evidence("gradient buckets alive at the peak")]
    if fill is not None and fill.evidence is not None:
        evidence.append(fill.evidence)
    found = replace(
        blank,
        verdict=sure(blank),
        bytes=alive.total_bytes,
        step=peak.step,
        headline=_headline(peak, alive, buckets, now, fill),
        evidence=evidence,
    )
    if now is None or not len(buckets):
        return replace(found, advice=f"Lower {setting.config_key(run, KNOB)}: the run does not say what it was.")
    value = _value(every, now, fill, peak)
    saving = peak_without(story, _shrunk(every, now, value))
    return replace(
        found,
        knob=setting.config_key(run, KNOB),
        value=value,
        expected=[saving.expected] if saving else [],
        advice=_advice(run, rank, value, fill, saving) + _single(run, story, buckets),
    )


def _value(every: Registered, now: int, fill: Fill | None, peak: Peak) -> int:
    """A bucket that just holds what this run ever put into one, if that is noticeably less; else half of it."""
    if fill is not None and 0 < fill.most_numel < now:
        spare = int(_shrunk(every, now, fill.most_numel).curve().size_bytes.max(initial=0))
        if noticeable(spare, peak):
            return fill.most_numel
    return max(now // 2, 1)


def _shrunk(every: Registered, now: int, value: int) -> Intervals:
    """What each bucket, and each copy of one, is larger than with another size of the bucket."""
    sizes = every.size_bytes
    bucket = _is_bucket(every)
    # Allocators round up, by far less than an element's share of a bucket.
    widths = sizes[bucket] // now
    width = int(widths.max(initial=0))
    spare = np.where(bucket, sizes // now * (now - value), np.maximum(sizes - width * value, 0))
    return every.intervals(size_bytes=spare)


def _is_bucket(blocks: Registered) -> Flags:
    flags: Flags = pc.fill_null(pc.equal(blocks.table["owner"], BUCKET), False).to_numpy()
    return flags


def _headline(peak: Peak, alive: Registered, buckets: Registered, now: int | None, fill: Fill | None) -> str:
    text = f"Gradient buckets held {of_peak(alive.total_bytes, peak)}"
    parts = []
    if len(buckets):
        each = f" of {now:,} elements" if now is not None else ""
        parts.append(f"{count(len(buckets), 'bucket')}{each}, {size(buckets.total_bytes)}")
    if copies := alive.total_bytes - buckets.total_bytes:
        parts.append(f"{size(copies)} in copies for reductions")
    if fill is not None and now is not None and fill.most_numel < now:
        most = "the fullest reduction held" if fill.reductions is not None else "all gradients together have"
        parts.append(f"{most} {fill.most_numel:,} elements")
    return f"{text}: {'; '.join(parts)}."


def _advice(run: Run, rank: int, value: int, fill: Fill | None, saving: Saving | None) -> str:
    effect = f"expect {saving.words}" if saving else "the saving at the peak is unknown, there is no memory curve"
    text = f"Set {setting.config_key(run, KNOB)} to {value} (elements): {effect}"
    if fill is not None and value >= fill.most_numel:
        return f"{text}. No reduction of this run was larger, so their number stays."
    twice = f", {fill.reductions} a step here" if fill is not None and fill.reductions else ""
    return f"{text}. About twice as many reductions{twice}: the smaller the bucket, the more of them."


def _single(run: Run, story: Story, buckets: Registered) -> str:
    """What one of two buckets costs, where overlap_comm makes two."""
    if len(buckets) < 2 or setting.flag(run, story.rank, "overlap_comm") is not True or (story.stage or 0) > 2:
        return ""
    second = buckets.size_bytes.copy()
    second[0] = 0
    saving = peak_without(story, buckets.intervals(size_bytes=second))
    return (
        f" Or set zero_optimization.overlap_comm to false, for one bucket instead of two: {saving.words}."
        if saving
        else ""
    )


def _all_gathers(run: Run, story: Story, stage: int) -> str | None:
    """What the all-gathers after the step of stages 1 and 2 allocated: the part of allgather_bucket_size."""
    if stage > 2:
        return None
    events = run.arrow("zero_events", story.rank, ["event_id", "kind"])
    ids = events.filter(pc.equal(events["kind"], Kind.ALL_GATHER.value))["event_id"].combine_chunks()
    if not len(ids) or story.peak is None:
        return None
    blocks = run.arrow(
        "memory_blocks", story.rank, ["size_bytes", "born_ns", "free_requested_ns", "freed_ns", "born_event_id"]
    )
    blocks = blocks.filter(pc.is_in(blocks["born_event_id"], ids))
    end = lookup.ints(pc.coalesce(blocks["free_requested_ns"], blocks["freed_ns"]), NEVER)
    sizes: Ints = ints(blocks, "size_bytes")
    nobody = np.full(len(end), ABSENT)
    most = int(Intervals(ints(blocks, "born_ns"), end, sizes, nobody, nobody).curve().size_bytes.max(initial=0))
    here = int(sizes[(ints(blocks, "born_ns") <= story.peak.ts_ns) & (end > story.peak.ts_ns)].sum())
    key = setting.config_key(run, "allgather_bucket_size")
    if here:
        return f"The all-gathers after the step held {size(here)} at the peak; {key} cuts them into pieces."
    return (
        f"{key} does not matter for this peak: the all-gathers after the step allocated at most {size(most)}, none of "
        "it then."
    )
