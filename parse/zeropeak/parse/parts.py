"""What was alive at moments, as rows: by category, and block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from zeropeak.parse.composition import NAMES, UNATTRIBUTED
from zeropeak.parse.schema import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeropeak.parse.composition import Composition

    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
    Codes = np.ndarray[tuple[int], np.dtype[np.int8]]

_OF_BLOCK: Final = ("block_id", "size_bytes", "module", "owner", "stream", "born_event_id")


class Parts:
    """Collects moments of one kind.

    Args:
        kind: ``peak`` or ``mark``: rows of ``<kind>_composition`` and ``<kind>_blocks``.
        blocks: rows of memory_blocks of the rank's device.
        composition: their categories.
    """

    def __init__(self, kind: str, blocks: pa.Table, composition: Composition) -> None:
        self._kind = kind
        self._composition = composition
        self._sums: list[dict[str, Any]] = []
        self._keys: list[dict[str, Any]] = []
        self._rows: list[Ints] = []
        self._codes: list[Codes] = []
        self._gaps: list[int] = []
        self._times: list[int] = []
        missing = [name for name in _OF_BLOCK if name not in blocks.schema.names]
        for name in missing:
            blocks = blocks.append_column(
                name, pa.nulls(blocks.num_rows, BY_NAME["memory_blocks"].arrow.field(name).type)
            )
        self._blocks = blocks.select(_OF_BLOCK).combine_chunks()

    def add(self, key: dict[str, Any], ts: int, alive: Ints, allocated_bytes: int) -> None:
        """A moment.

        Args:
            key: its columns in the tables.
            ts: when, ns.
            alive: rows of the blocks that were alive.
            allocated_bytes: what was measured.
        """
        codes = self._composition.codes(ts, alive)
        for category, (size, count) in self._composition.sums(codes, alive, allocated_bytes).items():
            self._sums.append({**key, "category": category, "size_bytes": size, "block_count": count})
        self._keys.append(key)
        self._times.append(ts)
        self._rows.append(alive)
        self._codes.append(codes)
        self._gaps.append(allocated_bytes - self._composition.size_of(alive))

    def moments(self) -> Iterator[tuple[int, Ints]]:
        """Time, and rows of the blocks that were alive, of each moment."""
        return zip(self._times, self._rows, strict=True)

    def composition(self) -> pa.Table:
        """Rows by category; those of a moment sum to what was measured."""
        schema = BY_NAME[f"{self._kind}_composition"].unranked
        return pa.Table.from_pylist(self._sums, schema=schema)

    def blocks(self) -> pa.Table:
        """Rows by block, and one without a block for what the blocks do not explain; they sum to the same."""
        schema = BY_NAME[f"{self._kind}_blocks"].unranked
        if not self._keys:
            return schema.empty_table()
        keys = pa.Table.from_pylist(self._keys)
        gaps = np.flatnonzero(self._gaps)
        moment = np.concatenate([np.repeat(np.arange(len(self._rows)), [len(rows) for rows in self._rows]), gaps])
        row = np.concatenate([*self._rows, np.full(len(gaps), -1)])
        code = np.concatenate([*self._codes, np.full(len(gaps), UNATTRIBUTED)])
        of_block = self._blocks.take(pa.array(row, pa.int64(), mask=row < 0))
        columns: dict[str, Any] = {name: keys[name].take(pa.array(moment)) for name in keys.schema.names}
        columns |= {name: of_block[name] for name in _OF_BLOCK}
        columns["category"] = pa.array(NAMES).take(pa.array(code))
        size = of_block["size_bytes"].to_numpy(zero_copy_only=False).copy() if len(gaps) else None
        if size is not None:
            size[len(size) - len(gaps) :] = np.array(self._gaps)[gaps]
            columns["size_bytes"] = pa.array(size.astype(np.int64))
        nothing = pa.nulls(len(row))
        return pa.table({name: columns.get(name, nothing) for name in schema.names}, schema=schema)
