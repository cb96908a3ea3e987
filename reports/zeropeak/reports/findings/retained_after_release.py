"""Full weights that ZeRO-3 released and whose storage stayed alive, because something else holds it.

Three causes look alike and are told apart by the holder, the knob and the wrapper: see
:class:`zeropeak.reports.findings.holders.Cause`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow.compute as pc

from zeropeak.profile.privacy import without_folders
from zeropeak.reports import setting
from zeropeak.reports.columns import NEVER
from zeropeak.reports.findings import retained_words
from zeropeak.reports.findings.finding import Evidence, Expected, Finding, Verdict
from zeropeak.reports.findings.holders import Cause, Group, group
from zeropeak.reports.findings.judging import judge, mend, sure, unknown, unpartitioned, unseen
from zeropeak.reports.findings.outliving import outliving, rows_at, slack_ns
from zeropeak.reports.findings.retained_words import Held, Later
from zeropeak.reports.findings.saving import peak_without
from zeropeak.reports.names import counted
from zeropeak.reports.story import read_story
from zeropeak.reports.units import count, duration, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeropeak.reports.findings.outliving import Outliving
    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Story

ID: Final = "retained-after-release"
TITLE: Final = "Released weights stay alive"
FIXABLE: Final = frozenset({Cause.LINEAR_OFF, Cause.NOT_INSTALLED})
"""Causes that DeepSpeed's own version of F.linear takes away."""
_TOP_ROWS: Final = 5
_NEEDED: Final = ("free", "engine forward")
"""Hooks without which what outlives its release is not all seen: the releases, and the mark after the forward."""
_MARK_COLUMNS: Final = (
    "rank",
    "step",
    "micro_step",
    "mark",
    "ts_ns",
    "allocated_bytes",
    "released_alive_bytes",
    "released_alive_count",
)


def find(run: Run) -> list[Finding]:
    """One finding a rank, missing ranks included."""
    return judge(run, ID, of_rank)


def of_rank(run: Run, blank: Finding) -> Finding:
    """The finding on one rank, filled in from a blank one."""
    if unsaid := unpartitioned(run, blank) or unseen(run, blank, _NEEDED, "Releases") or _blind(run, blank):
        return unsaid
    story = read_story(run, blank.rank)
    marks = [mark for mark in story.marks if mark["mark"] != "init"]
    first = next((mark for mark in marks if mark["mark"] == "forward"), None)
    if first is None:
        return _cut_before_mark(run, blank, story)
    if first["released_alive_bytes"] is None:
        return unknown(
            blank,
            f"Releases were not checked{_missed(run, blank.rank)}.",
            "Capture with a DeepSpeed that has these hook points.",
        )
    found = [outliving(run, story, mark) for mark in marks if mark["released_alive_bytes"]]
    held = [one for one in found if one.size_bytes]
    if held:
        return _confirmed(run, blank, story, held, first)
    if any(not one.apart_ended for one in found):
        return _may_be_alive(blank, max(found, key=lambda one: one.apart_bytes))
    return _none_alive(run, blank, story, marks, found)


def _blind(run: Run, blank: Finding) -> Finding | None:
    """The finding when DeepSpeed lets go by a path that is not hooked."""
    threshold = setting.module_granularity_threshold(run, blank.rank)
    if threshold <= 0:
        return None
    return unknown(
        blank,
        f"Releases were not all seen: with stage3_module_granularity_threshold at {threshold:,} DeepSpeed releases "
        "small modules by a path that zeropeak does not hook.",
        "Capture with zero_optimization.stage3_module_granularity_threshold at 0.",
    )


def _missed(run: Run, rank: int) -> str:
    missing = [f"{name}: {without_folders(why)}" for name, why in setting.hooks_missing(run, rank).items()]
    return f" (missing hooks: {'; '.join(missing)})" if missing else ""


def _may_be_alive(blank: Finding, one: Outliving) -> Finding:
    mark = one.mark
    return replace(
        blank,
        verdict=Verdict.SUSPECTED,
        bytes=one.apart_bytes,
        step=mark["step"],
        headline=f"After the {mark['mark']} of step {mark['step']} {size(one.apart_bytes)} of released weights were "
        "still alive, but no holder was found and the data ends within moments.",
        advice="Not measured: whether they outlive the mark, since a communication thread may drop the last reference "
        "a little later. Capture one more step, with the holder search on.",
        evidence=[_mark_evidence([mark], "released but alive, by weak references")],
    )


