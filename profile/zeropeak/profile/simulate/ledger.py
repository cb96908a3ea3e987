"""What is allocated on the simulated devices: every storage from its birth to its death, rounded as CUDA's allocator.

Sizes come from the storages of fake tensors, which hold no data. A storage's death is seen by a weak reference's
callback, so it is exact, views and autograd's saved tensors included.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

ROUND_BYTES: Final = 512
"""CUDA's caching allocator hands out multiples of this (``kMinBlockSize``), and counts them as allocated."""

FIRST_ADDRESS: Final = 1 << 40
"""Addresses are made up: each allocation gets one of its own, so none is ever used twice."""

Row = tuple[int, str, str, int, int, int, int]
"""ts_ns, action, device, address, size_bytes, allocated_bytes after it, stream."""


def rounded(size: int) -> int:
    """Bytes that CUDA's allocator takes for a request.

    >>> rounded(1), rounded(512), rounded(513)
    (512, 512, 1024)
    """
    return -(-size // ROUND_BYTES) * ROUND_BYTES


@dataclass(slots=True)
class Block:
    """One allocation that has not ended."""

    device: str
    address: int
    size_bytes: int
    stream: int
    reference: weakref.ref[Any] | None
    pinned: bool = False


@dataclass(slots=True)
class Total:
    """Bytes allocated on one device: now, the highest since the window began, and the highest ever."""

    now: int = 0
    window_max: int = 0
    max: int = 0

    def add(self, size: int) -> None:
        """Allocate, or free with a negative size."""
        self.now += size
        self.window_max = max(self.window_max, self.now)
        self.max = max(self.max, self.now)


class Ledger:
    """Allocations of one process.

    Args:
        clock: gives the moment of each allocation and free.
        write: takes a row for each of them.
        main: device whose allocator rounds sizes; any other is host memory.
    """

    def __init__(self, clock: Callable[[], int], write: Callable[[Row], None], main: str) -> None:
        self._clock = clock
        self._write = write
        self._main = main
        self._blocks: dict[int, Block] = {}
        self._next = FIRST_ADDRESS
        self._totals: dict[str, Total] = {}
        self.stream = 0
        self.pinned = Total()

    def total(self, device: str) -> Total:
        """Bytes on a device."""
        found = self._totals.get(device)
        if found is None:
            found = self._totals[device] = Total()
        return found

    def reset_window(self, device: str) -> None:
        """Start a new window for ``window_max``."""
        total = self.total(device)
        total.window_max = total.now

    def see(self, storage: Any, device: str) -> None:
        """Take note of a storage that an operation gave out; one that is known, or empty, changes nothing.

        Args:
            storage: ``UntypedStorage`` of a fake tensor.
            device: where the tensor is.
        """
        key = storage._cdata
        size = storage.nbytes()
        known = self._blocks.get(key)
        if known is not None:
            if (rounded(size) if known.device == self._main else size) == known.size_bytes:
                return
            self._end(key, known)  # it was resized: a new allocation in place of the old
        if not size:
            return
        if device == self._main:
            size = rounded(size)
        blocks = self._blocks

        def died(_: object) -> None:
            block = blocks.get(key)
            if block is not None and block.reference is reference:
                self._end(key, block)

        reference = weakref.ref(storage, died)
        self._begin(key, Block(device, self._next, size, self.stream, reference))

    def resized(self, storage: Any) -> None:
        """Take note that a known storage has another size now."""
        known = self._blocks.get(storage._cdata)
        if known is not None:
            self.see(storage, known.device)

    def pin(self, storage: Any) -> None:
        """A storage in host memory is page-locked."""
        block = self._blocks.get(storage._cdata)
        if block is not None and not block.pinned:
            block.pinned = True
            self.pinned.add(block.size_bytes)

    def is_pinned(self, storage: Any) -> bool:
        """Whether a storage is page-locked."""
        block = self._blocks.get(storage._cdata)
        return block is not None and block.pinned

    def hold(self, size: int) -> int:
        """Allocate on the main device what no tensor stands for, until the end; returns its address."""
        address = self._next
        self._begin(-address, Block(self._main, address, rounded(size), self.stream, None))
        return address

    def flash(self, size: int) -> None:
        """Allocate on the main device and free at once: a kernel's temporary."""
        key = -self._next
        block = Block(self._main, self._next, rounded(size), self.stream, None)
        self._begin(key, block)
        self._end(key, block)

    def address(self, storage: Any) -> int:
        """Simulated address of a storage; 0 for one without memory."""
        block = self._blocks.get(storage._cdata)
        return 0 if block is None else block.address

    def close(self) -> None:
        """Drop every reference, so that no callback writes afterwards."""
        self._blocks.clear()

    def _begin(self, key: int, block: Block) -> None:
        self._next += rounded(block.size_bytes)
        self._blocks[key] = block
        total = self.total(block.device)
        total.add(block.size_bytes)
        self._row("alloc", block, total)

    def _end(self, key: int, block: Block) -> None:
        del self._blocks[key]
        total = self.total(block.device)
        total.add(-block.size_bytes)
        if block.pinned:
            self.pinned.add(-block.size_bytes)
        self._row("free", block, total)

    def _row(self, action: str, block: Block, total: Total) -> None:
        self._write(
            (
                self._clock(),
                action,
                block.device,
                block.address,
                block.size_bytes,
                total.now,
                block.stream,
            )
        )
