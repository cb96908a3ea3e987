"""Which ZeRO event launched which collective.

A collective belongs to the innermost gather (or reduction) that was open on its thread when the host launched it. Where
the launch was not recorded, the address of its buffer tells, else the order: a backend runs what it is given in turn.
The sizes must then agree with the event's parameters. What stays open, or contradicts itself, has no event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.blocks import ALIVE
from zeropeak.parse.innermost import NONE, Innermost
from zeropeak.parse.lookup import Lookup, ints
from zeropeak.profile.labels import Kind, Stored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeropeak.parse.stats import StatsScope

    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
    Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]

NULL: Final = -1
OTHER, GATHER, REDUCE = 0, 1, 2

_LAUNCHING: Final = {
    **dict.fromkeys((Kind.FETCH, Kind.PREFETCH, Kind.GATHER, Kind.ALL_GATHER), GATHER),
    Kind.REDUCE: REDUCE,
}
"""What the collectives of an event do, by its kind. An event of another tool that has no kind is a gather."""

_REDUCTIONS: Final = frozenset({"reduce", "ncclreduce", "allreduce", "ncclallreduce", "reducescatter"})
_MOST_PADDING: Final = 16
"""Bytes of an element at most: each parameter is padded to a multiple of the group's size."""

_MOST_WAYS: Final = 1_000
"""Ways to lay a row of kernels along the events that are tried."""


def join(rows: pa.Table, log: Mapping[str, pa.Table], stats: StatsScope) -> pa.Table:
    """Set ``event_id`` of one rank's collectives.

    Args:
        rows: rows of ``collectives`` of one source; those that have an event keep it.
        log: the rank's ``zero_events``, ``zero_event_params``, ``params``, and registered storages (``memory_blocks``).
        stats: takes how many were joined, and why others were not.

    Returns:
        The rows, in their order.
    """
    calls, events = _Calls(rows), _Events.of(log)
    event = np.full(rows.num_rows, NULL)
    unclear = np.zeros(rows.num_rows, bool)
    outside = np.zeros(rows.num_rows, bool)
    storages = _Storages(log["memory_blocks"], events)
    for what in (GATHER, REDUCE):
        mine = np.flatnonzero(calls.what == what)
        some = np.flatnonzero(events.what == what)
        if not len(mine) or not len(some):
            outside[mine] = True
            continue
        launched = mine[calls.launched[mine] != NULL]
        found = _open_at(calls, launched, events, some)
        contradicted = storages.contradict(found, calls.address[launched])
        unclear[launched] = contradicted
        event[launched] = np.where(contradicted, NULL, found)
        # Launched from a thread of its own: the buffer still tells.
        stray = launched[(found == NULL) & (calls.address[launched] != NULL)]
        event[stray] = storages.open_with(calls, stray, what)
        outside[launched] = (event[launched] == NULL) & ~contradicted
        blind = mine[calls.launched[mine] == NULL]
        event[blind] = storages.in_turn(calls, blind, what)
        rest = blind[event[blind] == NULL]
        event[rest] = _in_turn(calls, rest, events, some[~np.isin(some, event[blind])])
        unclear[blind] = event[blind] == NULL
    differs = (event != NULL) & ~_sizes_agree(calls, event, events)
    event[differs] = NULL
    moving = calls.what != OTHER
    stats.count(
        "collectives_joined", int((event != NULL).sum()), "info", "collectives with the event that launched them"
    )
    stats.count("collectives_outside_events", int((outside & moving).sum()), "info",
                "gathers and reductions launched while no gather or reduction of ZeRO was recorded")  # fmt: skip
    stats.count(
        "collectives_unclear", int(unclear.sum()), "info", "collectives that may be of several events, or of none"
    )
    stats.count("collectives_size_differs", int(differs.sum()), "info",
                "collectives whose sizes contradict those of the event around them")  # fmt: skip
    ids = pa.array(np.append(events.id, NULL)[event], pa.int64(), mask=event == NULL)
    place = rows.schema.get_field_index("event_id")
    kept = ids if place < 0 else pc.coalesce(rows["event_id"].combine_chunks(), ids)
    return rows.append_column("event_id", kept) if place < 0 else rows.set_column(place, "event_id", kept)


