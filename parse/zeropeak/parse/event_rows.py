"""Rows of memory_events of one device in time order, with the totals and the frees that pairing gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.blocks import MENDS
from zeropeak.parse.compact import ROWS, same, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeropeak.parse.blocks import Blocks
    from zeropeak.parse.curve import Edges

AS_RECORDED: Final = ("reserved_bytes", "stream", "thread_id")
"""Columns of memory_events that stay as they were recorded."""


@dataclass(frozen=True)
class EventRows:
    """Makes its rows whenever it is gone through, piece by piece: whole they take more than what they are made of.

    Attributes:
        recorded: of each event as recorded, columns of AS_RECORDED in one piece.
        blocks: what the events were paired to.
        order: their births and ends in time order: the events, and the frees that were added.
        device: name of the device.
        source: reader that the events came from.
    """

    recorded: pa.Table
    blocks: Blocks
    order: Edges
    device: str | None
    source: str

    def __iter__(self) -> Iterator[pa.Table]:
        for begin in range(0, len(self.order.ts), ROWS):
            yield self._piece(slice(begin, begin + ROWS))

    def _piece(self, some: slice) -> pa.Table:
        blocks, block, birth = self.blocks, self.order.block[some], self.order.birth[some]
        row = np.where(birth, blocks.alloc_row[block], blocks.free_row[block])
        recorded = pa.array(row, mask=row < 0)
        columns = {
            "device": same(self.device, len(row)),
            "ts_ns": self.order.ts[some],
            "action": words(birth.astype(np.int8), ["free", "alloc"]),
            "address": blocks.address[block],
            "size_bytes": blocks.size[block],
            "allocated_bytes": self.order.allocated[some],
            "mend": words(np.where(birth | (row >= 0), np.int8(0), blocks.mend[block]), MENDS),
            "source": same(self.source, len(row)),
        }
        for name in self.recorded.schema.names:
            columns[name] = pc.take(self.recorded[name], recorded)
        return pa.table(columns)
