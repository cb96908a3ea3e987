"""One module whose own parameters make the peak: no knob of the schedule makes a fetch smaller than what it fetches.

``stage3_prefetch_bucket_size`` and ``stage3_max_live_parameters`` limit what is gathered ahead, the reuse distance and
the persistence threshold what stays. A module that runs has all of its parameters gathered, whatever these say: an
embedding, a head over a large vocabulary, a leaf module (``set_z3_leaf_modules``) with everything below it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.profile.labels import Kind, Stored
from zeropeak.reports import setting
from zeropeak.reports.columns import NEVER, ints
from zeropeak.reports.findings.judging import (
    judge,
    noticeable,
    of_peak,
    ruled_out,
    sure,
    unattributed_peak,
    unknown,
    unpartitioned,
    unseen,
)
from zeropeak.reports.findings.registered import Registered, of_composition, read_registered
from zeropeak.reports.findings.replay import read_replay
from zeropeak.reports.findings.saving import peak_without
from zeropeak.reports.story import read_story
from zeropeak.reports.units import size

if TYPE_CHECKING:
    from zeropeak.reports.findings.finding import Finding
    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Peak, Story

ID: Final = "module-larger-than-knobs"
TITLE: Final = "One module is larger than the knobs"
_LIMITS: Final = ("prefetch_bucket_size", "max_live_parameters")
_NEEDED: Final = ("module forward begin", "module backward begin", "fetch and prefetch")


@dataclass(frozen=True)
class Large:
    """A module with its parameters.

    Attributes:
        numel: elements of all parameters that it uses.
        full_bytes: their bytes.
        above: knobs (as in the config, with their value) that it alone exceeds.
    """

    module_id: int
    name: str
    numel: int
    full_bytes: int
    param_ids: frozenset[int]
    above: tuple[str, ...]


def find(run: Run) -> list[Finding]:
    """One finding a rank, missing ranks included."""
    return judge(run, ID, of_rank)


def of_rank(run: Run, blank: Finding) -> Finding:
    """The finding on one rank, filled in from a blank one."""
    rank, story = blank.rank, read_story(run, blank.rank)
    if unsaid := unpartitioned(run, blank) or unseen(run, blank, _NEEDED, "Modules and fetches"):
        return unsaid
    if unsaid := unattributed_peak(run, blank, story):
        return unsaid
    peak = story.peak
    assert peak is not None
    blank = replace(blank, allocated_bytes=peak.highest_bytes)
    limits = [setting.knob(run, rank, name) for name in _LIMITS]
    modules = _modules(run, rank)
    if not modules or all(limit is None for limit in limits):
        return unknown(
            blank,
            "The modules and their parameters, or the knobs to compare them with, are not known.",
            "Capture with `zeropeak nsys` or `zeropeak torch`.",
        )
    large = [module for module in modules if module.above]
    if not large:
        top = modules[0]
        return ruled_out(
            blank,
            f"No module is larger than the knobs: {top.name} is the largest with {top.numel:,} elements "
            f"({size(top.full_bytes)}).",
            0,
        )
    running = _running(run, story, peak)
    using = [(module, _gathered(run, rank, peak, module)) for module in large if module.module_id in running]
    using = [(module, blocks) for module, blocks in using if len(blocks)]
    if not using:
        top = large[0]
        return ruled_out(
            blank,
            f"{top.name} alone ({top.numel:,} elements, {size(top.full_bytes)}) is larger than {_and(top.above)}, but "
            "neither it nor another such module was running at the peak.",
            0,
            [of_composition(story, ["gathered_in_use"], "in use at the run's peak")],
        )
    module, blocks = max(using, key=lambda one: one[1].total_bytes)
    return _told(run, blank, story, peak, module, blocks)


def _told(run: Run, blank: Finding, story: Story, peak: Peak, module: Large, blocks: Registered) -> Finding:
    bytes_ = blocks.total_bytes
    evidence = [
        of_composition(story, ["gathered_in_use", "gather_buffers"], "in use at the run's peak"),
        blocks.evidence(f"of {module.name} at the peak"),
    ]
    what = (
        f"{module.name} alone has {module.numel:,} elements ({size(module.full_bytes)}), more than {_and(module.above)}"
    )
    if not noticeable(bytes_, peak):
        return ruled_out(blank, f"{what}, but at the peak it held {of_peak(bytes_, peak)}.", bytes_, evidence)
    saving = peak_without(story, blocks.intervals())
    lower = f"Without them the rank would peak at {size(saving.without_bytes)}. " if saving else ""
    return replace(
        blank,
        verdict=sure(blank),
        bytes=bytes_,
        step=peak.step,
        headline=f"{what}; it was running at the peak with {of_peak(bytes_, peak)}, gathered.",
        advice=f"{_and(_keys(run))} cannot lower this part: they limit what is gathered ahead, never what the running "
        f"module needs, nor do the reuse distance and the persistence threshold. {lower}Split the module (a tiled "
        "linear, a vocabulary in parts) or give it fewer parameters.",
        modules=[module.name],
        evidence=evidence,
    )


def _modules(run: Run, rank: int) -> list[Large]:
    """All modules that use parameters, largest first."""
    params = run.arrow("params", rank, ["param_id", "numel", "full_bytes"])
    ids = params["param_id"].to_pylist()
    numel = dict(zip(ids, ints(params, "numel", 0).tolist(), strict=True))
    full = dict(zip(ids, ints(params, "full_bytes", 0).tolist(), strict=True))
    named = run.arrow("modules", rank, ["module_id", "name"])
    names = dict(zip(named["module_id"].to_pylist(), named["name"].to_pylist(), strict=True))
    users: dict[int, set[int]] = {}
    for param, module in zip(*(column.tolist() for column in read_replay(run, rank).pairs), strict=True):
        users.setdefault(module, set()).add(param)
    limits = {name: setting.knob(run, rank, name) for name in _LIMITS}
    found = []
    for module, members in users.items():
        elements = sum(numel.get(param, 0) for param in members)
        above = tuple(
            f"{setting.config_key(run, name)} ({limit:,})"
            for name, limit in limits.items()
            if limit is not None and elements > limit
        )
        name = names.get(module) or ("the model itself" if module in names else f"module {module}")
        bytes_ = sum(full.get(param, 0) for param in members)
        found.append(Large(module, name, elements, bytes_, frozenset(members), above))
    return sorted(found, key=lambda one: (-one.numel, one.name))


def _running(run: Run, story: Story, peak: Peak) -> set[int]:
    """Modules that were running at the peak."""
    ranges = run.arrow("module_ranges", story.rank, ["module_id", "start_ns", "end_ns"])
    on = (ints(ranges, "start_ns") <= peak.ts_ns) & (ints(ranges, "end_ns", NEVER) > peak.ts_ns)
    return set(ints(ranges, "module_id")[on].tolist())


def _gathered(run: Run, rank: int, peak: Peak, module: Large) -> Registered:
    """Full parameters of a module that it holds at the peak, and flat buffers of its own fetches."""
    alive = read_registered(run, rank).alive(peak.ts_ns)
    full = np.isin(alive.param_id, np.array(sorted(module.param_ids), np.int64)) & (alive.released_ns > peak.ts_ns)
    kind = pc.is_in(
        alive.table["category"], pa.array([Stored.PARAM_FULL.value, Stored.PARAM_PERSISTENT.value])
    ).to_numpy()
    events = run.arrow("zero_events", rank, ["event_id", "kind", "module_id"])
    fetches = pc.equal(events["kind"], Kind.FETCH.value).to_numpy() & (ints(events, "module_id") == module.module_id)
    buffer = pc.equal(alive.table["category"], Stored.GATHER_BUFFER.value).to_numpy()
    own = buffer & np.isin(alive.born_event_id, ints(events, "event_id")[fetches])
    return alive.keep((full & kind) | own)


def _keys(run: Run) -> tuple[str, ...]:
    return tuple(setting.config_key(run, name) for name in _LIMITS)


def _and(words: tuple[str, ...]) -> str:
    return " and ".join(words)
