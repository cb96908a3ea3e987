"""What is allocated on the simulated devices: every storage from its birth to its death.

Sizes come from the storages of fake tensors, which hold no data. A storage's death is seen by a weak reference's
callback, so it is exact, views and autograd's saved tensors included. On the GPU a model of PyTorch's caching allocator
says where each block lies, what it really takes, and how much is reserved.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeropeak.profile.allocator import Allocator

FIRST_HOST_ADDRESS: Final = 1 << 60
"""Addresses in host memory are made up: each allocation gets one of its own, far from the GPU's."""

Row = tuple[int, str, str, int, int, int, int | None, int]
"""ts_ns, action, device, address, size_bytes, allocated_bytes after it, reserved_bytes after it, stream."""


@dataclass(slots=True)
class Block:
    """One allocation that has not ended. ``number`` is its key in the allocator's model."""

    number: int
    device: str
    address: int
    requested_bytes: int
    size_bytes: int
    stream: int
    reference: weakref.ref[Any] | None
    pinned: bool = False


@dataclass(slots=True)
class Total:
    """Bytes allocated on one device: now, the highest since the window began, since the program said so, and ever."""

    now: int = 0
    window_max: int = 0
    programs_max: int = 0
    max: int = 0

    def add(self, size: int) -> None:
        """Allocate, or free with a negative size."""
        self.now += size
        self.window_max = max(self.window_max, self.now)
        self.programs_max = max(self.programs_max, self.now)
        self.max = max(self.max, self.now)


class Ledger:
    """Allocations of one process.

    Args:
        clock: gives the moment of each allocation and free.
        write: takes a row for each of them.
        main: device that the allocator's model is of; any other is host memory.
        allocator: the model.
    """

    def __init__(self, clock: Callable[[], int], write: Callable[[Row], None], main: str, allocator: Allocator) -> None:
        self._clock = clock
        self._write = write
        self._main = main
        self._allocator = allocator
        self._blocks: dict[int, Block] = {}
        self._numbers = itertools.count(1)
        self._next_host = FIRST_HOST_ADDRESS
        self._totals: dict[str, Total] = {}
        self.stream = 0
        self.pinned = Total()
        self.programs_reserved_max = 0

    @property
    def reserved_bytes(self) -> int:
        """Memory that the allocator holds on the main device."""
        return self._allocator.reserved_bytes

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

    def reset_programs_max(self) -> None:
        """The program asks for its own highest bytes from here on; the windows are the capture's."""
        total = self.total(self._main)
        total.programs_max = total.now
        self.programs_reserved_max = self.reserved_bytes

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
            if size == known.requested_bytes:
                return
            self._end(key, known)  # it was resized: a new allocation in place of the old
        if not size:
            return
        blocks = self._blocks

        def died(_: object) -> None:
            block = blocks.get(key)
            if block is not None and block.reference is reference:
                self._end(key, block)

        reference = weakref.ref(storage, died)
        self._begin(key, device, size, reference)

    def resized(self, storage: Any) -> None:
        """Take note that a known storage has another size now."""
        known = self._blocks.get(storage._cdata)
        if known is not None:
            self.see(storage, known.device)

    def record_stream(self, storage: Any, stream: int) -> None:
        """A storage is used on another stream: its memory is reused only when that one is done."""
        block = self._blocks.get(storage._cdata)
        if block is not None and block.device == self._main:
            self._allocator.record_stream(block.number, stream)

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
        return self._begin(-next(self._numbers), self._main, size, None).address

    def flash(self, size: int) -> None:
        """Allocate on the main device and free at once: a kernel's temporary."""
        key = -next(self._numbers)
        self._end(key, self._begin(key, self._main, size, None))

    def empty_cache(self) -> None:
        """Give back to the device what is reserved and free."""
        self._allocator.empty_cache()

    def address(self, storage: Any) -> int:
        """Simulated address of a storage; 0 for one without memory."""
        block = self._blocks.get(storage._cdata)
        return 0 if block is None else block.address

    def close(self) -> None:
        """Drop every reference, so that no callback writes afterwards."""
        self._blocks.clear()

    def _begin(self, key: int, device: str, requested: int, reference: weakref.ref[Any] | None) -> Block:
        number = next(self._numbers)
        size = requested
        if device == self._main:
            address = self._allocator.allocate(number, requested, self.stream)
            size = self._allocator.block_bytes(number)
        else:
            address, self._next_host = self._next_host, self._next_host + requested
        block = self._blocks[key] = Block(number, device, address, requested, size, self.stream, reference)
        total = self.total(device)
        total.add(size)
        self._row("alloc", block, total)
        return block

    def _end(self, key: int, block: Block) -> None:
        del self._blocks[key]
        total = self.total(block.device)
        total.add(-block.size_bytes)
        if block.device == self._main:
            self._allocator.free(block.number)
        if block.pinned:
            self.pinned.add(-block.size_bytes)
        self._row("free", block, total)

    def _row(self, action: str, block: Block, total: Total) -> None:
        reserved = None
        if block.device == self._main:
            reserved = self._allocator.reserved_bytes
            self.programs_reserved_max = max(self.programs_reserved_max, reserved)
        self._write(
            (self._clock(), action, block.device, block.address, block.size_bytes, total.now, reserved, block.stream)
        )
