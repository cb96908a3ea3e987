"""Ranks whose peaks differ, and by what: a rank's peak less that of the lowest, category by category."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from zeropeak.reports.figures.style import category_label
from zeropeak.reports.findings.finding import Evidence, Finding
from zeropeak.reports.findings.judging import judge, mend, not_applicable, ruled_out, sure, unknown
from zeropeak.reports.selection import shown_ranks
from zeropeak.reports.story import UNATTRIBUTED, read_story
from zeropeak.reports.units import count, size
from zeropeak.reports.words import within

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Peak

ID: Final = "rank-skew"
TITLE: Final = "Some ranks peak higher than others"
SKEWED: Final = 0.05
"""Share of the highest peak from which a difference is one between what ranks hold. Less can come of which gather or
temporary was alive at the very moment of a peak: two ranks of one tiny run on CPU differed by 1.3 % that way, with the
same batch and model."""
_MOST_PARTS: Final = 3
_BATCH: Final = frozenset({"activations", "inputs", "workspace"})
"""Categories that grow with the batch."""
_ADVICE: Final = {
    "gradient_buckets": "Compare the ranks' configs: reduce_bucket_size should be the same on all.",
    "gathered_in_use": "The ranks gather different weights at their peaks: see each rank's events around its peak.",
    "released_but_alive": "More released weights stay alive there: see retained-after-release for those ranks.",
    UNATTRIBUTED: "Capture with `zeropeak torch`: the difference has no owner in this one.",
}


@dataclass(frozen=True)
class RankPeak:
    """Peak of one rank whose whole run is known.

    Attributes:
        parts: bytes by category at its highest sample.
    """

    rank: int
    peak: Peak
    parts: Mapping[str, int]

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return self.peak.highest_bytes


def find(run: Run) -> list[Finding]:
    """One finding a rank, missing ranks included."""
    return judge(run, ID, of_rank)


def of_rank(run: Run, blank: Finding) -> Finding:
    """The finding on one rank, filled in from a blank one."""
    if run.manifest.get("fake_world"):
        return not_applicable(blank, "One rank ran, on a fake process group: there is none to compare with.")
    total = len(run.rank_ids) + run.missing_count
    if total < 2:
        return not_applicable(blank, "The run has one rank: there is none to compare with.")
    peaks = run.keep(ID, lambda: _peaks(run))
    if blank.rank not in peaks or len(peaks) < 2:
        what = "that of no other rank is whole" if blank.rank in peaks else "the rank's is not whole"
        return unknown(
            blank,
            f"Peaks can be compared where the memory curve is whole, and {what}.",
            mend(run) or "Capture all ranks to their end.",
        )
    mine, low = peaks[blank.rank], min(peaks.values(), key=lambda one: (one.size_bytes, one.rank))
    top = max(one.size_bytes for one in peaks.values())
    spread = top - low.size_bytes
    evidence = [_evidence(peaks)]
    among = "" if len(peaks) == total else f" (of {count(total, 'rank')}, {len(peaks)} could be compared)"
    if spread < SKEWED * top:
        if len(peaks) < total:
            return unknown(
                blank,
                f"The peaks of {shown_ranks(list(peaks))} lie within {size(spread)} of each other; those of the other "
                "ranks are not known.",
                mend(run) or "Capture all ranks to their end.",
            )
        apart = f"lie within {size(spread)} of each other" if spread else "are the same"
        return ruled_out(blank, f"All peaks {apart}, {size(top)} at most.", spread, evidence)
    more = mine.size_bytes - low.size_bytes
    if more < SKEWED * top:
        return ruled_out(
            blank,
            f"The rank is among the lowest, at {size(mine.size_bytes)}; the highest reaches {size(top)}{among}.",
            more,
            evidence,
        )
    return _above(blank, mine, low, among, evidence)


def _above(blank: Finding, mine: RankPeak, low: RankPeak, among: str, evidence: list[Evidence]) -> Finding:
    more = mine.size_bytes - low.size_bytes
    gaps = _differences(mine, low)
    main = next(iter(gaps), None)
    by = ", ".join(
        f"{'+' if n >= 0 else ''}{size(n)} {category_label(name)}" for name, n in list(gaps.items())[:_MOST_PARTS]
    )
    where = ""
    if (mine.peak.phase, mine.peak.step) != (low.peak.phase, low.peak.step):
        where = f" It peaks {within(mine.peak)}, rank {low.rank} {within(low.peak)}."
    return replace(
        blank,
        verdict=sure(blank),
        bytes=more,
        cause=f"more-{main.replace('_', '-')}" if main and gaps[main] > 0 else None,
        allocated_bytes=mine.size_bytes,
        headline=f"The peak of {size(mine.size_bytes)} is {size(more)} above that of rank {low.rank}{among}"
        f"{f': {by}' if by else ''}.{where}",
        advice=_advice(main),
        evidence=[*evidence, _gap_evidence(mine, low, gaps)],
    )


def _peaks(run: Run) -> dict[int, RankPeak]:
    """Ranks whose whole run is known, with their peaks."""
    found = {}
    for rank in run.rank_ids:
        story = read_story(run, rank)
        if story.peak is not None and story.complete:
            found[rank] = RankPeak(rank, story.peak, {part.category: part.size_bytes for part in story.composition})
    return found


def _differences(mine: RankPeak, low: RankPeak) -> dict[str, int]:
    """Difference by category, largest first; sums to the difference of the peaks where both are composed."""
    if not mine.parts or not low.parts:
        return {}
    gaps = {name: mine.parts.get(name, 0) - low.parts.get(name, 0) for name in {*mine.parts, *low.parts}}
    # What an allocator's own maximum has above the highest sample is of no known category.
    hidden = (mine.size_bytes - mine.peak.allocated_bytes) - (low.size_bytes - low.peak.allocated_bytes)
    gaps[UNATTRIBUTED] = gaps.get(UNATTRIBUTED, 0) + hidden
    return dict(sorted(((n, b) for n, b in gaps.items() if b), key=lambda item: (-abs(item[1]), item[0])))


def _advice(main: str | None) -> str:
    if main in _BATCH:
        return (
            "Give every rank batches of the same size: pad to one length, or deal out sequences by length; the highest "
            "rank sets what the job needs."
        )
    return _ADVICE.get(
        main or "", "Look at what the ranks do differently at that moment: their events around the peak."
    )


def _evidence(peaks: Mapping[int, RankPeak]) -> Evidence:
    order = sorted(peaks.values(), key=lambda one: (-one.size_bytes, one.rank))
    chosen = order if len(order) <= 8 else [*order[:4], *order[-4:]]
    rows = [{"rank": one.rank, "peak_bytes": one.size_bytes, "ts_ns": one.peak.ts_ns} for one in chosen]
    return Evidence("peaks", {"scope": "run"}, rows, "peaks of the ranks, highest and lowest")


def _gap_evidence(mine: RankPeak, low: RankPeak, gaps: Mapping[str, int]) -> Evidence:
    rows = [{"rank": mine.rank, "than_rank": low.rank, "category": n, "more_bytes": b} for n, b in gaps.items()]
    return Evidence("peak_composition", {"rank": mine.rank, "scope": "run"}, rows, "difference to the lowest rank")