def of_log(log: Mapping[str, pa.Table]) -> pa.Table:
    """Rows of ``collectives`` that the event log tells of by itself: one for each buffer that a call was given.

    A gather of several parameters registers its flat buffer, one of a single parameter its storage, a reduction what it
    scatters: each is the buffer of exactly one call.
    """
    blocks, events = log["memory_blocks"], log["zero_events"]
    at = Lookup(events["event_id"]).find(blocks["born_event_id"])
    kind = events["kind"].take(at).combine_chunks() if events.num_rows else pa.nulls(blocks.num_rows, pa.string())
    gathered = pc.or_(
        pc.equal(blocks["category"], Stored.GATHER_BUFFER.value),
        pc.and_(
            pc.is_in(blocks["category"], pa.array([Stored.PARAM_FULL.value, Stored.PARAM_PERSISTENT.value])),
            pc.is_in(kind, pa.array([Kind.FETCH.value, Kind.PREFETCH.value])),
        ),
    )
    reduced = pc.and_(pc.equal(blocks["category"], Stored.GRADIENT_BUCKET.value), pc.equal(kind, Kind.REDUCE.value))
    known = pc.and_(pc.is_valid(at), pc.fill_null(pc.or_kleene(gathered, reduced), False))
    rows = blocks.append_column("thread_id", events["thread_id"].take(at)).append_column("gathers", gathered)
    rows = rows.filter(known)
    gathers = pc.fill_null(rows["gathers"], False)
    nothing = pa.scalar(None, pa.int64())
    return pa.table(
        {
            "name": pc.if_else(gathers, "all_gather", "reduce_scatter"),
            "start_ns": rows["born_ns"],
            "launched_ns": rows["born_ns"],
            "thread_id": rows["thread_id"],
            "in_bytes": pc.if_else(gathers, nothing, rows["size_bytes"]),
            "out_bytes": pc.if_else(gathers, rows["size_bytes"], nothing),
            "in_address": pc.if_else(gathers, nothing, rows["address"]),
            "out_address": pc.if_else(gathers, rows["address"], nothing),
            "event_id": rows["born_event_id"],
            "source": pa.repeat(pa.scalar("log"), rows.num_rows),
        }
    )


def what_it_does(name: str | None) -> int:
    """GATHER, REDUCE or OTHER, by the name of an operation.

    >>> [what_it_does(name) for name in ("_allgather_base", "ncclReduceScatter", "allreduce", "reduce_scatter_fn")]
    [1, 2, 2, 2]
    >>> [what_it_does(name) for name in ("broadcast", "all_to_all", "wait", None)]
    [0, 0, 0, 0]
    """
    plain = (name or "").lower().replace("_", "")
    if "allgather" in plain:
        return GATHER
    return REDUCE if plain in _REDUCTIONS or "reducescatter" in plain or "allreduce" in plain else OTHER


class _Calls:
    """Columns of ``collectives``; NULL where unknown. ``address`` is that of the buffer that ZeRO owns."""

    def __init__(self, rows: pa.Table) -> None:
        names = pc.dictionary_encode(rows["name"]).combine_chunks()
        does = np.array([what_it_does(name) for name in names.dictionary.to_pylist()], np.int64)
        self.what: Ints = does[ints(names.indices)] if len(does) else np.empty(0, np.int64)
        columns = {
            name: ints(rows[name], NULL) if name in rows.schema.names else np.full(rows.num_rows, NULL)
            for name in ("start_ns", "launched_ns", "thread_id", "in_bytes", "out_bytes", "in_numel", "out_numel",
                         "group_size", "in_address", "out_address")
        }  # fmt: skip
        self.start, self.launched, self.thread = (columns[n] for n in ("start_ns", "launched_ns", "thread_id"))
        self.in_bytes, self.out_bytes = columns["in_bytes"], columns["out_bytes"]
        self.in_numel, self.out_numel, self.group = columns["in_numel"], columns["out_numel"], columns["group_size"]
        self.address: Ints = np.where(self.what == GATHER, columns["out_address"], columns["in_address"])


