"""Full weights that ZeRO-3 released and whose storage stayed alive, because something else holds it.

Three causes look alike and are told apart by the holder, the knob and the wrapper: see
:class:`zeropeak.reports.findings.holders.Cause`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow.compute as pc

from zeropeak.reports import setting
from zeropeak.reports.columns import NEVER
from zeropeak.reports.findings import retained_words
from zeropeak.reports.findings.finding import Basis, Evidence, Finding, Verdict
from zeropeak.reports.findings.holders import Cause, Group, group
from zeropeak.reports.findings.retained_words import Held
from zeropeak.reports.findings.saving import without
from zeropeak.reports.names import patterns
from zeropeak.reports.story import read_story
from zeropeak.reports.units import count, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Story

ID: Final = "retained-after-release"
_TOP_ROWS: Final = 5
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
    found = [_of_rank(run, rank) for rank in run.rank_ids]
    return found + [_missing(run, rank) for rank in run.missing_ranks]


def _of_rank(run: Run, rank: int) -> Finding:
    blank = Finding(ID, Verdict.UNKNOWN, _basis(run), rank)
    stage = setting.stage(run, rank)
    if stage is None:
        return _unknown(
            blank, "The run does not say its ZeRO stage.", "Capture with `zeropeak nsys` or `zeropeak torch`."
        )
    if stage < 3:
        return replace(
            blank,
            verdict=Verdict.NOT_APPLICABLE,
            headline=f"ZeRO stage {stage} does not partition parameters, so none are gathered and released.",
        )
    story = read_story(run, rank)
    marks = [mark for mark in story.marks if mark["mark"] != "init"]
    first = next((mark for mark in marks if mark["mark"] == "forward"), None)
    if first is None:
        return _cut_before_mark(blank, story)
    if first["released_alive_bytes"] is None:
        missing = setting.hooks_missing(run, rank)
        why = f" (this DeepSpeed lacks {', '.join(missing)})" if missing else ""
        return _unknown(
            blank, f"Releases were not checked{why}.", "Capture with a DeepSpeed that has these hook points."
        )
    held = [mark for mark in marks if mark["released_alive_bytes"]]
    if held:
        return _confirmed(run, blank, story, held, first)
    return _none_alive(run, blank, story, marks)


def _basis(run: Run) -> Basis:
    word = run.manifest.get("basis", Basis.MEASURED)
    return Basis(word) if word in set(Basis) else Basis.MEASURED


def _unknown(blank: Finding, headline: str, advice: str) -> Finding:
    return replace(blank, headline=headline, advice=advice)


def _missing(run: Run, rank: int) -> Finding:
    return Finding(
        ID,
        Verdict.UNKNOWN,
        _basis(run),
        rank,
        headline="The rank left nothing behind.",
        advice="Capture again; if the rank dies at its start, its own error output tells why.",
    )


def _cut_before_mark(blank: Finding, story: Story) -> Finding:
    """No mark after the first forward: what was alive when the log ends is all there is."""
    releases = story.events.of_kind("release").start_ns
    # Storages of the last release may still have been on their way out.
    settled = story.intervals.start_ns < (releases[-1] if len(releases) else 0)
    alive = settled & (story.intervals.end_ns == NEVER)
    bytes_ = int(story.intervals.size_bytes[alive].sum())
    where = "The capture ends before the first forward does"
    if not bytes_:
        return _unknown(
            blank,
            f"{where}, so nothing was checked.",
            "Capture at least one whole forward, for example with a smaller --seq.",
        )
    number = int(np.count_nonzero(alive))
    return replace(
        blank,
        verdict=Verdict.SUSPECTED,
        bytes=bytes_,
        step=0,
        headline=f"{where}; {size(bytes_)} in {count(number, 'released weight')} had not died by then.",
        advice="Not measured: whether they outlive the forward, and what holds them. Capture a whole forward, for "
        f"example with a smaller --seq; if that is no option, try {setting.LINEAR_KNOB}=true.",
        evidence=[
            Evidence("memory_blocks", {"rank": story.rank, "freed_ns": None}, [], "released_ns set, never freed"),
        ],
    )


def _none_alive(run: Run, blank: Finding, story: Story, marks: Sequence[dict[str, Any]]) -> Finding:
    frees = story.events.of_kind("free").start_ns
    if not len(frees) or frees[0] > next(mark["ts_ns"] for mark in marks if mark["mark"] == "forward"):
        missing = setting.hooks_missing(run, story.rank)
        why = f"; this DeepSpeed lacks {', '.join(missing)}" if missing else ""
        return _unknown(
            blank,
            f"No release of a full parameter was seen during the first forward{why}.",
            "Nothing was released, so nothing could outlive it: capture with "
            "zero_optimization.stage3_max_reuse_distance and stage3_param_persistence_threshold below the model's "
            "size.",
        )
    cut = (
        ""
        if story.status in {"complete", None}
        else f"; the rank's capture ends early ({story.status}), later steps are not covered"
    )
    return replace(
        blank,
        verdict=Verdict.RULED_OUT,
        bytes=0,
        step=0,
        evidence=[_mark_evidence(marks[:1], "nothing released was alive at any mark")],
        headline=f"Every full weight that ZeRO released had died by the end of the first forward, and at all "
        f"{count(len(marks), 'mark')} of the run{cut}.",
    )


def _confirmed(
    run: Run, blank: Finding, story: Story, held: Sequence[dict[str, Any]], first: dict[str, Any]
) -> Finding:
    mark = held[0]
    groups = held_at(run, story.rank, mark)
    here = [row for g in groups for row in g.rows]
    fixable = [row["param_id"] for g in groups if g.cause in {Cause.LINEAR_OFF, Cause.NOT_INSTALLED} for row in g.rows]
    params = np.array([p for p in fixable if p is not None], dtype=np.int64)
    held_curve = story.intervals.of(params).curve() if len(params) else None
    facts = Held(
        mark=mark,
        worst_bytes=max(max(m["released_alive_bytes"] for m in held), int(story.released.size_bytes.max(initial=0))),
        groups=groups,
        at_first_forward=mark is first,
        saving=without(story.curve, held_curve) if held_curve is not None and len(held_curve) else None,
    )
    top = groups[0] if groups else None
    sizes = [(row["holder_module"] or row["module"] or row["param"] or "?", row["size_bytes"] or 0) for row in here]
    event = story.peak.in_flight or story.peak.before if story.peak else None
    return replace(
        blank,
        verdict=Verdict.PREDICTED if blank.basis is Basis.SIMULATED else Verdict.CONFIRMED,
        bytes=mark["released_alive_bytes"],
        step=mark["step"],
        cause=top.cause.value if top and top.cause else None,
        holder=top.holder if top else None,
        knob=setting.LINEAR_KNOB if fixable else None,
        advice=retained_words.advice(facts, run.manifest.get("versions") or {}),
        evidence=_evidence(story, facts, here),
        headline=retained_words.headline(facts),
        modules=[name if number == 1 else f"{name} ({number})" for name, number, _ in patterns(sizes)],
        event=event.name if event else None,
        peak_saving_bytes=facts.saving.size_bytes if facts.saving else None,
        notes=retained_words.notes(facts),
    )


def held_at(run: Run, rank: int, mark: Mapping[str, Any]) -> list[Group]:
    """What was alive at a mark (``step``, ``micro_step``, ``mark``), by cause and holder, most bytes first."""
    retained = run.arrow("retained", rank)
    here = retained
    for key in ("step", "micro_step", "mark"):
        here = here.filter(pc.equal(here[key], mark[key])) if mark[key] is not None else here
    known = retained.filter(pc.is_valid(retained["holder"]))
    knob, wrapped = setting.memory_efficient_linear(run, rank), setting.linear_wrapped(run, rank)
    return group(here.to_pylist(), known.to_pylist(), knob, wrapped)


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
            "event": story.peak.in_flight.name if story.peak.in_flight else None,
            "last_event": story.peak.before.name if story.peak.before else None,
            "released_alive_bytes": story.released_at_peak_bytes,
        }
        found.append(Evidence("peaks", {"rank": story.rank, "scope": "run"}, [row], "the run's peak on this rank"))
    return found
