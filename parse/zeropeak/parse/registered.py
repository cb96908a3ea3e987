"""Blocks with what the event log knows about them: category, owner, release, and the event they were born in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.blocks import ALIVE, BEFORE, MENDS, Blocks
from zeropeak.parse.compact import same, words
from zeropeak.parse.lookup import ints
from zeropeak.profile.labels import Stored

if TYPE_CHECKING:
    from zeropeak.parse.timeline import Spans, Timeline

    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]

PRIORITY: Final = {
    name: place
    for place, name in enumerate(
        (
            Stored.PARAM_FULL,
            Stored.PARAM_PERSISTENT,
            Stored.PARAM_SHARD,
            Stored.PARAM_REPLICATED,
            Stored.FP32_MASTER,
            Stored.OPTIMIZER_STATE,
            Stored.GRADIENT_SHARD,
            Stored.GRADIENT_FULL,
            Stored.GRADIENT_BUCKET,
            Stored.INPUT,
            Stored.MODULE_BUFFER,
            Stored.GATHER_BUFFER,
        )
    )
}
"""Which registration names a block that has several: a gathered parameter can be a view of its gather's flat buffer."""


def block_table(
    blocks: Blocks, block_of_storage: Ints, storages: pa.Table, timeline: Timeline, device: str, source: str
) -> pa.Table:
    """Rows of memory_blocks for the blocks of one device, in their order; ``block_id`` is the row.

    Args:
        blocks: lifetimes.
        block_of_storage: block of each row of ``storages``, -1 for none.
        storages: the registered storages (memory_blocks rows of the event log).
        timeline: the rank's events.
        device: name of the device.
        source: reader that the blocks came from.
    """
    count = len(blocks.born)
    rank = [PRIORITY.get(name, len(PRIORITY)) for name in storages["category"].to_pylist()]
    # The best registration of each block; among equals the latest.
    matched = np.flatnonzero(block_of_storage >= 0)
    order = np.lexsort(
        (-ints(storages["born_ns"])[matched], np.array(rank, np.int64)[matched], block_of_storage[matched])
    )
    owned, first = np.unique(block_of_storage[matched][order], return_index=True)
    best = np.full(count, -1)
    best[owned] = matched[order][first]
    chosen = pa.array(best, pa.int64(), mask=best < 0)
    released = _released(count, block_of_storage, storages)
    known_birth = blocks.born != BEFORE
    born_mask = ~known_birth
    freed = pa.array(blocks.freed, pa.int64(), mask=blocks.freed == ALIVE)
    # A column of nothing but nulls takes no room until it is written.
    nothing = pa.nulls(count)

    def of_storage(name: str) -> pa.Array:
        return pc.take(storages[name].combine_chunks(), chosen) if len(matched) else nothing

    def at_birth(spans: Spans, name: str) -> pa.Array:
        if not spans.rows.num_rows:
            return nothing
        values = spans.column_at(name, blocks.born)
        return pc.if_else(pa.array(known_birth), values, pa.scalar(None, values.type))

    return pa.table(
        {
            "block_id": np.arange(count),
            "device": same(device, count),
            "address": blocks.address,
            "size_bytes": blocks.size,
            "born_ns": pa.array(blocks.born, pa.int64(), mask=born_mask),
            "free_requested_ns": freed,
            "freed_ns": freed,
            "category": of_storage("category"),
            "owner": of_storage("owner"),
            "param_id": of_storage("param_id"),
            "storage_id": of_storage("storage_id"),
            "module": _first_known(of_storage("module"), at_birth(timeline.modules, "module")),
            "released_ns": pa.array(released, pa.int64(), mask=released == ALIVE) if len(matched) else nothing,
            "born_event_id": at_birth(timeline.anything, "event_id"),
            "born_phase": at_birth(timeline.phases, "phase"),
            "born_step": at_birth(timeline.phases, "step"),
            "mend": words(blocks.mend, MENDS),
            "source": same(source, count),
        }
    )


def by_birth(blocks: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Rows of memory_blocks in two parts, those from before the known history last.

    So has the table them; where it is given them first, all of them must be in memory at once to be sorted.
    """
    before = blocks["born_ns"].null_count
    first = before if blocks["born_ns"].slice(0, before).null_count == before else 0
    return blocks.slice(first), blocks.slice(0, first)


def _first_known(values: pa.Array, others: pa.Array) -> pa.Array:
    """The values, the others where those are null; either may be a column of nothing."""
    if pa.types.is_null(values.type) or pa.types.is_null(others.type):
        return others if pa.types.is_null(values.type) else values
    return pc.coalesce(values, others)


def unmatched_table(storages: pa.Table, timeline: Timeline, device: str | None, first_id: int) -> pa.Table:
    """Rows of memory_blocks for registered storages that no allocator block was found for."""
    born = ints(storages["born_ns"])
    columns = {
        "block_id": pa.array(np.arange(first_id, first_id + storages.num_rows), pa.int64()),
        "device": pa.repeat(pa.scalar(device, pa.string()), storages.num_rows),
        "born_phase": timeline.phases.column_at("phase", born),
        "born_step": timeline.phases.column_at("step", born),
    }
    storages = storages.combine_chunks()
    columns["module"] = pc.coalesce(storages["module"], timeline.modules.column_at("module", born))
    for name, values in columns.items():
        place = storages.schema.get_field_index(name)
        storages = storages.append_column(name, values) if place < 0 else storages.set_column(place, name, values)
    return storages


def _released(count: int, block_of_storage: Ints, storages: pa.Table) -> Ints:
    """When ZeRO had released all gathered parameters that lie in a block; ALIVE where it has not."""
    gathered = pa.array([Stored.PARAM_FULL.value, Stored.PARAM_PERSISTENT.value])
    full = pc.is_in(storages["category"], gathered).to_numpy(zero_copy_only=False)
    place = np.flatnonzero(full & (block_of_storage >= 0))
    last = np.full(count, BEFORE)
    np.maximum.at(last, block_of_storage[place], ints(storages["released_ns"], ALIVE)[place])
    return np.where(last == BEFORE, ALIVE, last)