@dataclass(frozen=True)
class _Events:
    """Events that launch collectives, in order of their begin; NULL where unknown."""

    id: Ints
    what: Ints
    start: Ints
    end: Ints
    thread: Ints
    full: Ints
    shard: Ints
    numel: Ints
    params: Ints

    @classmethod
    def of(cls, log: Mapping[str, pa.Table]) -> _Events:
        rows = log["zero_events"]
        kinds = pc.dictionary_encode(pc.fill_null(rows["kind"], Kind.GATHER.value)).combine_chunks()
        does = np.array([_LAUNCHING.get(kind, OTHER) for kind in kinds.dictionary.to_pylist()], np.int64)
        what = does[ints(kinds.indices)] if len(does) else np.empty(0, np.int64)
        rows, what = rows.filter(pa.array(what != OTHER)), what[what != OTHER]
        order = np.argsort(ints(rows["start_ns"]), kind="stable")
        rows, what = rows.take(pa.array(order)), what[order]
        moved, params = log["zero_event_params"], log["params"]
        numel = params["numel"].take(Lookup(params["param_id"]).find(moved["param_id"])) if params.num_rows else None
        at = ints(Lookup(rows["event_id"]).find(moved["event_id"]))
        total = np.zeros(rows.num_rows + 1, np.int64)
        if numel is not None:
            np.add.at(total, at, ints(numel, 0))
        return cls(
            ints(rows["event_id"]),
            what,
            ints(rows["start_ns"]),
            ints(rows["end_ns"], ALIVE),
            ints(rows["thread_id"]),
            ints(rows["full_bytes"]),
            ints(rows["shard_bytes"]),
            np.where(total[:-1] > 0, total[:-1], NULL),
            ints(rows["param_count"], 0),
        )


def _open_at(calls: _Calls, launched: Ints, events: _Events, some: Ints) -> Ints:
    """The innermost of some events that was open on each call's thread when it was launched."""
    found = np.full(len(launched), NULL)
    threads = calls.thread[launched]
    for thread in np.unique(threads):
        here = np.flatnonzero(threads == thread)
        own = some if thread == NULL else some[(events.thread[some] == thread) | (events.thread[some] == NULL)]
        at = Innermost(events.start[own], events.end[own]).at(calls.launched[launched[here]])
        found[here] = np.where(at == NONE, NULL, np.append(own, NULL)[at])
    return found


class _Storages:
    """Buffers that the events registered."""

    def __init__(self, blocks: pa.Table, events: _Events) -> None:
        self._events = events
        event = ints(Lookup(pa.array(events.id)).find(blocks["born_event_id"]), NULL)
        known = (event != NULL) & (ints(blocks["address"]) != NULL)
        self._event, self._address = event[known], ints(blocks["address"])[known]
        self._size = ints(blocks["size_bytes"], 0)[known]
        self._places = np.unique(self._address)
        key = self._event * (len(self._places) + 1) + np.searchsorted(self._places, self._address)
        order = np.argsort(key, kind="stable")
        self._key = key[order]
        self._event, self._address, self._size = self._event[order], self._address[order], self._size[order]

    def contradict(self, event: Ints, address: Ints) -> Flags:
        """Where an event registered buffers, and the call's lies in none of them."""
        wanted = np.flatnonzero((event != NULL) & (address != NULL) & np.isin(event, self._event))
        wrong = np.zeros(len(event), bool)
        # The last buffer of the event that begins at or before the address.
        before = np.searchsorted(self._places, address[wanted], "right") - 1
        at = np.searchsorted(self._key, event[wanted] * (len(self._places) + 1) + before, "right") - 1
        within = (at >= 0) & (self._event[at] == event[wanted])
        within &= (self._address[at] <= address[wanted]) & (address[wanted] < self._address[at] + self._size[at])
        wrong[wanted] = ~within
        return wrong

    def open_with(self, calls: _Calls, some: Ints, what: int) -> Ints:
        """The one event that registered a call's buffer and was open when it was launched."""
        return self._one(calls, some, what, calls.launched[some])

    def in_turn(self, calls: _Calls, some: Ints, what: int) -> Ints:
        """Calls of unknown launch: the n-th one with a buffer is of the n-th event that registered it."""
        found = np.full(len(some), NULL)
        known = np.flatnonzero(calls.address[some] != NULL)
        mine = np.flatnonzero(self._events.what[self._event] == what)
        by_call = known[np.lexsort((calls.start[some[known]], calls.address[some[known]]))]
        by_event = mine[np.lexsort((self._events.start[self._event[mine]], self._address[mine]))]
        call_address, event_address = calls.address[some[by_call]], self._address[by_event]
        for address in np.unique(call_address):
            first, last = np.searchsorted(call_address, [address, address + 1])
            low, high = np.searchsorted(event_address, [address, address + 1])
            events = self._event[by_event[low:high]]
            turn = by_call[first:last]
            if len(events) == len(turn) and bool((self._events.start[events] <= calls.start[some[turn]]).all()):
                found[turn] = events
        return found

    def _one(self, calls: _Calls, some: Ints, what: int, ts: Ints) -> Ints:
        mine = np.flatnonzero(self._events.what[self._event] == what)
        order = mine[np.argsort(self._address[mine], kind="stable")]
        found = np.full(len(some), NULL)
        first, last = (np.searchsorted(self._address[order], calls.address[some], side) for side in ("left", "right"))
        for place, (low, high, moment) in enumerate(zip(first.tolist(), last.tolist(), ts.tolist(), strict=True)):
            events = np.unique(self._event[order[low:high]])
            open_ = events[(self._events.start[events] <= moment) & (moment < self._events.end[events])]
            if len(open_) == 1:
                found[place] = open_[0]
        return found


