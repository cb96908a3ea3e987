"""Findings: one module each, a plain function from a run to findings, listed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zeropeak.reports.findings import (
    activations_dominate,
    cached_not_allocated,
    gather_double_buffer,
    history_incomplete,
    module_larger_than_knobs,
    not_partitioned,
    optimizer_init_peak,
    persistent_parameters,
    prefetch_overshoot,
    rank_skew,
    record_stream_delay,
    reduce_bucket,
    retained_after_release,
    reuse_distance_hold,
    trace_invalidated,
)
from zeropeak.reports.findings.finding import Basis, Evidence, Expected, Finding, Verdict, ordered, to_json
from zeropeak.reports.findings.judging import blank, missing
from zeropeak.reports.findings.replay import shared_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeropeak.reports.run import Run

_MODULES: Final = (
    retained_after_release,
    reuse_distance_hold,
    prefetch_overshoot,
    gather_double_buffer,
    record_stream_delay,
    persistent_parameters,
    module_larger_than_knobs,
    reduce_bucket,
    cached_not_allocated,
    optimizer_init_peak,
    trace_invalidated,
    not_partitioned,
    activations_dominate,
    rank_skew,
    history_incomplete,
)
FINDINGS: Final[dict[str, Callable[[Run], list[Finding]]]] = {module.ID: module.find for module in _MODULES}
"""Every finding by its id. Each function gives one finding a rank, missing ranks included."""

IDS: Final = tuple(FINDINGS)
"""Ids of all findings."""
TITLES: Final[dict[str, str]] = {module.ID: module.TITLE for module in _MODULES}
"""What each finding is about, for people."""


def find_all(run: Run) -> list[Finding]:
    """All findings of a run, in the order of findings.json.

    Rank by rank: findings share what they read of a rank, and a run keeps that of a few ranks only.
    """
    found = []
    for rank in run.rank_ids:
        found += [module.of_rank(run, blank(run, module.ID, rank)) for module in _MODULES]
        run.drop(*shared_keys(rank))
    return ordered(found + [missing(run, module.ID, rank) for rank in run.missing_ranks for module in _MODULES])


__all__ = [
    "FINDINGS",
    "IDS",
    "TITLES",
    "Basis",
    "Evidence",
    "Expected",
    "Finding",
    "Verdict",
    "find_all",
    "ordered",
    "to_json",
]
