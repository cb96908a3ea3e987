"""Forwards and backwards of a rank whose trace was complete, with the gathers and releases recorded in them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse import lookup
from zeropeak.parse.lookup import Lookup
from zeropeak.profile.labels import Kind, Phase
from zeropeak.reports.columns import NEVER, Ints, ints
from zeropeak.reports.findings.coordinator import Trace

if TYPE_CHECKING:
    from zeropeak.parse.timeline import Timeline
    from zeropeak.parse.usage import Runs

_LAUNCHES: Final = frozenset({Kind.FETCH.value, Kind.PREFETCH.value})
_PHASES: Final = (Phase.FORWARD.value, Phase.BACKWARD.value)


@dataclass
class Recorded:
    """What was seen, in the form of a schedule's: gathers in order, releases by the action that they end with.

    Attributes:
        events: the event of each gather.
    """

    gathers: list[tuple[bool, tuple[int, ...]]]
    events: list[int]
    releases: dict[int, tuple[int, ...]]


@dataclass(frozen=True)
class Turn:
    """One forward and backward.

    Attributes:
        step: of the optimizer.
        cut: the data ends within it.
        trace: what it did.
        at_ns: time of each action of the trace.
        settled_ns: for a run's begin, when the gathers that it waited for had all been copied out; ``at_ns`` plus 1
            where it waited for none.
        until_ns: when the next one begins; ``NEVER`` for the last.
        recorded: what was seen.
    """

    step: int
    cut: bool
    trace: Trace
    at_ns: Ints
    settled_ns: Ints
    until_ns: int
    recorded: Recorded


def complete_turns(
    timeline: Timeline,
    runs: Runs,
    pairs: tuple[Ints, Ints],
    members: pa.Table,
    numel: dict[int, int],
    persistent: frozenset[int],
) -> list[Turn]:
    """Turns that run the same modules as the one before, whose trace was recorded by then.

    Args:
        timeline: the rank's events.
        runs: of its modules.
        pairs: parameters and the modules that use them.
        members: rows of zero_event_params.
        numel: elements by parameter.
        persistent: parameters that stay gathered; they are there from the second optimizer step on.
    """
    rows = timeline.modules.rows
    order = np.argsort(timeline.modules.start, kind="stable")
    here = pc.is_in(rows["phase"], pa.array(_PHASES)).to_numpy()[order] & (runs.turn >= 0)
    forward = pc.fill_null(pc.equal(rows["direction"], Phase.FORWARD.value), False).to_numpy()[order]
    step = ints(rows, "step")[order]
    places = np.flatnonzero(here)
    if not len(places):
        return []
    edges = np.flatnonzero(np.diff(runs.turn[places], prepend=-1))
    groups = np.split(places, edges[1:])
    starts = [int(runs.start[group[0]]) for group in groups]
    recorded = _Recorder(timeline, members)
    waits = _waits(timeline)
    by_module: dict[int, list[int]] = {}
    for param, module in zip(*(column.tolist() for column in pairs), strict=True):
        by_module.setdefault(module, []).append(param)
    users = {module: tuple(sorted(params)) for module, params in by_module.items()}
    first_step = int(step[places].min())
    found: list[Turn] = []
    known: list[int] | None = None
    directions: tuple[bool, ...] = ()
    for place, mine in enumerate(groups):
        modules = runs.module[mine].tolist()
        if known is None:
            known, directions = modules, tuple(forward[mine].tolist())
            continue
        if modules != known[: len(modules)]:
            # DeepSpeed throws the trace away in this turn and records a new one in the next.
            known = None
            continue
        ended = np.flatnonzero(runs.end[mine] != NEVER)
        times = np.concatenate([runs.start[mine], runs.end[mine][ended]])
        at = np.argsort(times, kind="stable")
        what = [(run, False) for run in range(len(mine))] + [(run, True) for run in ended.tolist()]
        number = int(step[mine[0]])
        trace = Trace(
            tuple(users.get(module, ()) for module in known),
            tuple(what[one] for one in at),
            directions,
            numel,
            persistent if number > first_step else frozenset(),
        )
        until = starts[place + 1] if place + 1 < len(groups) else NEVER
        seen = recorded.between(trace, times[at], until)
        cut = len(trace.actions) < 2 * len(known)
        found.append(Turn(number, cut, trace, times[at], _settled(times[at], waits), until, seen))
    return found


def _waits(timeline: Timeline) -> tuple[Ints, Ints]:
    """Begins and ends of the waits, in order of their begin."""
    rows = np.flatnonzero(pc.fill_null(pc.equal(timeline.events.rows["kind"], Kind.WAIT.value), False).to_numpy())
    rows = rows[np.argsort(timeline.events.start[rows], kind="stable")]
    return timeline.events.start[rows], timeline.events.end[rows]


def _settled(at: Ints, waits: tuple[Ints, Ints]) -> Ints:
    """End of the last wait that began between each action and the next."""
    start, end = waits
    last = np.searchsorted(start, np.append(at[1:], NEVER), "left") - 1
    inside = (last >= 0) & (np.append(start, NEVER)[last] >= at)
    ended = np.append(end, NEVER)[last]
    return np.where(inside & (ended != NEVER), np.maximum(ended, at + 1), at + 1)


class _Recorder:
    """Launches and frees of a rank, by time."""

    def __init__(self, timeline: Timeline, members: pa.Table) -> None:
        events = timeline.events.rows
        in_turn = pc.is_in(events["phase"], pa.array(_PHASES)).to_numpy()
        launched = pc.is_in(events["kind"], pa.array(sorted(_LAUNCHES))).to_numpy()
        freed = pc.is_in(events["kind"], pa.array([Kind.FREE.value])).to_numpy()
        rows = np.flatnonzero(launched | (freed & in_turn))
        rows = rows[np.argsort(timeline.events.start[rows], kind="stable")]
        self._start, self._ids = timeline.events.start[rows], ints(events, "event_id")[rows].tolist()
        self._kinds: list[str] = events["kind"].take(pa.array(rows)).to_pylist()
        place = np.full(events.num_rows + 1, -1)
        place[rows] = np.arange(len(rows))
        of = place[lookup.ints(Lookup(events["event_id"]).find(members["event_id"]))]
        param = ints(members, "param_id")
        order = np.lexsort((param, of))
        order = order[of[order] >= 0]
        edges = np.searchsorted(of[order], np.arange(len(rows) + 1)).tolist()
        known = param[order].tolist()
        self._params = [tuple(known[first:last]) for first, last in pairwise(edges)]

    def between(self, trace: Trace, at_ns: Ints, until_ns: int) -> Recorded:
        """What was seen from the first action of a turn on."""
        first, last = np.searchsorted(self._start, [at_ns[0], until_ns], "left").tolist()
        place = np.searchsorted(at_ns, self._start[first:last], "left").tolist()
        gathers: list[tuple[bool, tuple[int, ...]]] = []
        ids: list[int] = []
        gone: dict[int, list[int]] = {}
        for row, action in zip(range(first, last), place, strict=True):
            if self._kinds[row] in _LAUNCHES:
                gathers.append((self._kinds[row] == Kind.PREFETCH, self._params[row]))
                ids.append(self._ids[row])
                continue
            for param in self._params[row]:
                gone.setdefault(_ends_with(trace, param, action), []).append(param)
        return Recorded(gathers, ids, {action: tuple(sorted(params)) for action, params in gone.items()})


def _ends_with(trace: Trace, param: int, action: int) -> int:
    """The end of the run that let go of a parameter: the first from ``action`` on that uses it.

    A run ends after its release, so what went before then went with it. Runs whose hook never fired all end together.
    """
    for place in range(action, len(trace.actions)):
        run, ends = trace.actions[place]
        if ends and param in trace.users[run]:
            return place
    return len(trace.actions)
