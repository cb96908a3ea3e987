"""Full parameters that stay gathered since they are used again within stage3_max_reuse_distance elements.

What a smaller distance saves is not simply what is kept: autograd may hold on to the weight all the same, the prefetch
may gather it again before the peak, and a weight that is held and gathered again is there twice. So the run is told
again with the smaller distance (:mod:`zeropeak.reports.findings.replay`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from zeropeak.reports import setting
from zeropeak.reports.columns import ABSENT
from zeropeak.reports.findings.judging import (
    judge,
    not_applicable,
    noticeable,
    of_peak,
    ruled_out,
    sure,
    unattributed_peak,
    unknown,
    unpartitioned,
    unseen,
)
from zeropeak.reports.findings.kept import none_written, read_kept
from zeropeak.reports.findings.registered import of_composition, part_bytes
from zeropeak.reports.findings.replay import read_replay
from zeropeak.reports.findings.saving import NEARLY_ALL
from zeropeak.reports.names import counted
from zeropeak.reports.story import read_story
from zeropeak.reports.units import count, size

if TYPE_CHECKING:
    from zeropeak.reports.findings.finding import Finding
    from zeropeak.reports.findings.kept import Kept
    from zeropeak.reports.findings.replay import Replay
    from zeropeak.reports.findings.saving import Saving
    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Peak

ID: Final = "reuse-distance-hold"
TITLE: Final = "Weights stay gathered for reuse"
KNOB: Final = "max_reuse_distance"
CAUSE: Final = "reuse-distance"
_CATEGORY: Final = "kept_for_reuse"
_NEEDED: Final = ("release", "free", "module forward begin", "module backward begin")


_TRIED: Final = 6
"""Distances that are tried between 0 and the largest at which something kept at the peak goes."""


def find(run: Run) -> list[Finding]:
    """One finding a rank, missing ranks included."""
    return judge(run, ID, of_rank)


def of_rank(run: Run, blank: Finding) -> Finding:
    """The finding on one rank, filled in from a blank one."""
    rank, story = blank.rank, read_story(run, blank.rank)
    if unsaid := unpartitioned(run, blank) or unseen(run, blank, _NEEDED, "Releases"):
        return unsaid
    knob = setting.knob(run, rank, KNOB)
    if knob == 0:
        return not_applicable(blank, f"{setting.config_key(run, KNOB)} is 0: nothing is kept for reuse.")
    if unsaid := unattributed_peak(run, blank, story):
        return unsaid
    peak = story.peak
    assert peak is not None
    replay = read_replay(run, rank)
    if knob is None or not replay.turns:
        why = "The run does not say its reuse distance." if knob is None else _NO_TRACE
        return unknown(blank, why, "Capture three or more steps with `zeropeak nsys` or `zeropeak torch`.")
    if none_written(run, rank) and part_bytes(story, _CATEGORY):
        return unknown(blank, "The tables are of an older parse.", "Run `zeropeak parse` on the run again.")
    kept = read_kept(run, rank, replay, CAUSE)
    here = kept.at(peak.ts_ns)
    evidence = [of_composition(story, [_CATEGORY], "kept at the run's peak, whatever for")]
    blank = replace(blank, bytes=here.total_bytes, allocated_bytes=peak.highest_bytes)
    if not noticeable(here.total_bytes, peak):
        most = kept.most_bytes()
        text = f"Kept for reuse at the peak: {of_peak(here.total_bytes, peak)} (at most {size(most)} at any time)."
        return ruled_out(blank, text, here.total_bytes, evidence)
    sizes = list(zip(here.names(), here.size_bytes.tolist(), strict=True))
    found = replace(
        blank,
        verdict=sure(blank),
        step=peak.step,
        knob=setting.config_key(run, KNOB),
        headline=f"At the peak {count(len(here), 'full parameter')} that no module was using stayed gathered, because "
        f"each is used again within {knob:,} elements: {of_peak(here.total_bytes, peak)}.",
        modules=counted(sizes),
        evidence=[*evidence, here.evidence()],
    )
    return _advised(run, found, peak, replay, here)


_NO_TRACE: Final = (
    "Only steps were captured in which DeepSpeed still recorded its trace of modules, and before that is complete it "
    "keeps nothing for reuse."
)


def _advised(run: Run, found: Finding, peak: Peak, replay: Replay, here: Kept) -> Finding:
    """With the largest distance that saves nearly all that any does, and what stands in its way."""
    key = found.knob
    none = replay.saving(max_reuse_distance=0)
    if none is None:
        why = replay.doubt or "whether autograd would hold on to these weights was never seen"
        advice = f"Set {key} to 0 and compare the peaks: what it saves is open, since {why}."
        return replace(found, value=0, advice=advice)
    # Not 0 alone: what a distance lets go of may be gathered again ahead of use, or twice where autograd holds it.
    tried = [(value, replay.saving(max_reuse_distance=value)) for value in _distances(here)]
    known = [(0, none), *((value, saving) for value, saving in tried if saving is not None)]
    best = max(saving.size_bytes for _, saving in known)
    enough = min(best, NEARLY_ALL * best)
    value, saving = max((one for one in known if one[1].size_bytes >= enough), key=lambda one: one[0])
    more = _together(run, found, peak, replay, saving)
    if not noticeable(saving.size_bytes, peak):
        most = f"at most {size(saving.size_bytes)}" if saving.size_bytes > 0 else "nothing"
        rise = _rise(replay, peak)
        return replace(found, advice=f"Lowering {key} alone saves {most} here{_why(replay, here)}.{rise}{more}")
    return replace(
        found,
        value=value,
        expected=[saving.expected],
        advice=f"Set {key} to {value} (elements): expect {saving.words}. Gathered again for each use, so more "
        f"communication.{more}",
    )


def _distances(here: Kept) -> list[int]:
    """Settings to try: distances at which some of what is kept at the peak goes, a few when there are many."""
    known = np.unique(here.distance[here.distance != ABSENT])
    return (
        known[np.unique(np.linspace(0, max(len(known) - 1, 0), _TRIED).round().astype(int))].tolist()
        if len(known)
        else []
    )


def _why(replay: Replay, here: Kept) -> str:
    """Why letting go of it saves little."""
    held = np.isin(here.param_id, np.array(sorted(replay.held), np.int64))
    bytes_ = int(here.size_bytes[held].sum())
    if 2 * bytes_ >= here.total_bytes:
        return f", since autograd holds on to {size(bytes_)} of it until the backward (retained-after-release)"
    return ", since what is let go of is gathered again by then"


def _rise(replay: Replay, peak: Peak) -> str:
    """That 0 makes it worse, where it does."""
    saving = replay.saving(max_reuse_distance=0)
    if saving is None or not noticeable(-saving.size_bytes, peak):
        return ""
    return f" At 0 the peak would even be {size(-saving.size_bytes)} higher: what is still held is gathered once more."


def _together(run: Run, found: Finding, peak: Peak, replay: Replay, alone: Saving) -> str:
    """What a distance of 0 saves beside other changes, where these stand in its way."""
    parts, left = [], alone.without_bytes
    fixable = setting.memory_efficient_linear(run, found.rank) is False and bool(replay.held)
    if fixable:
        fixed, both = replay.saving(autograd_holds=False), replay.saving(max_reuse_distance=0, autograd_holds=False)
        if fixed is None or both is None:
            return ""
        before, left = fixed.without_bytes, both.without_bytes
        if noticeable(before - left, peak):
            once = f"Once {setting.LINEAR_KNOB} is true, a distance of 0 saves"
            parts.append(f" {once} {size(before - left)} ({size(before)} to {size(left)}).")
    no_prefetch = replay.saving(max_reuse_distance=0, prefetch_bucket_size=0, autograd_holds=not fixable)
    if no_prefetch is not None and noticeable(left - no_prefetch.without_bytes, peak):
        bucket = setting.config_key(run, "prefetch_bucket_size")
        parts.append(
            f" With {bucket} at 0 as well, so that no prefetch gathers them again before the peak, it would be "
            f"{size(no_prefetch.without_bytes)}."
        )
    return "".join(parts)
