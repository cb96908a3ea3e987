"""The allocator's state at the moment of the dump: segments, and the blocks in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

ALLOCATED: Final = "active_allocated"
PENDING: Final = frozenset({"active_pending_free", "active_awaiting_free"})
"""Freed by its owner while a stream still uses it; torch's documentation has the second word, its code the first."""


@dataclass(frozen=True)
class Dump:
    """Segments and blocks of one device at the dump. Arrays are sorted by address; inactive blocks are left out."""

    segment_address: Ints
    segment_size: Ints
    segment_expandable: Flags
    block_address: Ints
    block_size: Ints
    block_stream: Ints
    block_pending: Flags
    """True where the owner let go already, so that memory_allocated no longer counts the block."""
    damaged: int = 0
    """Segments and blocks left out because an address or a size is missing or no number."""
    claimed_bytes: int | None = None
    """Sum of the segments' own ``allocated_size``; None where one has none."""

    @property
    def reserved_bytes(self) -> int:
        """Sum of the segments."""
        return int(self.segment_size.sum())

    @property
    def allocated_bytes(self) -> int:
        """What ``torch.cuda.memory_allocated`` said at the dump."""
        return int(self.block_size[~self.block_pending].sum())


def no_dump() -> Dump:
    """A dump that knows nothing."""
    none = np.empty(0, np.int64)
    return Dump(none, none, none.astype(np.bool_), none, none, none, none.astype(np.bool_))


@dataclass
class _Rows:
    """Segments as (address, size, expandable), blocks as (address, size, stream, pending), allocated sizes as given."""

    segments: list[tuple[int, int, bool]] = field(default_factory=list)
    blocks: list[tuple[int, int, int, bool]] = field(default_factory=list)
    claimed: list[Any] = field(default_factory=list)


def read_segments(segments: list[Any]) -> dict[int, Dump]:
    """The dump of every device that has segments, by device index.

    Blocks of torch before 2.1 have no address: they lie one after the other from the segment's start.

    >>> blocks = [{"size": 512, "state": "active_allocated"}, {"size": 1536, "state": "inactive"}]
    >>> dump = read_segments([{"device": 0, "address": 4096, "total_size": 2048, "stream": 0, "blocks": blocks}])[0]
    >>> dump.reserved_bytes, dump.allocated_bytes, dump.block_address.tolist()
    (2048, 512, [4096])
    """
    rows: dict[int, _Rows] = {}
    damaged: dict[int, int] = {}
    for segment in segments:
        if not isinstance(segment, dict):
            damaged[0] = damaged.get(0, 0) + 1
            continue
        device = segment.get("device", 0)
        address, size = segment.get("address"), segment.get("total_size")
        if not (_number(device) and _number(address) and _number(size)):
            damaged[0] = damaged.get(0, 0) + 1
            continue
        found = rows.setdefault(device, _Rows())
        found.segments.append((address, size, bool(segment.get("is_expandable"))))
        found.claimed.append(segment.get("allocated_size"))
        for block in _blocks(segment):
            if block is None:
                damaged[device] = damaged.get(device, 0) + 1
            else:
                found.blocks.append(block)
    devices = sorted(rows.keys() | damaged)
    return {device: _dump(rows.get(device, _Rows()), damaged.get(device, 0)) for device in devices}


def _number(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 63


def _blocks(segment: dict[str, Any]) -> Iterator[tuple[int, int, int, bool] | None]:
    """Active blocks of a segment as (address, size, stream, pending); None for one that cannot be used."""
    following = segment["address"]
    stream = segment.get("stream", 0)
    blocks = segment.get("blocks")
    for block in blocks if isinstance(blocks, list) else ():
        if not isinstance(block, dict):
            yield None
            continue
        address, size, state = block.get("address", following), block.get("size"), block.get("state")
        if not (_number(address) and _number(size)):
            yield None
            continue
        following = address + size
        if state == ALLOCATED or state in PENDING:
            yield address, size, stream if _number(stream) else 0, state != ALLOCATED


def _dump(rows: _Rows, damaged: int) -> Dump:
    segments, blocks = sorted(rows.segments), sorted(rows.blocks)
    return Dump(
        segment_address=np.array([segment[0] for segment in segments], np.int64),
        segment_size=np.array([segment[1] for segment in segments], np.int64),
        segment_expandable=np.array([segment[2] for segment in segments], np.bool_),
        block_address=np.array([block[0] for block in blocks], np.int64),
        block_size=np.array([block[1] for block in blocks], np.int64),
        block_stream=np.array([block[2] for block in blocks], np.int64),
        block_pending=np.array([block[3] for block in blocks], np.bool_),
        damaged=damaged,
        claimed_bytes=sum(rows.claimed) if all(map(_number, rows.claimed)) else None,
    )