def _in_turn(calls: _Calls, some: Ints, events: _Events, candidates: Ints) -> Ints:
    """Calls of which only the kernel is known: as they ran, one an event, when sizes and times allow one way only.

    The kernels may be a stretch of what the events launched. Among the ways that fit, the latest is taken: a host is
    never a whole step ahead of its device, since it waits for it in each.
    """
    found = np.full(len(some), NULL)
    order = np.argsort(calls.start[some], kind="stable")
    turn, count = some[order], len(some)
    if not count or count > len(candidates):
        return found
    sent = calls.in_bytes[turn]
    asked = np.where(events.what[candidates] == GATHER, events.shard[candidates], events.full[candidates])
    begun = events.start[candidates]
    sized = bool((sent != NULL).all() and (asked != NULL).all())
    shifts = np.arange(len(candidates) - count + 1)
    if sized:
        shifts = shifts[(asked[shifts] == sent[0]) & (begun[shifts] <= calls.start[turn[0]])]
    elif len(shifts) > 1:
        return found
    for shift in shifts[::-1][:_MOST_WAYS].tolist():
        way = slice(shift, shift + count)
        if (not sized or np.array_equal(sent, asked[way])) and bool((begun[way] <= calls.start[turn]).all()):
            found[order] = candidates[way]
            break
    return found


def _sizes_agree(calls: _Calls, event: Ints, events: _Events) -> Flags:
    """For each call, whether what all calls of its event move fits the event's parameters, as far as both are known."""
    count = len(events.id)
    place = np.where(event == NULL, count, event)

    def total(values: Ints) -> Ints:
        sums, unknown = np.zeros(count + 1, np.int64), np.zeros(count + 1, bool)
        np.add.at(sums, place, values)
        unknown[place[values == NULL]] = True
        return np.where(unknown, NULL, sums)[:-1]

    sent, got = total(calls.in_bytes), total(calls.out_bytes)
    sent_numel, got_numel = total(calls.in_numel), total(calls.out_numel)
    group = np.ones(count + 1, np.int64)
    np.maximum.at(group, place, calls.group)
    ranks = group[:-1]
    whole, whole_numel = np.where(events.what == GATHER, (got, got_numel), (sent, sent_numel))
    padding = ranks * np.maximum(events.params, 1)
    agrees = _within(whole, events.full, padding * _MOST_PADDING) | _within(whole_numel, events.numel, padding)
    # A shard is padded as its gather is.
    agrees |= (events.what == GATHER) & (events.shard != NULL) & (
        (sent == events.shard) | ((got == events.shard * ranks) & (got != NULL))
    )  # fmt: skip
    told = ((sent != NULL) | (got != NULL)) & (events.full != NULL) & (events.params > 0)
    return np.append(agrees | ~told, True)[place]


def _within(moved: Ints, asked: Ints, padding: Ints) -> Flags:
    within: Flags = (moved != NULL) & (asked != NULL) & (moved >= asked) & (moved <= asked + padding)
    return within
