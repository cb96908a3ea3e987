"""Memory that the caching allocator took from the device beyond the most that was ever allocated at once.

At any other moment reserved above allocated is only a cache, which the next peak uses again; what an out-of-memory
error is about is how far the highest of the one lies above the highest of the other. Needs a caching allocator: the
CPU has none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow.compute as pc

from zeropeak.reports.columns import ints
from zeropeak.reports.curve import of_device, without_nsys
from zeropeak.reports.findings.finding import Evidence, Finding
from zeropeak.reports.findings.judging import judge, not_applicable, ruled_out, sure, unknown
from zeropeak.reports.scopes import ScopePeak, scope_peaks
from zeropeak.reports.story import read_story
from zeropeak.reports.units import count, percent, size

if TYPE_CHECKING:
    from zeropeak.reports.columns import Ints
    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Story

ID: Final = "cached-not-allocated"
TITLE: Final = "The allocator reserves more than is ever allocated"
FAR: Final = 0.05
"""Share of the allocated peak from which the gap is a problem. Segments of 2 MiB and 20 MiB cost up to some percent of
a peak whatever one does, so less than this no setting wins back."""
KNOB: Final = "PYTORCH_CUDA_ALLOC_CONF"
VALUE: Final = "expandable_segments:True"
FRAGMENTATION: Final = "fragmentation"
"""Cause: the segments that made the gap were taken from the device while as many bytes lay free in the cache."""
_TOP_ROWS: Final = 5


@dataclass(frozen=True)
class Segments:
    """Segments that the allocator took when it already held as much as was ever allocated; parallel arrays.

    Attributes:
        size_bytes: of each segment.
        free_bytes: free in the cache just before it was taken.
        returned_count, returned_bytes: segments given back after the first forward began.
        oom_count: out-of-memory errors.
    """

    ts_ns: Ints
    size_bytes: Ints
    free_bytes: Ints
    returned_count: int
    returned_bytes: int
    oom_count: int

    @property
    def avoidable(self) -> Ints:
        """Indexes of segments that the cache's free bytes would have covered, largest first."""
        found = np.flatnonzero(self.free_bytes >= self.size_bytes)
        return found[np.argsort(-self.size_bytes[found], kind="stable")]


def find(run: Run) -> list[Finding]:
    """One finding a rank, missing ranks included."""
    return judge(run, ID, of_rank)


def of_rank(run: Run, blank: Finding) -> Finding:
    """The finding on one rank, filled in from a blank one."""
    story = read_story(run, blank.rank)
    if (story.device or "").startswith("cpu"):
        return not_applicable(
            blank, "The run is on CPU, whose allocator keeps no cache: nothing is reserved beyond what is allocated."
        )
    top = next((peak for peak in scope_peaks(run, blank.rank) if peak.scope == "run"), None)
    if top is None or not len(story.reserved):
        what = "reserved memory" if top else "memory curve"
        return unknown(
            blank, f"The capture holds no {what}.", "Capture with `zeropeak nsys` or `zeropeak torch` on the GPU."
        )
    if not top.known:
        return unknown(
            blank,
            "The memory curve misses a part of the run, so the highest that was ever allocated is not known.",
            "See history-incomplete for what would complete it.",
        )
    return _judged(run, blank, story, top)


def _judged(run: Run, blank: Finding, story: Story, top: ScopePeak) -> Finding:
    place = int(np.argmax(story.reserved.size_bytes))
    reserved = int(story.reserved.size_bytes[place])
    gap = max(reserved - top.highest_bytes, 0)
    when = _when(story, int(story.reserved.ts_ns[place]))
    text = (
        f"The allocator had reserved up to {size(reserved)}{when}, {size(gap)} "
        f"({percent(gap, top.highest_bytes)}) above the {size(top.highest_bytes)} that were ever allocated at once"
    )
    row = {
        "rank": blank.rank,
        "max_reserved_bytes": reserved,
        "max_reserved_ns": int(story.reserved.ts_ns[place]),
        "max_allocated_bytes": top.highest_bytes,
    }
    table = "memory_samples" if story.reserved.sampled else "memory_events"
    evidence = Evidence(table, {"rank": blank.rank}, [row], "highest reserved and highest allocated of the run")
    if gap < FAR * top.highest_bytes:
        return ruled_out(blank, f"{text}.", gap, [evidence])
    segments = _segments(run, story, top.highest_bytes)
    fragmented = segments is not None and int(segments.size_bytes[segments.avoidable].sum()) >= gap / 2
    return replace(
        blank,
        verdict=sure(blank),
        bytes=gap,
        allocated_bytes=top.highest_bytes,
        cause=FRAGMENTATION if fragmented else None,
        knob=KNOB,
        value=VALUE,
        headline=f"{text}{_why(story, segments)}.",
        advice=_advice(story, gap, segments),
        evidence=[evidence, *_segment_evidence(blank.rank, segments)],
    )


