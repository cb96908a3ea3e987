"""Small parameters that stay gathered on every rank, by stage3_param_persistence_threshold (in elements)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.profile.labels import Stored
from zeropeak.reports import setting
from zeropeak.reports.columns import ints
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
)
from zeropeak.reports.findings.registered import of_composition, part_bytes, read_registered
from zeropeak.reports.findings.replay import read_replay
from zeropeak.reports.findings.saving import mildest
from zeropeak.reports.names import counted
from zeropeak.reports.story import read_story
from zeropeak.reports.units import count, size

if TYPE_CHECKING:
    from zeropeak.reports.findings.finding import Finding
    from zeropeak.reports.findings.saving import Saving
    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Peak

ID: Final = "persistent-parameters"
TITLE: Final = "Small parameters stay gathered"
KNOB: Final = "param_persistence_threshold"
_CATEGORY: Final = "persistent_parameters"
_TOP_ROWS: Final = 5


def find(run: Run) -> list[Finding]:
    """One finding a rank, missing ranks included."""
    return judge(run, ID, of_rank)


def of_rank(run: Run, blank: Finding) -> Finding:
    """The finding on one rank, filled in from a blank one."""
    rank, story = blank.rank, read_story(run, blank.rank)
    if unsaid := unpartitioned(run, blank):
        return unsaid
    params = run.arrow("params", rank, ["param_id", "name", "numel", "full_bytes", "shard_bytes", "persistent"])
    if not params.num_rows or params["persistent"].null_count == params.num_rows:
        return unknown(
            blank,
            "Which parameters stay gathered is not known.",
            "Capture with `zeropeak nsys` or `zeropeak torch`, which writes down the parameters.",
        )
    small = params.filter(pc.fill_null(params["persistent"], False))
    threshold, key = setting.knob(run, rank, KNOB), setting.config_key(run, KNOB)
    if not small.num_rows:
        value = f" ({threshold:,} elements)" if threshold is not None else ""
        return not_applicable(blank, f"No parameter is as small as {key}{value}: none stays gathered by it.")
    if unsaid := unattributed_peak(run, blank, story):
        return unsaid
    peak = story.peak
    assert peak is not None
    bytes_ = part_bytes(story, _CATEGORY)
    evidence = [of_composition(story, [_CATEGORY], "persistent parameters at the run's peak"), _largest(small, rank)]
    blank = replace(blank, bytes=bytes_, allocated_bytes=peak.highest_bytes)
    every = f"{small.num_rows:,} of {count(params.num_rows, 'parameter')}"
    value = f"at most {threshold:,} elements" if threshold is not None else "few elements"
    if not noticeable(bytes_, peak):
        return ruled_out(
            blank,
            f"Parameters of {value} ({every}) stay gathered: {of_peak(bytes_, peak)}{_if_none(bytes_, peak)}.",
            bytes_,
            evidence,
        )
    alive = read_registered(run, rank).of(Stored.PARAM_PERSISTENT).alive(peak.ts_ns)
    modules = [(str(name).rpartition(".")[0] or str(name), size_bytes) for name, size_bytes in zip(
        alive.table["owner"].to_pylist(), alive.size_bytes.tolist(), strict=True)]  # fmt: skip
    found = replace(
        blank,
        verdict=sure(blank),
        step=peak.step,
        knob=key,
        headline=f"Parameters of {value} ({every}) stay gathered on every rank: {of_peak(bytes_, peak)}.",
        modules=counted(modules),
        evidence=[*evidence, alive.evidence("the largest that were alive at the peak")],
    )
    return _advised(run, found, small, peak)


def _if_none(bytes_: int, peak: Peak) -> str:
    """The trap of the first step: without a complete trace nothing persists."""
    return "; the peak lies where they had been let go of" if not bytes_ and peak.phase not in {None, "init"} else ""


def _advised(run: Run, found: Finding, small: pa.Table, peak: Peak) -> Finding:
    replay, key = read_replay(run, found.rank), found.knob
    none = replay.saving(persistent=frozenset())
    if none is None:
        why = replay.doubt or "whether autograd would hold on to these parameters was never seen"
        return replace(
            found, value=0, advice=f"Set {key} to 0 and compare the peaks: what it saves is open, since {why}."
        )
    if not noticeable(none.size_bytes, peak):
        most = f"only {size(none.size_bytes)}" if none.size_bytes > 0 else "nothing"
        reuse = setting.config_key(run, "max_reuse_distance")
        return replace(
            found,
            advice=f"Lowering {key} saves {most} here: what would be let go of is kept for reuse ({reuse}), held by "
            "autograd or in use, or memory peaks as high at another moment.",
        )
    numel, ids = ints(small, "numel", 0), ints(small, "param_id")

    def saves(threshold: int) -> Saving | None:
        return replay.saving(persistent=frozenset(ids[numel <= threshold].tolist()))

    value, saving = mildest((np.unique(numel) - 1).tolist(), saves, none) or (0, none)
    gathers = f"{count(int(np.count_nonzero(numel > value)), 'parameter')} more to gather for each use"
    return replace(
        found,
        value=value,
        expected=[saving.expected],
        advice=f"Set {key} to {value} (elements): expect {saving.words}. That makes {gathers}.",
    )


def _largest(small: pa.Table, rank: int) -> Evidence:
    order = np.argsort(-ints(small, "full_bytes", 0), kind="stable")[:_TOP_ROWS]
    rows = small.take(pa.array(order)).to_pylist()
    where = {"rank": rank, "persistent": True}
    return Evidence("params", where, [{"rank": rank, **row} for row in rows], "the largest persistent parameters")
