"""Full parameters that were gathered ahead of use, and lay there at the peak.

A prefetch takes parameters until ``stage3_prefetch_bucket_size`` elements are reached, so up to one parameter more, and
none while ``stage3_max_live_parameters`` elements are gathered: both count elements, and both limit prefetches only. No
prefetch is launched before the trace of modules is complete (the first forward and backward, or more).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse import lookup
from zeropeak.parse.lookup import Lookup
from zeropeak.profile.labels import Kind
from zeropeak.reports import setting
from zeropeak.reports.columns import ints
from zeropeak.reports.findings.ahead import read_ahead
from zeropeak.reports.findings.finding import Evidence
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
from zeropeak.reports.findings.registered import (
    Registered,
    of_composition,
)
from zeropeak.reports.findings.replay import read_replay
from zeropeak.reports.findings.saving import mildest
from zeropeak.reports.names import counted
from zeropeak.reports.story import read_story
from zeropeak.reports.units import size

if TYPE_CHECKING:
    from zeropeak.reports.findings.finding import Finding
    from zeropeak.reports.findings.replay import Replay
    from zeropeak.reports.findings.saving import Saving
    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Peak

ID: Final = "prefetch-overshoot"
TITLE: Final = "Weights are gathered too far ahead"
KNOB: Final = "prefetch_bucket_size"
LIVE: Final = "max_live_parameters"
_NEEDED: Final = ("fetch and prefetch", "module forward begin", "module backward begin")


def find(run: Run) -> list[Finding]:
    """One finding a rank, missing ranks included."""
    return judge(run, ID, of_rank)


def of_rank(run: Run, blank: Finding) -> Finding:
    """The finding on one rank, filled in from a blank one."""
    rank, story = blank.rank, read_story(run, blank.rank)
    if unsaid := unpartitioned(run, blank) or unseen(run, blank, _NEEDED, "Prefetches"):
        return unsaid
    bucket, key = setting.knob(run, rank, KNOB), setting.config_key(run, KNOB)
    if bucket == 0:
        return not_applicable(blank, f"{key} is 0: nothing is prefetched.")
    if unsaid := unattributed_peak(run, blank, story):
        return unsaid
    peak = story.peak
    assert peak is not None
    replay = read_replay(run, rank)
    launched = story.events.of_kind(Kind.PREFETCH)
    blank = replace(blank, allocated_bytes=peak.highest_bytes)
    if not len(launched):
        if not replay.turns:
            return unknown(
                blank,
                "No step was captured in which DeepSpeed's trace of modules was complete, before which nothing is "
                "prefetched.",
                "Capture three or more steps with `zeropeak nsys` or `zeropeak torch`.",
            )
        return ruled_out(blank, "No prefetch was launched in this run.", 0)
    ahead = read_ahead(run, rank, replay)
    here = ahead.at(peak.ts_ns)
    bytes_ = here.total_bytes
    evidence = [of_composition(story, ["prefetched_ahead", "gather_buffers"], "before they were waited for")]
    if not noticeable(bytes_, peak):
        text = f"Prefetched and not yet used at the peak: {of_peak(bytes_, peak)}"
        return ruled_out(blank, f"{text} (at most {size(ahead.most_bytes())} at any time).", bytes_, evidence)
    known = f"{bucket:,} elements" if bucket is not None else "an unknown number of elements"
    found = replace(
        blank,
        verdict=sure(blank),
        bytes=bytes_,
        step=peak.step,
        knob=key,
        headline=f"Gathered ahead and not used yet at the peak: {of_peak(bytes_, peak)}. The prefetch bucket is {known}"
        f"{_over(run, rank, bucket)}.",
        modules=_modules(here),
        evidence=[*evidence, here.evidence("the largest that were gathered ahead"), _launches(run, rank, here)],
    )
    return _advised(run, found, peak, replay, bucket)


def _advised(run: Run, found: Finding, peak: Peak, replay: Replay, bucket: int | None) -> Finding:
    """With the largest bucket that saves nearly all of what no prefetch would."""
    key, live = found.knob, setting.config_key(run, LIVE)
    none = replay.saving(prefetch_bucket_size=0)
    if none is None:
        why = replay.doubt or "whether autograd would hold on to the weights was never seen"
        return replace(
            found, value=0, advice=f"Set {key} to 0 and compare the peaks: what it saves is open, since {why}."
        )
    if not noticeable(none.size_bytes, peak):
        saves = f"only {size(none.size_bytes)}" if none.size_bytes > 0 else "nothing"
        return replace(
            found,
            advice=f"Lowering {key} saves {saves} here: without any prefetch memory peaks as high at another moment.",
        )
    value, saving = _largest(run, found.rank, replay, bucket, none)
    cost = (
        "Nothing is gathered ahead then: each module waits for its own."
        if value == 0
        else f"A prefetch may go over it by one parameter. {live} limits prefetches in the same way."
    )
    return replace(
        found,
        value=value,
        expected=[saving.expected],
        advice=f"Set {key} to {value} (elements): expect {saving.words}. {cost}",
    )


def _largest(run: Run, rank: int, replay: Replay, bucket: int | None, none: Saving) -> tuple[int, Saving]:
    """The largest bucket tried that saves nearly all, and what it saves.

    A bucket acts by which parameters still fit before it is full, so sizes of the model's own are tried.
    """
    numel = ints(run.arrow("params", rank, ["numel"]), "numel", 0)
    smaller = numel[(numel > 0) & (numel < (bucket or 0))].tolist()
    return mildest(smaller, lambda value: replay.saving(prefetch_bucket_size=value), none) or (0, none)


def _over(run: Run, rank: int, bucket: int | None) -> str:
    """How far the largest prefetch went over its bucket."""
    events = run.arrow("zero_events", rank, ["event_id", "kind"])
    ids = events.filter(pc.equal(events["kind"], Kind.PREFETCH.value))["event_id"]
    members = run.arrow("zero_event_params", rank, ["event_id", "param_id"])
    params = run.arrow("params", rank, ["param_id", "numel"])
    at = lookup.ints(Lookup(ids).find(members["event_id"]))
    row = lookup.ints(Lookup(params["param_id"]).find(members["param_id"]))
    known = (at >= 0) & (row >= 0)
    elements = np.zeros(len(ids), np.int64)
    np.add.at(elements, at[known], ints(params, "numel", 0)[row[known]])
    most = int(elements.max(initial=0))
    if bucket is None or most <= bucket:
        return f", the largest prefetch took {most:,}"
    return f", the largest prefetch took {most:,} (it may go over by one parameter)"


def _modules(here: Registered) -> list[str]:
    named = [name for name in here.table["owner"].to_pylist() if name]
    owned = here.keep(here.table["owner"].is_valid().to_numpy())
    owners = [name.rpartition(".")[0] or name for name in named]
    return counted(zip(owners, owned.size_bytes.tolist(), strict=True))


def _launches(run: Run, rank: int, here: Registered) -> Evidence:
    """The prefetches that gathered what lay there."""
    wanted = pa.array(np.unique(here.param_id[here.param_id >= 0]))
    members = run.arrow("zero_event_params", rank, ["event_id", "param_id"])
    events = run.arrow(
        "zero_events", rank, ["event_id", "kind", "name", "step", "phase", "start_ns", "param_count", "full_bytes"]
    )
    latest = int(here.born_ns.max(initial=0))
    of_these = members.filter(pc.is_in(members["param_id"], wanted))["event_id"].combine_chunks()
    rows = events.filter(
        pc.and_(
            pc.and_(pc.equal(events["kind"], Kind.PREFETCH.value), pc.less_equal(events["start_ns"], latest)),
            pc.or_(pc.is_in(events["event_id"], of_these), pc.is_in(events["event_id"], pa.array(here.born_event_id))),
        )
    )
    shown = rows.slice(max(rows.num_rows - 5, 0)).to_pylist()
    where = {"rank": rank, "kind": Kind.PREFETCH.value}
    return Evidence("zero_events", where, [{"rank": rank, **row} for row in shown], "the last prefetches of these")