def _when(story: Story, ts_ns: int) -> str:
    span = next((s for s in reversed(story.phases) if s.start_ns <= ts_ns <= s.end_ns), None)
    if span is None:
        return ""
    return " in init" if (span.step or 0) < 0 else f" in the {span.phase} of step {span.step}"


def _segments(run: Run, story: Story, enough_bytes: int) -> Segments | None:
    """Those that took reserved memory above ``enough_bytes``; None where segments were not recorded (counters)."""
    columns = ["device", "ts_ns", "source", "action", "size_bytes", "allocated_bytes", "reserved_bytes"]
    rows = without_nsys(of_device(run.arrow("memory_events", story.rank, columns), run, story.rank))
    taken = rows.filter(pc.equal(rows["action"], "segment_alloc"))
    taken = taken.filter(pc.and_(pc.is_valid(taken["allocated_bytes"]), pc.is_valid(taken["reserved_bytes"])))
    if not taken.num_rows:
        return None
    taken = taken.filter(pc.greater(taken["reserved_bytes"], enough_bytes))
    size_bytes = ints(taken, "size_bytes")
    start_ns = next((span.start_ns for span in story.phases if span.phase == "forward"), 0)
    back = rows.filter(pc.and_(pc.equal(rows["action"], "segment_free"), pc.greater_equal(rows["ts_ns"], start_ns)))
    return Segments(
        ints(taken, "ts_ns"),
        size_bytes,
        ints(taken, "reserved_bytes") - size_bytes - ints(taken, "allocated_bytes"),
        back.num_rows,
        int(ints(back, "size_bytes").sum()),
        int(pc.sum(pc.equal(rows["action"], "oom")).as_py() or 0),
    )


def _why(story: Story, segments: Segments | None) -> str:
    if segments is None:
        return "; without its segments it is not told whether that is fragmentation"
    text, avoidable = "", segments.avoidable
    if len(avoidable):
        worst = int(avoidable[0])
        in_all, one = int(segments.size_bytes[avoidable].sum()), int(segments.size_bytes[worst])
        text = (
            f"; of the segments taken past that, {len(avoidable):,} ({size(in_all)}) came while as much lay free in "
            f"the cache, the largest{_when(story, int(segments.ts_ns[worst]))} ({size(one)} beside "
            f"{size(int(segments.free_bytes[worst]))} free)"
        )
    if segments.returned_count:
        text += (
            f"; {count(segments.returned_count, 'segment')} ({size(segments.returned_bytes)}) went back to the device "
            "during the steps, by empty_cache or as the allocator ran out of memory and tried again"
        )
    if segments.oom_count:
        text += f"; {count(segments.oom_count, 'out-of-memory error')}"
    return text


def _advice(story: Story, gap: int, segments: Segments | None) -> str:
    text = (
        f"Start the ranks with {KNOB}={VALUE}, unless it is set already: up to {size(gap)} less reserved, since "
        "segments then grow instead of being taken anew; allocated memory stays as it is."
    )
    if segments is None:
        text += " A capture with `zeropeak torch` records the segments and tells how much of it is fragmentation."
    return text


def _segment_evidence(rank: int, segments: Segments | None) -> list[Evidence]:
    if segments is None or not len(segments.avoidable):
        return []
    rows: list[dict[str, Any]] = [
        {
            "rank": rank,
            "ts_ns": int(segments.ts_ns[place]),
            "size_bytes": int(segments.size_bytes[place]),
            "free_in_cache_bytes": int(segments.free_bytes[place]),
        }
        for place in segments.avoidable[:_TOP_ROWS]
    ]
    where = {"rank": rank, "action": "segment_alloc"}
    return [Evidence("memory_events", where, rows, "largest segments taken while as many bytes lay free in the cache")]