def _cut_before_mark(run: Run, blank: Finding, story: Story) -> Finding:
    """No mark after the first forward: what was alive when the log ends is all there is."""
    releases = story.events.of_kind("release").start_ns
    # Storages of the last release may still have been on their way out.
    settled = story.intervals.start_ns < (releases[-1] if len(releases) else 0)
    alive = settled & (story.intervals.end_ns == NEVER)
    bytes_ = int(story.intervals.size_bytes[alive].sum())
    where = "The capture ends before the first forward does"
    if not bytes_:
        return unknown(
            blank,
            f"{where}, so nothing was checked.",
            mend(run) or "Capture at least one whole forward, for example with a smaller --seq.",
        )
    number = int(np.count_nonzero(alive))
    return replace(
        blank,
        verdict=Verdict.SUSPECTED,
        bytes=bytes_,
        step=0,
        headline=f"{where}; {size(bytes_)} in {count(number, 'released weight')} had not died by then.",
        advice="Not measured: whether they outlive the forward, and what holds them. "
        + (mend(run) or "Capture a whole forward, for example with a smaller --seq.")
        + f" If that is no option, try {setting.LINEAR_KNOB}=true.",
        evidence=[
            Evidence("memory_blocks", {"rank": story.rank, "freed_ns": None}, [], "released_ns set, never freed"),
        ],
    )


def _none_alive(
    run: Run, blank: Finding, story: Story, marks: Sequence[dict[str, Any]], brief: Sequence[Outliving]
) -> Finding:
    frees = story.events.of_kind("free").start_ns
    if not len(frees) or frees[0] > next(mark["ts_ns"] for mark in marks if mark["mark"] == "forward"):
        return unknown(
            blank,
            f"No release of a full parameter was seen during the first forward{_missed(run, story.rank)}.",
            "Nothing was released, so nothing could outlive it: capture with "
            "zero_optimization.stage3_max_reuse_distance and stage3_param_persistence_threshold below the model's "
            "size.",
        )
    cut = (
        ""
        if story.status in {"complete", None}
        else f"; the rank's capture ends early ({story.status}), later steps are not covered"
    )
    headline = (
        f"Every full weight that ZeRO released had died by the end of the first forward, and at all "
        f"{count(len(marks), 'mark')} of the run{cut}."
    )
    if brief:
        most = max(one.apart_bytes for one in brief)
        headline = (
            f"No full weight outlived its release by more than {duration(slack_ns(run))}, at any of "
            f"{count(len(marks), 'mark')} of the run{cut}; at {count(len(brief), 'mark')} up to {size(most)} died "
            "moments after it, as a communication thread let go."
        )
    evidence = [one.mark for one in brief[:1]] or marks[:1]
    return replace(
        blank,
        verdict=Verdict.RULED_OUT,
        bytes=0,
        step=0,
        evidence=[_mark_evidence(evidence, "nothing released stayed alive at any mark")],
        headline=headline,
    )


def _confirmed(run: Run, blank: Finding, story: Story, held: Sequence[Outliving], first: dict[str, Any]) -> Finding:
    one = held[0]
    mark = one.mark
    groups = held_at(run, story.rank, mark)
    here = [row for g in groups for row in g.rows]
    fixable = [row["param_id"] for g in groups if g.cause in FIXABLE for row in g.rows]
    params = np.array([p for p in fixable if p is not None], dtype=np.int64)
    facts = Held(
        mark=mark,
        size_bytes=one.size_bytes,
        count=one.count,
        apart_bytes=one.apart_bytes,
        worst_bytes=max(*(o.size_bytes for o in held), int(story.released.size_bytes.max(initial=0))),
        groups=groups,
        at_first_forward=mark is first,
        saving=peak_without(story, story.intervals.of(params)) if len(params) else None,
        later=_later(run, story, one),
    )
    top = groups[0] if groups else None
    sizes = [(row["holder_module"] or row["module"] or row["param"] or "?", row["size_bytes"] or 0) for row in here]
    return replace(
        blank,
        verdict=sure(blank),
        bytes=one.size_bytes,
        step=mark["step"],
        cause=top.cause.value if top and top.cause else None,
        holder=top.holder if top else None,
        knob=setting.LINEAR_KNOB if fixable else None,
        # Where the knob is true already, what to change is the DeepSpeed in use.
        value=True if any(g.cause is Cause.LINEAR_OFF for g in groups) else None,
        expected=_expected(facts),
        advice=retained_words.advice(facts, run.manifest.get("versions") or {}),
        evidence=_evidence(story, facts, here),
        headline=retained_words.headline(facts),
        modules=counted(sizes),
        notes=retained_words.notes(facts),
        allocated_bytes=mark["allocated_bytes"],
    )


