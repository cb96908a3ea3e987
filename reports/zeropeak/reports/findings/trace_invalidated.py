"""A later step that prefetches nothing although the step before did: ZeRO's recorded order of modules went invalid.

ZeRO-3 records the order of modules in one pass and prefetches by it from the next pass on. When a pass leaves that
order it drops the record ("Invalidate trace cache" in DeepSpeed's log), and the pass after it records anew, without a
prefetch. The first pass never prefetches; that is no finding, only a reason not to compare peaks with it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from zeropeak.reports import setting
from zeropeak.reports.findings.finding import Evidence, Finding, Verdict
from zeropeak.reports.findings.judging import (
    judge,
    mend,
    not_applicable,
    ruled_out,
    sure,
    unknown,
    unpartitioned,
    unseen,
)
from zeropeak.reports.origin import run_origin_ns
from zeropeak.reports.passes import module_order, read_passes
from zeropeak.reports.scopes import scope_peaks
from zeropeak.reports.units import count, moment, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeropeak.reports.passes import Pass
    from zeropeak.reports.run import Run

ID: Final = "trace-invalidated"
TITLE: Final = "A later step prefetches nothing"
ORDER_CHANGED: Final = "module-order-changed"
_HOOKS: Final = ("fetch and prefetch",)
_LOG: Final = (
    "With zero_optimization.log_trace_cache_warnings true, DeepSpeed's log names the module at which it happens."
)
_ORDER: Final = (
    "Run the same modules in the same order in every micro-step (no layer that is skipped at random or by the data; "
    "mark a block of experts as a leaf with deepspeed.utils.set_z3_leaf_modules)."
)


def find(run: Run) -> list[Finding]:
    """One finding a rank, missing ranks included."""
    return judge(run, ID, of_rank)


def of_rank(run: Run, blank: Finding) -> Finding:
    """The finding on one rank, filled in from a blank one."""
    if unsaid := unpartitioned(run, blank) or unseen(run, blank, _HOOKS, "Fetches and prefetches"):
        return unsaid
    if setting.knob(run, blank.rank, "prefetch_bucket_size") == 0:
        return not_applicable(blank, "stage3_prefetch_bucket_size is 0: this run never prefetches.")
    passes = read_passes(run, blank.rank)
    whole = [one for one in passes if one.whole]
    if _untold(run, blank.rank):
        return unknown(
            blank,
            "The capture does not tell prefetches from fetches.",
            "Capture with `zeropeak nsys` or `zeropeak torch`, whose event log does.",
        )
    if len(whole) < 2:
        return unknown(
            blank,
            f"The capture holds {count(len(whole), 'whole pass', 'whole passes')}, and the first never prefetches: "
            "ZeRO records the order of modules in it.",
            mend(run) or "Capture three steps.",
        )
    for before, here in pairwise(whole):
        if before.prefetches and not here.prefetches and here.fetches:
            return _lost(run, blank, whole, before, here)
    if not any(one.prefetches for one in whole):
        return _never(run, blank, whole)
    return _kept(run, blank, whole)


def _untold(run: Run, rank: int) -> bool:
    kinds = run.arrow("zero_events", rank, ["kind"])["kind"]
    return bool(kinds.null_count) and not pc.any(pc.equal(kinds, "prefetch")).as_py()


def _lost(run: Run, blank: Finding, whole: Sequence[Pass], before: Pass, here: Pass) -> Finding:
    place = whole.index(before)
    change = _change(run, blank.rank, whole[place - 1], before) if place else None
    more = _more(run, blank.rank, before, here)
    peak = "" if more is None else f" The peak is {_by(more)} than in {before.name}."
    why = f" {change}" if change else " The order of modules that the capture saw is the same in both."
    return replace(
        blank,
        verdict=sure(blank),
        bytes=None if more is None else max(more, 0),
        step=here.step,
        cause=ORDER_CHANGED if change else None,
        headline=f"{here.name.capitalize()} prefetched nothing and fetched {size(here.gathered_bytes)} on demand; "
        f"{before.name} had prefetched {size(before.prefetched_bytes)}.{why}{peak} Where nothing is prefetched each "
        "module waits for its weights.",
        advice=f"{_ORDER} {_LOG}",
        evidence=[_evidence(blank.rank, whole)],
    )


def _never(run: Run, blank: Finding, whole: Sequence[Pass]) -> Finding:
    later = [one for one in whole[1:] if one.fetches]
    if not later:
        return ruled_out(
            blank,
            f"After {whole[0].name} every weight stayed gathered, so nothing was left to prefetch.",
            0,
            [_evidence(blank.rank, whole)],
        )
    if len(whole) < 3:
        return unknown(
            blank,
            f"{whole[1].name.capitalize()} prefetched nothing; some versions of DeepSpeed begin with the pass after.",
            "Capture three steps.",
        )
    change = next((found for a, b in pairwise(whole) if (found := _change(run, blank.rank, a, b))), None)
    return replace(
        blank,
        verdict=sure(blank) if change else Verdict.SUSPECTED,
        step=later[0].step,
        cause=ORDER_CHANGED if change else None,
        headline=f"None of {count(len(whole), 'pass', 'passes')} prefetched anything: each fetched its weights on "
        f"demand. {change or ''}".strip(),
        advice=f"{_ORDER if change else 'Not measured: why.'} {_LOG}",
        evidence=[_evidence(blank.rank, whole)],
    )


def _kept(run: Run, blank: Finding, whole: Sequence[Pass]) -> Finding:
    ahead = [one for one in whole if one.prefetches]
    if len(whole) < 3:
        change = _change(run, blank.rank, whole[0], whole[1])
        seen = module_order(run, blank.rank, whole[1])
        if change or not seen:
            return unknown(
                blank,
                f"Only {whole[1].name} could prefetch, and did. {change or 'No module ranges tell its order.'}",
                "Capture three steps: whether the next one prefetches tells.",
            )
    low, high = min(one.prefetched_bytes for one in ahead), max(one.prefetched_bytes for one in ahead)
    span = size(high) if low == high else f"{size(low)} to {size(high)}"
    return ruled_out(
        blank,
        f"From {ahead[0].name} on every pass prefetched ({span}); {whole[0].name} never does, since ZeRO records the "
        "order of modules in it, so its peak is not one to compare with.",
        0,
        [_evidence(blank.rank, whole)],
    )


def _change(run: Run, rank: int, recorded: Pass, here: Pass) -> str | None:
    """Where a pass left the order of the one before; None when it did not, or when no ranges tell."""
    old, new = module_order(run, rank, recorded), module_order(run, rank, here)
    if not old or not new:
        return None
    for (was, way, _), (now, ran, ts_ns) in zip(old, new, strict=False):
        if (was, way) != (now, ran):
            when = moment(ts_ns, run_origin_ns(run))
            return (
                f"In {here.name}, at {when}, the {ran} of {now or 'the model'} ran where {recorded.name} had the {way} "
                f"of {was or 'the model'}."
            )
    if len(old) == len(new):
        return None
    return f"{here.name.capitalize()} ran {len(new):,} modules, {recorded.name} {len(old):,}."


def _more(run: Run, rank: int, before: Pass, here: Pass) -> int | None:
    """How much higher a step's peak is than that of the step before; None when not known or the same step."""
    peaks = {peak.step: peak for peak in scope_peaks(run, rank) if peak.scope == "step" and peak.known}
    if before.step == here.step or before.step not in peaks or here.step not in peaks:
        return None
    return peaks[here.step].highest_bytes - peaks[before.step].highest_bytes


def _by(more: int) -> str:
    return f"{size(abs(more))} {'higher' if more >= 0 else 'lower'}"


def _evidence(rank: int, whole: Sequence[Pass]) -> Evidence:
    rows = [
        {
            "rank": rank,
            "step": one.step,
            "micro_step": one.micro_step,
            "fetches": one.fetches,
            "prefetches": one.prefetches,
            "prefetched_bytes": one.prefetched_bytes,
        }
        for one in whole[:8]
    ]
    return Evidence("zero_events", {"rank": rank}, rows, "fetches and prefetches of each pass")
