"""What other knobs would have done in a run: its forwards and backwards told again by DeepSpeed's own rules.

For each forward and backward whose trace is complete, :mod:`zeropeak.reports.findings.coordinator` tells which gathers
and releases the run's knobs give. Only if these are, one by one, the gathers and releases that were recorded is the
same telling with another knob believed. The difference of the two in bytes over time, with what the collectives of
gathers that go had allocated for themselves, is then taken off the run's own memory curve. Weights that autograd holds
on to (those that outlived their release in a forward) stay until the backward that uses them, whatever is released;
gathered again there, they are in memory twice.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc

from zeropeak.parse.holdings import Moves
from zeropeak.parse.timeline import Timeline
from zeropeak.parse.usage import Runs, uses
from zeropeak.profile.labels import Kind, Phase
from zeropeak.reports import setting
from zeropeak.reports.columns import NEVER, Ints, ints
from zeropeak.reports.curve import Curve
from zeropeak.reports.findings.coordinator import Knobs, Trace, schedule
from zeropeak.reports.findings.outliving import rows_at
from zeropeak.reports.findings.registered import read_unregistered
from zeropeak.reports.findings.saving import without
from zeropeak.reports.findings.telling import tell
from zeropeak.reports.findings.turns import complete_turns
from zeropeak.reports.story import read_story

if TYPE_CHECKING:
    import pyarrow as pa

    from zeropeak.reports.findings.registered import Registered
    from zeropeak.reports.findings.saving import Saving
    from zeropeak.reports.findings.telling import Told
    from zeropeak.reports.findings.turns import Turn
    from zeropeak.reports.run import Run

_KNOBS: Final = ("max_reuse_distance", "prefetch_bucket_size", "max_live_parameters")


class Replay:
    """The complete turns of a rank, and what they would be with other knobs.

    Attributes:
        knobs: as they were; None when one is not known.
        turns: in order.
        held: parameters that autograd keeps alive after their release in a forward.
        pairs: parameters, and the modules that use them.
        runs: the rank's modules, as they ran.
        distance: elements that the modules before each run use together; see :meth:`Runs.numel_before`.
    """

    def __init__(self, run: Run, rank: int) -> None:
        self._run, self._story = run, read_story(run, rank)
        params = run.arrow("params", rank, ["param_id", "module_id", "numel", "full_bytes", "persistent"])
        ids = ints(params, "param_id").tolist()
        numel = dict(zip(ids, ints(params, "numel", 0).tolist(), strict=True))
        self._alone = run.arrow("ranks", rank, ["world_size"])["world_size"].to_pylist() == [1]
        self._bytes = dict(zip(ids, ints(params, "full_bytes", 0).tolist(), strict=True))
        persistent = pc.fill_null(params["persistent"], False).to_pylist()
        small = frozenset(param for param, stays in zip(ids, persistent, strict=True) if stays)
        reuse, bucket, live = (setting.knob(run, rank, name) for name in _KNOBS)
        known = reuse is not None and bucket is not None and live is not None
        self.knobs = Knobs(reuse or 0, bucket or 0, live or 0, small) if known else None
        timeline = Timeline(*(run.arrow(name, rank) for name in ("zero_events", "module_ranges", "phases")))
        members = run.arrow("zero_event_params", rank)
        self.pairs = pairs = uses(timeline, Moves.of(timeline, members), params)
        self.runs = Runs(timeline, pairs)
        self.distance = self.runs.numel_before(np.array([numel.get(p, 0) for p in pairs[0].tolist()], np.int64))
        self.turns = complete_turns(timeline, self.runs, pairs, members, numel, small)
        self.held = _held_by_autograd(run, rank)
        self._released = _released_in_forward(timeline.events.rows, members)
        self._tellings: dict[tuple[Trace, Knobs, frozenset[int]], Told] = {}
        self._savings: dict[tuple[object, ...], Saving | None] = {}
        self.doubt = self._doubt()
        if self.doubt is not None and len(self.turns) > 1 and self.turns[-1].cut and not self._peaks_in(self.turns[-1]):
            # A capture that ended in the middle of a turn has lost the last moments of its log: without that turn.
            self.turns = self.turns[:-1]
            self.doubt = self._doubt()

    def _doubt(self) -> str | None:
        """Why a retelling is not to be believed; None when it is."""
        if self.knobs is None:
            return "the run does not say all of its knobs"
        if self._alone:
            return "with one rank nothing is gathered or let go of"
        if not self.turns:
            return "no step was captured in which the trace of modules was complete"
        for turn in self.turns:
            told = self._tell(turn.trace, self.knobs, self.held).schedule
            if turn.recorded.gathers != told.gathers or turn.recorded.releases != told.releases:
                return f"the gathers and releases of step {turn.step} are not those that DeepSpeed's rules give"
        return None

    def _peaks_in(self, turn: Turn) -> bool:
        return self._story.peak is not None and self._story.peak.ts_ns >= turn.at_ns[0]

    def saving(
        self,
        *,
        max_reuse_distance: int | None = None,
        prefetch_bucket_size: int | None = None,
        persistent: frozenset[int] | None = None,
        autograd_holds: bool = True,
    ) -> Saving | None:
        """The run's peak with some knobs changed; None when :attr:`doubt` says why, or there is no curve.

        With ``autograd_holds`` false, as if nothing had outlived its release, too (memory_efficient_linear on).
        None, too, when it is open whether autograd would hold on to a weight that the run never released in a forward.
        """
        if self.doubt is not None or self.knobs is None:
            return None
        asked = (max_reuse_distance, prefetch_bucket_size, persistent, autograd_holds)
        if asked not in self._savings:
            self._savings[asked] = self._saving(self.knobs, *asked)
        return self._savings[asked]

    def _saving(
        self,
        now_knobs: Knobs,
        max_reuse_distance: int | None,
        prefetch_bucket_size: int | None,
        persistent: frozenset[int] | None,
        autograd_holds: bool,
    ) -> Saving | None:
        knobs = now_knobs
        if max_reuse_distance is not None:
            knobs = replace(knobs, max_reuse_distance=max_reuse_distance)
        if prefetch_bucket_size is not None:
            knobs = replace(knobs, prefetch_bucket_size=prefetch_bucket_size)
        if persistent is not None:
            knobs = replace(knobs, persistent=persistent)
        times, sizes = ([], []) if autograd_holds else self._released_alive()
        holds = self.held if autograd_holds else frozenset()
        unlaunched: list[int] = []
        for turn in self.turns:
            now, then = (self._tell(turn.trace, one, holds) for one in (now_knobs, knobs))
            if not then.let_go <= self._released:
                return None
            for told, sign in ((now, 1), (then, -1)):
                ts_ns, size_bytes = told.changes(turn)
                times.append(ts_ns)
                sizes.append(sign * size_bytes)
            unlaunched += now.without(then, turn)
        copies = self._collectives.keep(np.isin(self._collectives.born_event_id, np.array(unlaunched, np.int64)))
        times += [copies.born_ns, copies.end_ns]
        sizes += [copies.size_bytes, -copies.size_bytes]
        peak = self._story.peak
        held = _curve(np.concatenate(times), np.concatenate(sizes))
        return without(self._story.curve, held, peak.allocator_bytes if peak else None)

    @cached_property
    def _collectives(self) -> Registered:
        """What the collectives of the gathers allocated for themselves."""
        events = [event for turn in self.turns for event in turn.recorded.events]
        return read_unregistered(self._run, self._story.rank, np.array(events, np.int64))

    def _released_alive(self) -> tuple[list[Ints], list[Ints]]:
        """Changes of what autograd holds after its release, in all of the run."""
        lives = self._story.intervals.of(np.array(sorted(self.held), np.int64))
        lasting = lives.end_ns > lives.start_ns
        size = lives.size_bytes[lasting]
        return [lives.start_ns[lasting], lives.end_ns[lasting]], [size, -size]

    def _tell(self, trace: Trace, knobs: Knobs, held: frozenset[int]) -> Told:
        """Steps mostly repeat each other, so each distinct one is told once."""
        key = (trace, knobs, held)
        if key not in self._tellings:
            self._tellings[key] = tell(trace, schedule(trace, knobs), self._bytes, held)
        return self._tellings[key]


def read_replay(run: Run, rank: int) -> Replay:
    """The replay of one rank; kept by the run for a while."""
    return run.keep(("replay", rank), lambda: Replay(run, rank))


def shared_keys(rank: int) -> tuple[tuple[str, int], ...]:
    """What only findings share of a rank, kept by the run: of a long one many objects, of no use afterwards."""
    return ("replay", rank), ("blocks", rank), ("registered", rank), ("retained", rank)


def _held_by_autograd(run: Run, rank: int) -> frozenset[int]:
    """Parameters that surely outlived their release in a forward."""
    story = read_story(run, rank)
    marks = [mark for mark in story.marks if mark["mark"] == Phase.FORWARD.value]
    return frozenset(row["param_id"] for mark in marks for row in rows_at(run, story, mark)[0])


def _released_in_forward(events: pa.Table, members: pa.Table) -> frozenset[int]:
    """Parameters let go of in some forward: of the others it is not known whether autograd would hold them."""
    frees = events.filter(
        pc.and_(pc.equal(events["kind"], Kind.FREE.value), pc.equal(events["phase"], Phase.FORWARD.value))
    )
    freed = members.filter(pc.is_in(members["event_id"], frees["event_id"].combine_chunks()))
    return frozenset(freed["param_id"].to_pylist())


def _curve(ts_ns: Ints, size_bytes: Ints) -> Curve:
    """Sum of changes over time; those at ``NEVER`` do not count."""
    seen = ts_ns < NEVER
    order = np.argsort(ts_ns[seen], kind="stable")
    ts_ns, total = ts_ns[seen][order], np.cumsum(size_bytes[seen][order])
    last = np.flatnonzero(np.diff(ts_ns, append=NEVER))
    return Curve(ts_ns[last], total[last])
