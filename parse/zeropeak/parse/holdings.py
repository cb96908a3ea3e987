"""Full parameters as held in memory: which storage, from when, let go of by which event, ended when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.blocks import ALIVE, BEFORE
from zeropeak.parse.lookup import Lookup, ints, take
from zeropeak.profile.labels import Kind, Stored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeropeak.parse.timeline import Timeline

    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]

_FULL: Final = (Stored.PARAM_FULL.value, Stored.PARAM_PERSISTENT.value)
_STAYS: Final = (Stored.PARAM_SHARD.value, Stored.PARAM_REPLICATED.value)
"""With one rank in the group nothing is gathered: a parameter's full storage is its shard, and no release is due."""


@dataclass(frozen=True)
class Moves:
    """Which event moved which parameter: rows of zero_event_params whose event is known.

    Attributes:
        row: row in zero_event_params.
        event: row in zero_events.
        kind: the event's kind.
        param: parameter id.
    """

    row: Ints
    event: Ints
    kind: np.ndarray
    param: Ints

    @classmethod
    def of(cls, timeline: Timeline, event_params: pa.Table) -> Moves:
        """From the tables."""
        events = timeline.events.rows
        event = ints(Lookup(events["event_id"]).find(event_params["event_id"]))
        row = np.flatnonzero(event >= 0)
        kinds = np.array(events["kind"].to_pylist(), object)
        return cls(row, event[row], take(kinds, event[row]), ints(event_params["param_id"])[row])


@dataclass(frozen=True)
class Holdings:
    """A row for each (parameter, full storage).

    Attributes:
        param: parameter id.
        storage: row of the registered storages.
        born: when it was registered.
        free: row of the free event, -1 when ZeRO never let go.
        release: row of the release event that the free was in, -1 for none.
        let_go: time of the free, ALIVE for none.
        ended: when the storage died, ALIVE when it did not.
        returned: when the allocator had the block back, where a snapshot shows that it took longer; else ``ended``.
    """

    param: Ints
    storage: Ints
    born: Ints
    free: Ints
    release: Ints
    let_go: Ints
    ended: Ints
    returned: Ints

    def __len__(self) -> int:
        return len(self.param)

    @classmethod
    def of(cls, log: Mapping[str, pa.Table], timeline: Timeline, moves: Moves, blocks: pa.Table) -> Holdings:
        """From registrations, and from the events that name a storage: one flat buffer can hold several parameters.

        Args:
            log: zero_event_params and memory_blocks (the registered storages) of the event log.
            timeline: its events.
            moves: its events' parameters.
            blocks: memory_blocks of the rank, for the allocator's side.
        """
        storages = log["memory_blocks"]
        of_move = ints(Lookup(storages["storage_id"]).find(log["zero_event_params"]["storage_id"]))[moves.row]
        named = np.flatnonzero(of_move >= 0)
        full = pc.is_in(storages["category"], pa.array(_FULL)).to_numpy(zero_copy_only=False)
        registered = np.flatnonzero(full & (ints(storages["param_id"]) >= 0))
        param = np.concatenate([ints(storages["param_id"])[registered], moves.param[named]])
        storage = np.concatenate([registered, of_move[named]])
        stays = pc.is_in(storages["category"], pa.array(_STAYS)).to_numpy(zero_copy_only=False)[storage]
        width = max(storages.num_rows, 1)
        key = np.unique(param[~stays] * width + storage[~stays])

        free = np.full(len(key), -1)
        frees = named[moves.kind[named] == Kind.FREE.value]
        wanted = moves.param[frees] * width + of_move[frees]
        place = np.searchsorted(key, wanted)
        known = take(key, np.minimum(place, len(key) - 1)) == wanted if len(key) else np.zeros(len(frees), bool)
        free[place[known]] = moves.event[frees[known]]
        param, storage = key // width, key % width
        events = timeline.events
        parent = take(ints(Lookup(events.rows["event_id"]).find(events.rows["parent_event_id"])), free)
        kinds = np.array(events.rows["kind"].to_pylist(), object)
        in_release = (free >= 0) & (parent >= 0) & (take(kinds, parent) == Kind.RELEASE.value)
        ended = ints(storages["freed_ns"], ALIVE)[storage]
        return cls(
            param, storage, ints(storages["born_ns"], BEFORE)[storage], free, np.where(in_release, parent, -1),
            np.where(free >= 0, take(events.start, free), ALIVE), ended,
            _returned(blocks, storages["storage_id"].take(pa.array(storage)), ended),
        )  # fmt: skip


def _returned(blocks: pa.Table, storage_ids: pa.ChunkedArray, ended: Ints) -> Ints:
    at = ints(Lookup(blocks["storage_id"]).find(storage_ids))
    asked, back = take(ints(blocks["free_requested_ns"], ALIVE), at), take(ints(blocks["freed_ns"], ALIVE), at)
    later = (at >= 0) & (asked != ALIVE) & (back > asked) & (ended != ALIVE)
    return np.where(later, np.maximum(back, ended), ended)