def _expected(facts: Held) -> list[Expected]:
    """The mark without what the knob frees there, and the run's peak without it."""
    mark, found = facts.mark, []
    off = sum(g.size_bytes for g in facts.groups if g.cause in FIXABLE)
    if off and mark["allocated_bytes"] is not None:
        now = mark["allocated_bytes"]
        found.append(Expected(mark["mark"], mark["step"], now, now - off))
    if facts.saving is not None:
        found.append(facts.saving.expected)
    return found


def _later(run: Run, story: Story, one: Outliving) -> Later | None:
    """What the forwards of later steps retain, when it is less since weights are kept for reuse instead."""
    if one.mark["mark"] != "forward":
        return None
    marks = [m for m in story.marks if m["mark"] == "forward" and (m["step"] or 0) > (one.mark["step"] or 0)]
    found = [outliving(run, story, mark) for mark in marks if mark["released_alive_bytes"] is not None]
    if not found:
        return None
    first, less = found[0], one.size_bytes - found[0].size_bytes
    more = _kept_bytes(run, story.rank, first.mark) - _kept_bytes(run, story.rank, one.mark)
    if less <= 0 or more < less:
        return None
    always = all(each.size_bytes == first.size_bytes for each in found)
    return Later(first.mark["step"], always, first.size_bytes, first.count, less, one.count - first.count)


def _kept_bytes(run: Run, rank: int, mark: Mapping[str, Any]) -> int:
    """Full parameters kept for reuse at a mark."""
    rows = run.arrow("mark_composition", rank, ["step", "micro_step", "mark", "category", "size_bytes"]).to_pylist()
    here = [row for row in rows if all(row[key] == mark[key] for key in ("step", "micro_step", "mark"))]
    return sum(row["size_bytes"] or 0 for row in here if row["category"] == "kept_for_reuse")


def held_at(run: Run, rank: int, mark: Mapping[str, Any]) -> list[Group]:
    """What surely outlived a mark (``step``, ``micro_step``, ``mark``), by cause and holder, most bytes first."""
    here, _ = rows_at(run, read_story(run, rank), mark)
    retained = run.arrow("retained", rank)
    known = retained.filter(pc.is_valid(retained["holder"]))
    knob, wrapped = setting.memory_efficient_linear(run, rank), setting.linear_wrapped(run, rank)
    return group(here, known.to_pylist(), knob, wrapped)


def _mark_evidence(marks: Sequence[dict[str, Any]], what: str) -> Evidence:
    rows = [{name: mark[name] for name in _MARK_COLUMNS} for mark in marks]
    keys = ("rank", "step", "micro_step", "mark")
    return Evidence("marks", {key: rows[0][key] for key in keys} if rows else {}, rows, what)


def _evidence(story: Story, facts: Held, here: Sequence[dict[str, Any]]) -> list[Evidence]:
    mark = facts.mark
    where = {"rank": story.rank, "step": mark["step"], "micro_step": mark["micro_step"], "mark": mark["mark"]}
    largest = sorted(here, key=lambda row: (-(row["size_bytes"] or 0), row["param_id"] or 0))[:_TOP_ROWS]
    sums = [
        {
            "cause": g.cause.value if g.cause else None,
            "holder": g.holder,
            "holder_step": g.holder_step,
            "size_bytes": g.size_bytes,
            "count": len(g.rows),
        }
        for g in facts.groups
    ]
    worst = {"rank": story.rank, "max_released_alive_bytes": facts.worst_bytes}
    found = [
        _mark_evidence([mark], "released but alive, by weak references"),
        Evidence("retained", where, sums, "summed by cause and holder"),
        Evidence("retained", where, largest, f"the {len(largest)} largest"),
        Evidence("memory_blocks", {"rank": story.rank}, [worst], "most at any moment: released_ns to its end"),
    ]
    if story.peak is not None:
        row = {
            "rank": story.rank,
            "ts_ns": story.peak.ts_ns,
            "allocated_bytes": story.peak.allocated_bytes,
            "allocator_peak_bytes": story.peak.allocator_bytes,
            "event": story.peak.in_flight.name if story.peak.in_flight else None,
            "last_event": story.peak.before.name if story.peak.before else None,
            "released_alive_bytes": story.released_at_peak_bytes,
        }
        found.append(Evidence("peaks", {"rank": story.rank, "scope": "run"}, [row], "the run's peak on this rank"))
    return found
