"""Which ranks a figure shows when there are too many: the extremes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc

from zeropeak.reports.columns import ABSENT, ints
from zeropeak.reports.units import size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeropeak.reports.run import Run


ALIKE: Final = 0.01
"""Peaks that differ by at most this share of the highest are alike."""
SAMPLED: Final = "counters"
"""Source of a memory curve that is made of counters read now and then."""


@dataclass(frozen=True)
class Shown:
    """Ranks that are shown, in order of rank.

    Attributes:
        total: ranks that there are.
        why: rank to "highest peak" or the like; empty when all are shown.
    """

    ranks: Sequence[int]
    total: int
    why: Mapping[int, str]

    @property
    def all(self) -> bool:
        """Whether none is left out."""
        return len(self.ranks) == self.total

    def note(self) -> str:
        """What is left out, for a subtitle; empty when nothing is."""
        if self.all:
            return ""
        named = ", ".join(f"rank {rank} ({self.why[rank]})" for rank in self.ranks)
        return f"{len(self.ranks)} of {self.total} ranks shown: {named}"


def peak_bytes(run: Run) -> dict[int, int]:
    """Peak of the run by rank, of the ranks that have one; see :attr:`zeropeak.reports.story.Peak.highest_bytes`."""
    columns = ["rank", "scope", "allocated_bytes", "allocator_peak_bytes", "source"]
    peaks = run.arrow("peaks", columns=columns)
    peaks = peaks.filter(pc.equal(peaks["scope"], "run"))
    sizes = ints(peaks, "allocated_bytes")
    sampled = pc.fill_null(pc.equal(peaks["source"], SAMPLED), False).to_numpy()
    sizes = np.where(sampled, np.maximum(sizes, ints(peaks, "allocator_peak_bytes")), sizes)
    return {int(r): int(top) for r, top in zip(ints(peaks, "rank"), sizes, strict=True) if top != ABSENT}


def alike(peaks: Mapping[int, int]) -> bool:
    """Whether several ranks peak within :data:`ALIKE` of the highest, so that naming one as the highest misleads."""
    return len(peaks) > 1 and max(peaks.values()) - min(peaks.values()) <= ALIKE * max(peaks.values())


def peak_alike(peaks: Mapping[int, int], total: int, more: str = "") -> str:
    """The sentence of ranks that do, without its end.

    Args:
        total: ranks of the job.
        more: said after the highest.

    >>> peak_alike({0: 1024, 1: 1024}, 2), peak_alike({0: 102400, 1: 102400, 3: 101500}, 4)
    ('Both ranks peak alike at 1.00 KiB', 'Ranks 0, 1, 3 peak alike at 99.1 KiB to 100 KiB')
    """
    low, high = size(min(peaks.values())), size(max(peaks.values()))
    span = high if low == high else f"{low} to {high}"
    who = all_ranks(list(peaks), total)
    return f"{who[0].upper()}{who[1:]} peak alike at {span}{more}"


def all_ranks(ranks: Sequence[int], total: int) -> str:
    """Ranks for people, of ``total``.

    >>> all_ranks([0, 1], 2), all_ranks([0, 1, 2], 3), all_ranks([0], 1), all_ranks([1], 2)
    ('both ranks', 'all 3 ranks', 'rank 0', 'rank 1')
    """
    if len(ranks) == total > 1:
        return "both ranks" if total == 2 else f"all {total} ranks"
    return shown_ranks(ranks)


def cut_ranks(run: Run) -> list[int]:
    """Ranks whose data stops before the rank's own end."""
    table = run.arrow("ranks", columns=["rank", "status"])
    rows = zip(table["rank"].to_pylist(), table["status"].to_pylist(), strict=True)
    return sorted(rank for rank, status in rows if status not in {None, "complete"})


def select(run: Run, limit: int) -> Shown:
    """At most ``limit`` ranks: all, else the highest and the lowest peak and what lies between."""
    ranks = run.rank_ids
    if len(ranks) <= limit:
        return Shown(ranks, len(ranks), {})
    peaks = peak_bytes(run)
    by_peak = sorted(ranks, key=lambda rank: (-peaks.get(rank, -1), rank))
    with_peak = [rank for rank in by_peak if rank in peaks] or by_peak
    # From the highest to the lowest in equal strides.
    places = np.unique(np.linspace(0, len(with_peak) - 1, min(limit, len(with_peak))).round().astype(int))
    why: dict[int, str] = {}
    for place in places:
        ends = {0: "highest peak", len(with_peak) - 1: "lowest peak"}
        why[with_peak[place]] = ends.get(int(place), f"peak {place + 1} of {len(with_peak)}")
    return Shown(sorted(why), len(ranks), why)


def shown_ranks(ranks: Sequence[int]) -> str:
    """Ranks for people, runs of neighbours joined.

    >>> shown_ranks([3]), shown_ranks([0, 1, 2, 3, 7])
    ('rank 3', 'ranks 0-3, 7')
    """
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    parts = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in spans]
    if len(parts) > 12:
        parts = [*parts[:12], f"and more, {len(ranks)} in all"]
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(parts)}"
