"""Rows of memory_events and memory_blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zeropeak.parse.snapshot.columns import constant, integers, table, words
from zeropeak.parse.snapshot.curve import OUT_OF_MEMORY, WORDS
from zeropeak.parse.snapshot.lives import BEFORE, MENDS

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from zeropeak.parse.snapshot.curve import Curve
    from zeropeak.parse.snapshot.entries import Entries
    from zeropeak.parse.snapshot.lives import Lives

    Ints = NDArray[np.int64]


def event_rows(curve: Curve, device: str) -> pa.Table:
    """Rows of memory_events."""
    count = len(curve.ts_ns)
    columns = {
        "device": constant(device, count),
        "ts_ns": integers(curve.ts_ns),
        "action": words(curve.action, WORDS),
        "address": integers(curve.address, curve.action == OUT_OF_MEMORY),
        "size_bytes": integers(curve.size),
        "allocated_bytes": integers(curve.allocated),
        "stream": integers(curve.stream),
        "mend": words(curve.mend, MENDS),
        "source": constant("snapshot", count),
    }
    if curve.reserved is not None:
        columns["reserved_bytes"] = integers(curve.reserved)
    return table(columns)


def block_rows(entries: Entries, lives: Lives, device: str, first_id: int) -> pa.Table:
    """Rows of memory_blocks as the table is sorted: by birth, those of unknown birth last; ids count from ``first_id``.

    Without a history there is no time at which a block that waits for its streams was let go; such a block, which
    memory_allocated does not count, is left out.
    """
    order = np.argsort(lives.born, kind="stable")
    if not len(entries):
        order = order[lives.let_go[order] != BEFORE]
    count = len(order)
    # In order of birth those of unknown birth are first, and so are their ids; in the table they are last.
    unknown = int(np.count_nonzero(lives.born[order] == BEFORE))
    order = np.roll(order, -unknown)
    clock = np.concatenate([entries.ts_ns, entries.ts_ns[-1:], [0, 0]])

    def times(positions: Ints) -> pa.Array:
        some = positions[order]
        return integers(clock[some], (some == BEFORE) | (some == lives.never))

    # Let go before the history: at its first entry at the latest.
    let_go = np.where(lives.let_go == BEFORE, 0, lives.let_go)
    columns = {
        "block_id": integers(np.roll(np.arange(first_id, first_id + count), -unknown)),
        "device": constant(device, count),
        "address": integers(lives.address[order]),
        "size_bytes": integers(lives.size[order]),
        "born_ns": times(lives.born),
        "free_requested_ns": times(let_go),
        "freed_ns": times(lives.freed),
        "stream": integers(lives.stream[order]),
        "mend": words(lives.mend[order], MENDS),
        "source": constant("snapshot", count),
    }
    return table(columns)
