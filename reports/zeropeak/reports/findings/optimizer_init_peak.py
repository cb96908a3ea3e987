"""The run's peak lies outside forward and backward: while the model is built, or in the optimizer's step.

In init, in the first optimizer step (which creates the optimizer's states), in saving and in evaluating it is memory
that only a part of the run needs; its excess is counted above all that repeats. In every optimizer step it is the
temporaries of that step; its excess is counted above forward and backward.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from zeropeak.profile.labels import Phase
from zeropeak.reports import setting
from zeropeak.reports.figures.style import category_label
from zeropeak.reports.findings.finding import Evidence, Expected, Finding, Verdict
from zeropeak.reports.findings.judging import NOTICEABLE, judge, mend, ruled_out, sure, unknown
from zeropeak.reports.findings.optimizer_groups import KNOB, smaller_groups
from zeropeak.reports.scopes import highest, parts_at, scope_peaks
from zeropeak.reports.units import percent, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeropeak.reports.run import Run
    from zeropeak.reports.scopes import ScopePeak

ID: Final = "optimizer-init-peak"
TITLE: Final = "The peak is outside forward and backward"
IN_INIT: Final = "in-init"
CREATION: Final = "optimizer-states-created"
EVERY_STEP: Final = "in-every-optimizer-step"
ELSEWHERE: Final = {Phase.SAVE.value: "in-save", Phase.EVAL.value: "in-eval"}
"""Cause by phase, of phases that are neither init nor part of a step."""
_PASSES: Final = frozenset({Phase.FORWARD, Phase.BACKWARD})
_MOST_PARTS: Final = 3


def find(run: Run) -> list[Finding]:
    """One finding a rank, missing ranks included."""
    return judge(run, ID, of_rank)


def cause_of(peak: ScopePeak) -> str | None:
    """Why a phase is not part of what repeats; None for one that is."""
    if peak.phase == Phase.INIT or (peak.step is not None and peak.step < 0):
        return IN_INIT
    if peak.phase == Phase.STEP and peak.step == 0:
        return CREATION
    return ELSEWHERE.get(peak.phase or "")


def of_rank(run: Run, blank: Finding) -> Finding:
    """The finding on one rank, filled in from a blank one."""
    phases = [peak for peak in scope_peaks(run, blank.rank) if peak.scope == "phase"]
    outside = [peak for peak in phases if cause_of(peak)]
    steps = [peak for peak in phases if not cause_of(peak)]
    top, repeats = highest(outside), highest(steps)
    if top is None:
        what = "no peak of init or of the first optimizer step" if phases else "no memory curve with phases"
        return unknown(
            blank,
            f"The capture holds {what}.",
            mend(run) or "Capture the run from its start with `zeropeak nsys` or `zeropeak torch`.",
        )
    if repeats is None:
        return unknown(
            blank,
            f"The capture ends before the first forward; until then {size(top.highest_bytes)} were reached in "
            f"{top.where}.",
            mend(run) or "Capture at least two whole steps.",
        )
    passes = highest([peak for peak in steps if peak.phase in _PASSES])
    if not _far(top, repeats):
        if passes is not None and repeats.phase == Phase.STEP and _far(repeats, passes):
            return _found(run, blank, repeats, passes, EVERY_STEP, settled=True)
        return _within(blank, top, repeats, outside)
    settled = any((peak.step or 0) >= 1 and peak.phase in _PASSES for peak in steps)
    return _found(run, blank, top, repeats, cause_of(top), settled=settled)


def _far(peak: ScopePeak, other: ScopePeak) -> bool:
    return peak.highest_bytes - other.highest_bytes >= NOTICEABLE * peak.highest_bytes


def _found(run: Run, blank: Finding, top: ScopePeak, other: ScopePeak, cause: str | None, *, settled: bool) -> Finding:
    """The finding: ``top`` above ``other``, the highest of what it is compared with."""
    excess = top.highest_bytes - other.highest_bytes
    need = "forward and backward need at most" if cause == EVERY_STEP else "the steps need at most"
    parts = parts_at(run, blank.rank, top)
    found = replace(
        blank,
        verdict=sure(blank) if settled else Verdict.SUSPECTED,
        bytes=excess,
        step=top.step,
        cause=cause,
        allocated_bytes=top.highest_bytes,
        headline=f"The peak of {size(top.highest_bytes)} is reached in {top.where}, {size(excess)} "
        f"({percent(excess, top.highest_bytes)}) above the {size(other.highest_bytes)} that {need} (in {other.where})."
        f"{_alive(parts)}",
        evidence=[_evidence(blank.rank, [top, other])],
    )
    advised = (
        _of_optimizer(run, found, other, parts) if cause in {CREATION, EVERY_STEP} else _advised(run, found, parts)
    )
    if settled:
        return advised
    after = "; later forwards run on top of the optimizer's states" if cause == CREATION else ""
    return replace(
        advised, advice=f"Not measured: a step after the first{after}. Capture two whole steps. {advised.advice}"
    )


def _within(blank: Finding, top: ScopePeak, repeats: ScopePeak, outside: Sequence[ScopePeak]) -> Finding:
    excess, evidence = top.highest_bytes - repeats.highest_bytes, [_evidence(blank.rank, [top, repeats])]
    blind = [peak for peak in outside if not peak.known]
    if blind:
        return unknown(
            blank,
            f"The memory curve does not cover {blind[0].where}, so what was reached there is not known; the steps "
            f"reach {size(repeats.highest_bytes)}.",
            "Start the capture before the model is built, as `zeropeak nsys` and `zeropeak torch` do.",
        )
    if excess > 0:
        text = f"{top.where.capitalize()} reaches {size(excess)} more than any step ({size(top.highest_bytes)})."
        return ruled_out(blank, text, excess, evidence)
    return ruled_out(
        blank,
        f"The peak lies in {repeats.where} ({size(repeats.highest_bytes)}); {top.where} reaches "
        f"{size(top.highest_bytes)}.",
        0,
        evidence,
    )


def _alive(parts: Mapping[str, int]) -> str:
    largest = sorted(((size_bytes, name) for name, size_bytes in parts.items() if size_bytes > 0), reverse=True)
    if not largest:
        return ""
    return f" Alive then: {', '.join(f'{size(n)} {category_label(name)}' for n, name in largest[:_MOST_PARTS])}."


def _advised(run: Run, found: Finding, parts: Mapping[str, int]) -> Finding:
    """The finding with what to do about its cause."""
    most = size(found.bytes)
    if found.cause == IN_INIT:
        stage = setting.stage(run, found.rank)
        whole = parts.get("replicated_parameters", 0) + parts.get("unattributed", 0)
        if stage == 3 and whole > parts.get("parameter_shards", 0):
            advice = (
                f"At most {most} to win. Build the model under deepspeed.zero.Init, so that each parameter is "
                "partitioned as soon as it exists, and load the checkpoint rank by rank or in shards."
            )
        else:
            advice = (
                f"At most {most} to win. Build and load the model on the CPU, or in the training dtype, and move it "
                "once; free what only loading needs (torch.cuda.empty_cache gives its cache back)."
            )
        return replace(found, advice=advice)
    what = "saving" if found.cause == ELSEWHERE[Phase.SAVE] else "evaluating"
    advice = f"At most {most} to win in the phase that is {what}: gather parameters there in parts, not all at once."
    if found.cause == ELSEWHERE[Phase.EVAL]:
        advice = f"At most {most} to win by evaluating with a smaller batch, under torch.no_grad()."
    return replace(found, advice=advice)


def _of_optimizer(run: Run, found: Finding, other: ScopePeak, parts: Mapping[str, int]) -> Finding:
    """The finding with what to do about the optimizer's step: smaller groups, where they would save anything."""
    most = size(found.bytes)
    groups = smaller_groups(run, found.rank)
    if groups is None:
        advice = (
            f"At most {most} to win. Offload the optimizer (zero_optimization.offload_optimizer), or take one with "
            "smaller states."
        )
        return replace(found, advice=advice)
    expected: list[Expected] = []
    saved = f"at most {most} less at the peak"
    if (temporaries := parts.get("workspace", 0)) > 0 and found.allocated_bytes is not None:
        then = max(found.allocated_bytes - groups.saved_bytes(temporaries), other.highest_bytes)
        expected = [Expected("peak", None, found.allocated_bytes, then)]
        saved = (
            f"expect {size(found.allocated_bytes - then)} less at the peak ({size(found.allocated_bytes)} to "
            f"{size(then)})"
        )
    advice = (
        f"Set {KNOB} to {groups.value} (elements): {saved}, since the step then holds the temporaries of "
        f"{groups.then:,} instead of {groups.now:,} of this rank's elements at a time."
    )
    return replace(found, knob=KNOB, value=groups.value, expected=expected, advice=advice)


def _evidence(rank: int, peaks: Sequence[ScopePeak]) -> Evidence:
    rows = [peak.row for peak in peaks]
    return Evidence("peaks", {"rank": rank, "scope": "phase"}, rows, "highest outside the steps, highest in them")
