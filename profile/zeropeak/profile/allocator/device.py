"""The device under the allocator: how much memory it has left, and which addresses it gives out."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from zeropeak.profile.allocator.settings import MIB
from zeropeak.profile.errors import ZeropeakError

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeropeak.profile.allocator.settings import Settings

CHUNK_BYTES: Final = 32 * MIB
"""Address space that the driver takes at once (measured: H200, driver of CUDA 13)."""

TOP_ADDRESS: Final = 0x7F00_0000_0000
"""Where the address space begins; it grows downwards, as the driver's does."""

SegmentAction = Literal["segment_alloc", "segment_free", "segment_map", "segment_unmap"]


class SegmentChange(NamedTuple):
    """Memory that was taken from the device or given back; the actions have torch's names."""

    action: SegmentAction
    address: int
    size_bytes: int
    stream: int


class OutOfMemory(ZeropeakError):
    """A request fits neither into what is cached nor onto the device, after all retries.

    Args:
        requested_bytes: what was asked for.
        segment_bytes: what the device was asked for.
        allocated_bytes: in use at that moment.
        reserved_bytes: held by the allocator, in use or cached in pieces.
        free_bytes: left on the device.
    """

    def __init__(
        self, requested_bytes: int, segment_bytes: int, allocated_bytes: int, reserved_bytes: int, free_bytes: int
    ) -> None:
        super().__init__(requested_bytes, segment_bytes, allocated_bytes, reserved_bytes, free_bytes)
        self.requested_bytes = requested_bytes
        self.segment_bytes = segment_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        self.free_bytes = free_bytes

    def __str__(self) -> str:
        return (
            f"out of memory: {self.requested_bytes:,} bytes need {self.segment_bytes:,} more from the device, which "
            f"has {self.free_bytes:,} left; {self.allocated_bytes:,} of {self.reserved_bytes:,} reserved are in use; "
            "make the batch or the sequence smaller, or try PYTORCH_ALLOC_CONF=expandable_segments:True"
        )


@dataclass
class Device:
    """Memory and addresses of one device, as one process sees them.

    Args:
        total_bytes: memory of the device; None for any amount.
        outside_bytes: what the process takes from it beside the allocator (context, NCCL).
        settings: the allocator's.
        changed: called with every change of a segment.
    """

    total_bytes: int | None
    outside_bytes: int
    settings: Settings
    changed: Callable[[SegmentChange], None] | None = None
    reserved_bytes: int = 0
    peak_reserved_bytes: int = 0

    def __post_init__(self) -> None:
        self.space = AddressSpace()
        fraction = self.settings.memory_fraction
        self.allowed_bytes = int(fraction * self.total_bytes) if self.total_bytes is not None and fraction < 1 else None

    @property
    def free_bytes(self) -> int | None:
        """Memory that is left; None when there is no limit."""
        return None if self.total_bytes is None else self.total_bytes - self.outside_bytes - self.reserved_bytes

    def left_bytes(self) -> int:
        """What the process may still take of a device that has a limit."""
        left = [] if self.free_bytes is None else [self.free_bytes]
        return min(left if self.allowed_bytes is None else [*left, self.allowed_bytes - self.reserved_bytes])

    def allows(self, size: int) -> bool:
        """Whether the process may take so much more (``per_process_memory_fraction``)."""
        return self.allowed_bytes is None or self.reserved_bytes + size <= self.allowed_bytes

    def rejects(self, size: int) -> bool:
        """Whether a request is refused without a retry (``throw_on_cudamalloc_oom``)."""
        total = self.total_bytes
        early = self.settings.reject_early and self.allowed_bytes is None
        return early and total is not None and self.reserved_bytes + size > total

    def take(self, action: SegmentAction, address: int | None, size: int, stream: int) -> int | None:
        """Put memory behind an address, or behind a new one; gives the address, or None when there is too little."""
        free = self.free_bytes
        if free is not None and size > free:
            return None
        if address is None:
            address = self.space.take(size)
        self.reserved_bytes += size
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes
        if self.changed:
            self.changed(SegmentChange(action, address, size, stream))
        return address

    def give(self, action: SegmentAction, address: int, size: int, stream: int) -> None:
        """Take the memory away from behind an address."""
        self.reserved_bytes -= size
        if self.changed:
            self.changed(SegmentChange(action, address, size, stream))


class AddressSpace:
    """Addresses for segments: the lowest hole that fits, else below everything, in whole chunks."""

    def __init__(self) -> None:
        self._bottom = TOP_ADDRESS
        self._end_of: dict[int, int] = {}
        """End of the hole that starts at an address."""
        self._start_of: dict[int, int] = {}
        """Start of the hole that ends at an address."""
        self._starts: dict[int, list[int]] = {}
        """Where holes of a length start, in order; there are few lengths, since segments are of few sizes."""

    def take(self, size: int) -> int:
        """An address for ``size`` bytes."""
        start = min((starts[0] for length, starts in self._starts.items() if length >= size), default=None)
        if start is not None:
            end = self._end_of[start]
            self._fill(start)
            self._dig(start + size, end)
            return start
        top = self._bottom
        self._bottom -= -(-size // CHUNK_BYTES) * CHUNK_BYTES
        self.give(self._bottom + size, top - self._bottom - size)
        return self._bottom

    def give(self, address: int, size: int) -> None:
        """Make addresses free again."""
        start, end = address, address + size
        if start == end:
            return
        if end in self._end_of:
            after, end = end, self._end_of[end]
            self._fill(after)
        if start in self._start_of:
            start = self._start_of[start]
            self._fill(start)
        self._dig(start, end)

    def adopt(self, taken: list[tuple[int, int]]) -> None:
        """Begin with segments (address, size) that are there already; the gaps between them count as taken.

        Raises:
            ValueError: two of them overlap.
        """
        taken = sorted(taken)
        for (start, size), (after, _) in pairwise(taken):
            if start + size > after:
                raise ValueError(f"segments at {start:#x} and {after:#x} overlap")
        if taken:
            self._bottom = taken[0][0] // CHUNK_BYTES * CHUNK_BYTES
        ends = [start + size for start, size in taken]
        limits = [-(-end // CHUNK_BYTES) * CHUNK_BYTES for end in ends]
        for at, (after, _) in enumerate(taken[1:]):
            limits[at] = min(limits[at], after)
        for end, limit in zip(ends, limits, strict=True):
            self._dig(end, limit)

    def _dig(self, start: int, end: int) -> None:
        if start < end:
            self._end_of[start] = end
            self._start_of[end] = start
            insort(self._starts.setdefault(end - start, []), start)

    def _fill(self, start: int) -> None:
        end = self._end_of.pop(start)
        del self._start_of[end]
        starts = self._starts[end - start]
        del starts[bisect_left(starts, start)]
        if not starts:
            del self._starts[end - start]
