"""What autograd had saved after a forward, beside the blocks that were alive then: a check of ``activations``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from zeropeak.parse.composition import NAMES
from zeropeak.parse.lookup import Lookup, ints
from zeropeak.parse.schema import BY_NAME

if TYPE_CHECKING:
    from zeropeak.parse.composition import Composition
    from zeropeak.parse.memory import Memory


def saved_tensors(saved: pa.Table, memory: Memory, composition: Composition) -> pa.Table:
    """Rows of the table of that name: each saved storage with the block at its address, and what that was.

    Args:
        saved: rows of the event log, without ``block_id`` and ``category``.
        memory: the rank's memory.
        composition: its categories.
    """
    block, code = np.full(saved.num_rows, -1), np.full(saved.num_rows, -1)
    times = ints(saved["ts_ns"])
    for ts in np.unique(times).tolist() if memory.curve is not None else []:
        assert memory.curve is not None
        alive = memory.alive(memory.curve.position(ts), ts)
        codes = composition.codes(ts, alive)
        rows = np.flatnonzero(times == ts)
        at = Lookup(memory.blocks["address"].take(pa.array(alive))).find(saved["address"].take(pa.array(rows)))
        found = np.flatnonzero(at.is_valid().to_numpy(zero_copy_only=False))
        place = ints(at)[found]
        block[rows[found]] = ints(memory.blocks["block_id"])[alive[place]]
        code[rows[found]] = codes[place]
    names = [name for name in BY_NAME["saved_tensors"].unranked.names if name not in {"block_id", "category"}]
    columns = {name: saved[name] for name in names}
    columns["block_id"] = pa.array(block, pa.int64(), mask=block < 0)
    columns["category"] = pa.array(NAMES).take(pa.array(code, pa.int64(), mask=code < 0))
    return pa.table(columns)
