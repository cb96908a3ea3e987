"""Gathers of several parameters: the flat buffer and the parameters copied out of it are alive together.

A gather of one parameter makes it a view of the buffer that it was gathered into. One of several gathers them into a
flat buffer, and its wait copies each parameter into memory of its own while the buffer lives: up to twice the bytes.
``stage3_allgather_sequential`` gathers one by one, so that no copy is made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.series import Series
from zeropeak.parse.usage import expand
from zeropeak.profile.labels import Kind, Stored
from zeropeak.reports import setting
from zeropeak.reports.columns import ABSENT, NEVER, Ints, ints
from zeropeak.reports.curve import Intervals
from zeropeak.reports.findings.finding import Evidence, Finding
from zeropeak.reports.findings.judging import (
    judge,
    mend,
    noticeable,
    of_peak,
    ruled_out,
    sure,
    unattributed_peak,
    unknown,
    unpartitioned,
    unseen,
)
from zeropeak.reports.findings.registered import of_composition, read_registered
from zeropeak.reports.findings.saving import peak_without
from zeropeak.reports.names import counted
from zeropeak.reports.story import read_story
from zeropeak.reports.units import count, size

if TYPE_CHECKING:
    from zeropeak.reports.findings.registered import Registered
    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Peak, Story

ID: Final = "gather-double-buffer"
TITLE: Final = "Gathered weights are in memory twice"
KNOB: Final = "allgather_sequential"
_LAUNCHES: Final = frozenset({Kind.FETCH.value, Kind.PREFETCH.value, Kind.GATHER.value})
_NEEDED: Final = ("coalesced gather launched", "coalesced gather done")
_TOP_ROWS: Final = 5


@dataclass(frozen=True)
class Copies:
    """Parameters next to the flat buffer that they were copied out of: parallel arrays, one row a copy.

    Attributes:
        both: from the copy's birth to the end of the buffer (or of the copy, when that is first).
        buffer: row of ``buffers``.
        buffers: the flat buffers.
    """

    both: Intervals
    buffer: Ints
    buffers: Registered

    def at(self, ts_ns: int) -> Ints:
        """Rows that lie around a moment."""
        return np.flatnonzero((self.both.start_ns <= ts_ns) & (self.both.end_ns > ts_ns))


def find(run: Run) -> list[Finding]:
    """One finding a rank, missing ranks included."""
    return judge(run, ID, of_rank)


def of_rank(run: Run, blank: Finding) -> Finding:
    """The finding on one rank, filled in from a blank one."""
    story = read_story(run, blank.rank)
    unsaid = unpartitioned(run, blank) or unseen(run, blank, _NEEDED, "Gathers of several parameters")
    if unsaid := unsaid or unattributed_peak(run, blank, story):
        return unsaid
    peak = story.peak
    assert peak is not None
    blank = replace(blank, allocated_bytes=peak.highest_bytes)
    if not _LAUNCHES.intersection(story.events.kinds):
        return unknown(blank, "No gather was captured.", mend(run) or "Capture at least one whole step.")
    copies = read_copies(run, blank.rank)
    if not len(copies.buffers):
        return ruled_out(blank, "No gather of this run moved more than one parameter, so none was copied.", 0)
    here = copies.at(peak.ts_ns)
    bytes_ = int(copies.both.size_bytes[here].sum())
    evidence = [of_composition(story, ["gather_buffers"], "flat buffers at the run's peak")]
    if not noticeable(bytes_, peak):
        return ruled_out(
            blank,
            f"At the peak, parameters copied out of a flat buffer that was still alive: {of_peak(bytes_, peak)} "
            f"{_elsewhere(story, copies)}.",
            bytes_,
            evidence,
        )
    return _confirmed(run, blank, story, peak, copies, here, evidence)


def _confirmed(
    run: Run, blank: Finding, story: Story, peak: Peak, copies: Copies, here: Ints, evidence: list[Evidence]
) -> Finding:
    bytes_ = int(copies.both.size_bytes[here].sum())
    buffers = copies.buffers.keep(np.isin(np.arange(len(copies.buffers)), copies.buffer[here]))
    saving = peak_without(story, copies.both)
    known = KNOB in (run.rank_facts(blank.rank).get("zero") or {KNOB: None})
    key = setting.config_key(run, KNOB)
    effect = f"expect {saving.words}" if saving else "the saving at the peak is unknown, there is no memory curve"
    how = f"Set {key} to true, which gathers parameters one by one and copies none: {effect}."
    if not known:
        how = (
            f"This DeepSpeed has no {key}, which gathers parameters one by one and copies none: with one that has it, "
            f"{effect}. Until then a smaller {setting.config_key(run, 'prefetch_bucket_size')} gathers fewer at once."
        )
    names = _names(run, blank.rank, copies.both.param_id[here])
    return replace(
        blank,
        verdict=sure(blank),
        bytes=bytes_,
        step=peak.step,
        knob=key if known else None,
        value=True if known else None,
        expected=[saving.expected] if saving else [],
        headline=f"{count(len(here), 'parameter')} were in memory twice at the peak, copied out of "
        f"{count(len(buffers), 'flat buffer')} ({size(buffers.total_bytes)}) that had not ended: "
        f"{of_peak(bytes_, peak)}.",
        advice=how,
        modules=counted(zip(names, copies.both.size_bytes[here].tolist(), strict=True)),
        evidence=[
            *evidence,
            buffers.evidence("flat buffers that had been copied out of"),
            _copied(copies, here, names, blank.rank),
        ],
    )


def read_copies(run: Run, rank: int) -> Copies:
    """Every parameter that was copied out of a flat buffer, as long as both were alive."""
    every = read_registered(run, rank)
    buffers = every.of(Stored.GATHER_BUFFER)
    full = every.of(Stored.PARAM_FULL, Stored.PARAM_PERSISTENT)
    members = run.arrow("zero_event_params", rank, ["event_id", "param_id"])
    members = members.filter(pc.is_in(members["event_id"], pa.array(np.unique(buffers.born_event_id))))
    event, param = ints(members, "event_id"), ints(members, "param_id")
    # One row a (buffer, parameter of its gather): the parameter's first block born while the buffer lived.
    by_event = np.argsort(event, kind="stable")
    buffer, place = expand(event[by_event], buffers.born_event_id)
    wanted = param[by_event][place]
    copy = Series(full.param_id, full.born_ns).following(wanted, buffers.born_ns[buffer] - 1)
    there = copy >= 0
    buffer, copy = buffer[there], copy[there]
    end = np.minimum(buffers.end_ns[buffer], full.end_ns[copy])
    both = full.born_ns[copy] < end
    buffer, copy, end = buffer[both], copy[both], end[both]
    nobody = np.full(len(copy), ABSENT)
    held = Intervals(full.born_ns[copy], end, full.size_bytes[copy], full.param_id[copy], nobody)
    return Copies(held, buffer, buffers)


def _elsewhere(story: Story, copies: Copies) -> str:
    curve = copies.both.curve()
    if not len(curve):
        return "(none at any time)"
    top = int(np.argmax(curve.size_bytes))
    allocated = int(story.curve.at(curve.ts_ns[top : top + 1])[0])
    return f"(at most {size(int(curve.size_bytes[top]))}, when {size(allocated)} were allocated)"


def _names(run: Run, rank: int, param_ids: Ints) -> list[str]:
    params = run.arrow("params", rank, ["param_id", "name"])
    known: dict[Any, Any] = dict(zip(params["param_id"].to_pylist(), params["name"].to_pylist(), strict=True))
    return [known.get(one) or f"parameter {one}" for one in param_ids.tolist()]


def _copied(copies: Copies, here: Ints, names: list[str], rank: int) -> Evidence:
    largest = np.argsort(-copies.both.size_bytes[here], kind="stable")[:_TOP_ROWS]
    rows = [
        {
            "rank": rank,
            "param_id": int(copies.both.param_id[here[at]]),
            "owner": names[at],
            "size_bytes": int(copies.both.size_bytes[here[at]]),
            "born_ns": int(copies.both.start_ns[here[at]]),
            "buffer_end_ns": None if copies.both.end_ns[here[at]] == NEVER else int(copies.both.end_ns[here[at]]),
        }
        for at in largest
    ]
    return Evidence("memory_blocks", {"rank": rank, "category": Stored.PARAM_FULL.value}, rows, "the largest copies")
