"""Full parameters whose memory did not end when a release was decided, from when to when, and why.

A *decision* is a ``release`` event (a module lets go of its parameters), or a ``free`` event outside one. Which
storages it is about is told by ids: the parameters that the module owns or fetched (:mod:`zeropeak.parse.usage`), and
of those the storage that was alive (:mod:`zeropeak.parse.holdings`). A storage *ends* where the event log's weak
reference died; under ``record_stream`` later, where the snapshot's allocator got the block back. A row is a decision
and a parameter whose storage ended after the decision's event, with the first of these causes that fits.

ZeRO let go (there is a ``free``), and yet the storage lived on:

* ``prefetched-unused``: a prefetch gathered it, and from there to the free no module that uses it ran. This one row is
  there even when the storage ended with its free; then nothing was decided late, so ``decided_ns`` is the prefetch's
  begin: from there on the memory was held for nothing.
* ``shared-buffer``: the storage also holds parameters that ZeRO had not let go of yet.
* ``autograd-held``: the search of the autograd graph found a node that saved it (``holder``); or, where nobody
  searched, it was let go of in a forward and ended in the backward of the same micro-step, as what autograd saves does.
* ``record-stream``: the last reference was gone, but the allocator returned the block later.

ZeRO kept it (no ``free`` in the release):

* ``persistence``: the parameter is a persistent one (param_persistence_threshold).
* ``in-use-by-module``: another module that uses it was running.
* ``reuse-distance``: the modules that ran from here to its next use in the micro-step use fewer elements than
  max_reuse_distance, counted as DeepSpeed counts them.

Else the cause is null: the tables cannot tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.blocks import ALIVE, BEFORE
from zeropeak.parse.holdings import Holdings, Moves
from zeropeak.parse.lookup import Lookup, ints, take
from zeropeak.parse.schema import BY_NAME
from zeropeak.parse.series import Series
from zeropeak.parse.usage import Runs, expand, uses
from zeropeak.profile.labels import Kind, Phase, Stored

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zeropeak.parse.timeline import Timeline

    Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]

CAUSES: Final = (
    "prefetched-unused",
    "shared-buffer",
    "autograd-held",
    "record-stream",
    "persistence",
    "in-use-by-module",
    "reuse-distance",
)
_UNUSED, _SHARED, _AUTOGRAD, _STREAM, _PERSISTENT, _IN_USE, _REUSE = range(len(CAUSES))
_UNKNOWN: Final = -1
_LAUNCHES: Final = (Kind.FETCH.value, Kind.PREFETCH.value, Kind.GATHER.value)


def delayed_frees(
    log: Mapping[str, pa.Table],
    timeline: Timeline,
    blocks: pa.Table,
    last_ns: int,
    *,
    max_reuse_distance: int | None = None,
    slack_ns: int = 0,
) -> pa.Table:
    """Rows of the table of that name, without rank.

    Args:
        log: zero_event_params, params, retained and memory_blocks (the registered storages) of the event log.
        timeline: its events.
        blocks: memory_blocks of the rank, for the allocator's side.
        last_ns: end of the data, ns; what is still alive is held until then.
        max_reuse_distance: the knob as DeepSpeed resolved it, elements; None when not known.
        slack_ns: error of the allocator's clock.
    """
    moves = Moves.of(timeline, log["zero_event_params"])
    held = Holdings.of(log, timeline, moves, blocks)
    pairs = uses(timeline, moves, log["params"])
    judge = _Judge(log, timeline, moves, held, pairs, Runs(timeline, pairs), max_reuse_distance)
    let_go, kept = judge.let_go(slack_ns), judge.kept()
    joined = _Delays(*(np.concatenate(both) for both in zip(let_go, kept, strict=True)))
    return _rows(log, timeline, held, joined, judge, last_ns)


@dataclass(frozen=True)
class _Delays:
    """A row for each delayed free."""

    holding: Ints
    release: Ints
    """Row of the release event, -1 for none."""
    free: Ints
    """Row of the free event of the decision, -1 when ZeRO kept it."""
    cause: Ints
    decided: Ints

    def __iter__(self) -> Iterator[Ints]:
        return iter((self.holding, self.release, self.free, self.cause, self.decided))


@dataclass(frozen=True)
class _Judge:
    """Which decisions were late, and why."""

    log: Mapping[str, pa.Table]
    timeline: Timeline
    moves: Moves
    held: Holdings
    pairs: tuple[Ints, Ints]
    runs: Runs
    knob: int | None

    def let_go(self, slack_ns: int) -> _Delays:
        """Of the storages that ZeRO let go of."""
        held, events = self.held, self.timeline.events
        rows = np.flatnonzero(held.free >= 0)
        release, free = held.release[rows], held.free[rows]
        decided = np.where(release >= 0, take(events.start, release), held.let_go[rows])
        settled = np.where(release >= 0, take(events.end, release), self._next_edge(free))
        outlived = held.ended[rows] > settled
        streamed = ~outlived & (held.returned[rows] > np.maximum(held.ended[rows], settled) + slack_ns)
        launched = self._launched_unused(rows)
        unused = launched != ALIVE
        cause = np.select(
            [unused, outlived & self._shared(rows), outlived & self._autograd(rows), streamed],
            [_UNUSED, _SHARED, _AUTOGRAD, _STREAM], _UNKNOWN,
        )  # fmt: skip
        decided = np.where(unused & ~outlived & ~streamed, launched, decided)
        some = outlived | streamed | unused
        return _Delays(rows[some], release[some], free[some], cause[some], decided[some])

    def kept(self) -> _Delays:
        """Of the storages that were there before and after a release of their parameter, and not let go of in it."""
        events, held = self.timeline.events, self.held
        module = ints(events.rows["module_id"])
        kinds = pc.fill_null(pc.equal(events.rows["kind"], Kind.RELEASE.value), False)
        releases = np.flatnonzero(kinds.to_numpy(zero_copy_only=False) & (module >= 0))
        by_module = np.argsort(self.pairs[1], kind="stable")
        question, place = expand(self.pairs[1][by_module], module[releases])
        release, param = releases[question], self.pairs[0][by_module][place]
        row = Series(held.param, held.born).last(param, events.start[release])
        until = np.minimum(take(held.let_go, row), take(held.ended, row))
        there = (row >= 0) & (until > events.end[release]) & (take(held.release, row) != release)
        row, release, param = row[there], release[there], param[there]
        conditions = [self._persistent(row), self._in_use(param, release), self._reused(param, release)]
        cause = np.select(conditions, [_PERSISTENT, _IN_USE, _REUSE], _UNKNOWN)
        return _Delays(row, release, np.full(len(row), -1), cause, events.start[release])

    def holders(self, rows: Ints, column: str = "holder") -> pa.Array:
        """What the search of the autograd graph found for each holding, or its module."""
        found = self.log["retained"].filter(pc.is_valid(self.log["retained"]["holder"]))
        wanted = self.log["memory_blocks"]["storage_id"].take(pa.array(self.held.storage[rows]))
        return flat(found[column].take(Lookup(found["storage_id"]).find(wanted)))

    def _launched_unused(self, rows: Ints) -> Ints:
        """Begin of the prefetch that gathered each holding, when no module used it until its free; else ALIVE."""
        events, held, moves = self.timeline.events, self.held, self.moves
        launch = np.flatnonzero(np.isin(moves.kind.astype(str), _LAUNCHES))
        # A storage is registered when its gather is waited for or when it is freed, so after the launch.
        launches = Series(moves.param[launch], events.start[moves.event[launch]])
        found = launches.last(held.param[rows], held.born[rows])
        prefetch = (found >= 0) & (take(moves.kind[launch], found) == Kind.PREFETCH.value)
        start = np.where(prefetch, take(events.start[moves.event[launch]], found), ALIVE)
        used = self.runs.used_between(held.param[rows], start, held.let_go[rows])
        return np.where(prefetch & ~used, start, ALIVE)

    def _shared(self, rows: Ints) -> Flags:
        held = self.held
        last = np.full(self.log["memory_blocks"].num_rows, BEFORE)
        np.maximum.at(last, held.storage, held.let_go)
        return np.asarray(last[held.storage[rows]] > held.let_go[rows], bool)

    def _autograd(self, rows: Ints) -> Flags:
        held, phases = self.held, self.timeline.phases
        found = self.holders(rows).is_valid().to_numpy(zero_copy_only=False)
        running = self.timeline.modules.column_at("direction", held.let_go[rows])
        forward = pc.fill_null(pc.equal(running, "forward"), False).to_numpy(zero_copy_only=False)
        at, until = phases.innermost.at(held.let_go[rows]), phases.innermost.at(held.ended[rows])
        names = np.array([*phases.rows["phase"].to_pylist(), None], object)
        same = np.ones(len(rows), bool)
        for column in ("step", "micro_step"):
            value = np.append(ints(phases.rows[column]), -2)
            same &= value[at] == value[until]
        forward = forward | (names[at] == Phase.FORWARD.value)
        return np.asarray(found | (forward & same & (names[until] == Phase.BACKWARD.value)), bool)

    def _persistent(self, rows: Ints) -> Flags:
        held = self.held
        stored = pc.equal(self.log["memory_blocks"]["category"], Stored.PARAM_PERSISTENT.value)
        by_storage = pc.fill_null(stored, False).to_numpy()[held.storage[rows]]
        small = self.log["params"]["persistent"].take(
            Lookup(self.log["params"]["param_id"]).find(pa.array(held.param[rows]))
        )
        return np.asarray(by_storage | pc.fill_null(small, False).to_numpy(), bool)

    def _in_use(self, param: Ints, release: Ints) -> Flags:
        """Whether a module other than the one that lets go uses the parameter and was running."""
        events = self.timeline.events
        row, place = expand(self.pairs[0], param)
        module = self.pairs[1][place]
        other = module != ints(events.rows["module_id"])[release[row]]
        row, module = row[other], module[other]
        found = np.zeros(len(param), bool)
        found[row[self.runs.running(module, events.start[release[row]])]] = True
        return found

    def _reused(self, param: Ints, release: Ints) -> Flags:
        if self.knob is None or not len(self.runs.module):
            return np.zeros(len(param), bool)
        row = Lookup(self.log["params"]["param_id"]).find(pa.array(self.pairs[0]))
        before = self.runs.numel_before(ints(self.log["params"]["numel"].take(row), 0))
        now = self.runs.first_after(self.timeline.events.start[release])
        use = self.runs.next_use(param, now)
        here = (use >= 0) & (now < len(self.runs.module))
        now, use = np.where(here, now, 0), np.where(here, use, 0)
        same = self.runs.turn[use] == self.runs.turn[now]
        return np.asarray(here & same & (before[use] - before[now] < self.knob), bool)

    def _next_edge(self, free: Ints) -> Ints:
        """When the thread of each free event was next heard of: by then the free had taken effect."""
        events, modules = self.timeline.events, self.timeline.modules
        thread = np.concatenate([ints(spans.rows["thread_id"]) for spans in (events, modules)] * 2)
        ts = np.concatenate([events.start, modules.start, events.end, modules.end])
        mine = take(ints(events.rows["thread_id"]), free)
        found = Series(thread, ts).following(mine, take(events.start, free))
        return np.where(found >= 0, take(ts, found), ALIVE)


def _rows(
    log: Mapping[str, pa.Table], timeline: Timeline, held: Holdings, delays: _Delays, judge: _Judge, last_ns: int
) -> pa.Table:
    events, storages, params = timeline.events.rows, log["memory_blocks"], log["params"]
    row, decided = delays.holding, delays.decided
    at_release, at_free = _index(delays.release), _index(delays.free)
    at_either = pc.coalesce(at_release, at_free)
    at_param = Lookup(params["param_id"]).find(pa.array(held.param[row]))
    freed = np.where(delays.cause == _STREAM, held.returned[row], held.ended[row])
    freed = np.where(freed > last_ns, ALIVE, freed)
    duration = np.maximum(np.minimum(freed, last_ns) - decided, 0)
    # Of a storage with several parameters each row counts its own part.
    size, own = ints(storages["size_bytes"])[held.storage[row]], ints(params["full_bytes"].take(at_param))
    alone = np.bincount(held.storage, minlength=storages.num_rows)[held.storage[row]] == 1
    size = np.where(alone | (own < 0), size, np.minimum(own, size))
    by_autograd = pa.array(delays.cause == _AUTOGRAD)
    nothing = pa.scalar(None, pa.string())
    later = np.where(delays.free >= 0, -1, held.release[row])
    columns = {
        "event_id": flat(events["event_id"]).take(at_release),
        "free_event_id": flat(events["event_id"]).take(at_free),
        **{name: flat(events[name]).take(at_either) for name in ("step", "micro_step", "phase")},
        "module": flat(events["module"]).take(at_release),
        "param_id": held.param[row],
        "param": flat(params["name"]).take(at_param),
        "storage_id": flat(storages["storage_id"]).take(pa.array(held.storage[row])),
        "size_bytes": size,
        "decided_ns": decided,
        "freed_ns": pa.array(freed, pa.int64(), mask=freed == ALIVE),
        "held_ns": duration,
        "byte_seconds": size * (duration / 1e9),
        "cause": pa.array(CAUSES).take(_index(delays.cause)),
        "holder": pc.if_else(by_autograd, judge.holders(row), nothing),
        "holder_module": pc.if_else(by_autograd, judge.holders(row, "holder_module"), nothing),
        "until_module": flat(events["module"]).take(_index(later)),
    }
    assert list(columns) == [column.name for column in BY_NAME["delayed_frees"].columns][1:]
    return pa.table(columns)


def _index(rows: Ints) -> pa.Array:
    """Rows to take; -1 gives null."""
    return pa.array(rows, pa.int64(), mask=rows < 0)


def flat(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column in one piece."""
    if not isinstance(values, pa.ChunkedArray):
        return values
    return values.combine_chunks() if values.num_chunks else pa.array([], values.type)
