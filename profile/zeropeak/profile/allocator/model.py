"""The allocator itself: what is allocated, free, or waiting for another stream."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING

from zeropeak.profile.allocator.blocks import ADDRESS_BITS, Block, Pool, Searches, absorb
from zeropeak.profile.allocator.device import Device, OutOfMemory, SegmentChange
from zeropeak.profile.allocator.expandable import ExpandableSegments
from zeropeak.profile.allocator.held import HeldBlock, HeldSegment, build, show
from zeropeak.profile.allocator.segments import FixedSegments
from zeropeak.profile.allocator.settings import SMALL_BYTES, Settings, least_remainder, round_size, segment_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Allocator:
    """Caching allocator of one device in one process.

    Frees may come in the middle of any other call (a garbage collection drops a tensor, whose end calls ``free``): they
    wait until it is over. Otherwise one thread at a time may use it.

    Args:
        settings: as ``read_conf`` or ``read_environment`` gives them; None for torch's defaults.
        device_bytes: memory of the device; None for any amount, so that nothing is ever freed for want of it.
        outside_bytes: what the process takes from the device beside this allocator.
        lag: allocations that pass before another stream has caught up with a free (``record_stream``): with 0 the
            block is free at the next allocation, as on a device that never waits. None: when ``complete`` or
            ``synchronize`` says so.
        changed: called with every segment that is taken from the device or given back, at that moment.

    Attributes:
        settings: as given.
        allocated_bytes: in blocks that were allocated and not freed (``torch.cuda.memory_allocated``).
        waiting_bytes: in blocks that were freed while another stream still uses them.
        peak_allocated_bytes: highest ``allocated_bytes`` since the beginning or ``reset_peaks``.
        retries: how often everything cached had to go before the device had room (``num_alloc_retries``).
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        device_bytes: int | None = None,
        outside_bytes: int = 0,
        lag: int | None = 0,
        changed: Callable[[SegmentChange], None] | None = None,
    ) -> None:
        if lag is not None and lag < 0:
            raise ValueError(f"lag is a number of allocations, not {lag}")
        self.settings = settings or Settings()
        self.allocated_bytes = 0
        self.waiting_bytes = 0
        self.peak_allocated_bytes = 0
        self.retries = 0
        self._device = Device(device_bytes, outside_bytes, self.settings, changed)
        segments = ExpandableSegments if self.settings.expandable_segments else FixedSegments
        self._segments: FixedSegments | ExpandableSegments = segments(self.settings, self._device)
        self._small: dict[int, Pool] = {}
        self._large: dict[int, Pool] = {}
        self._searches = Searches()
        self._live: dict[int, Block | None] = {}
        self._waiting: dict[int, Block] = {}
        self._lag = lag
        self._allocations = 0
        self._due: deque[tuple[int, int]] = deque()
        self._busy = False
        self._late: list[int] = []

    @property
    def reserved_bytes(self) -> int:
        """Memory taken from the device (``torch.cuda.memory_reserved``)."""
        return self._device.reserved_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """Highest ``reserved_bytes`` since the beginning or ``reset_peaks``."""
        return self._device.peak_reserved_bytes

    def reset_peaks(self) -> None:
        """Begin both peaks anew from the present."""
        self.peak_allocated_bytes = self.allocated_bytes
        self._device.peak_reserved_bytes = self._device.reserved_bytes

    def allocate(self, key: int, requested_bytes: int, stream: int = 0) -> int:
        """Allocate a block.

        Args:
            key: any number that no allocated or waiting block has.
            requested_bytes: before rounding; 0 takes nothing.
            stream: that the block belongs to; only this stream uses it again.

        Returns:
            Its address; 0 for 0 bytes.

        Raises:
            OutOfMemory: the device has too little, even after all that is cached and wholly free went back to it. No
                block is allocated, and the allocator can be used on.
            ValueError: the key is taken, or the size is negative.
        """
        live = self._live
        if key in live or key in self._waiting:
            raise ValueError(f"block {key} is allocated already")
        if requested_bytes <= 0:
            if requested_bytes < 0:
                raise ValueError(f"block {key} of {requested_bytes} bytes")
            live[key] = None
            return 0
        self._busy = True
        try:
            return self._allocate(key, requested_bytes, stream)
        finally:
            self._catch_up()

    def _allocate(self, key: int, requested_bytes: int, stream: int) -> int:
        due = self._due
        while due and due[0][0] <= self._allocations:
            self._finish(due.popleft()[1])
        self._allocations += 1
        size = round_size(requested_bytes, self.settings)
        pools = self._small if size <= SMALL_BYTES else self._large
        pool = pools.get(stream)
        if pool is None:
            pool = pools[stream] = Pool(size <= SMALL_BYTES, stream, self._searches)
        block = self._take_cached(pool, size) or self._take_new(pool, size, requested_bytes)
        self._split(block, size)
        block.free = False
        block.key = key
        self._live[key] = block
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return block.address

    def free(self, key: int) -> int:
        """Free a block; one that other streams use waits for them, and is not allocated any more.

        Returns:
            Its address.

        Raises:
            KeyError: no allocated block has the key.
        """
        if self._busy:
            known = self._live[key]
            self._late.append(key)
            return 0 if known is None else known.address
        block = self._live.pop(key)
        if block is None:
            return 0
        address = block.address
        self._busy = True
        try:
            self.allocated_bytes -= block.size
            if block.streams is None:
                self._let_go(block)
            else:
                self._waiting[key] = block
                self.waiting_bytes += block.size
                if self._lag is not None:
                    self._due.append((self._allocations + self._lag, key))
        finally:
            self._catch_up()
        return address

    def _catch_up(self) -> None:
        """Be free for other calls again, and do what came in between."""
        self._busy = False
        while self._late:
            self.free(self._late.pop(0))

    def block_bytes(self, key: int) -> int:
        """Bytes that an allocated block takes, which ``allocated_bytes`` counts: rounded, and with an unsplit rest.

        Raises:
            KeyError: no allocated block has the key.
        """
        block = self._live[key]
        return 0 if block is None else block.size

    def record_stream(self, key: int, stream: int) -> None:
        """Note that another stream uses an allocated block (``Tensor.record_stream``); its own does not count.

        Raises:
            KeyError: no allocated block has the key.
        """
        block = self._live[key]
        if block is not None and stream != block.pool.stream:
            block.streams = (block.streams or set()) | {stream}

    def complete(self, key: int) -> None:
        """Note that the other streams are done with a freed block; nothing happens when it does not wait."""
        if key in self._waiting:
            self._busy = True
            try:
                self._due = deque(line for line in self._due if line[1] != key)
                self._finish(key)
            finally:
                self._catch_up()

    def synchronize(self) -> None:
        """Note that all streams are done with all freed blocks.

        torch notices at the next allocation; allocated and reserved bytes show no difference.
        """
        self._busy = True
        try:
            self._finish_all()
        finally:
            self._catch_up()

    def empty_cache(self) -> None:
        """Give back to the device what is wholly free (``torch.cuda.empty_cache``)."""
        self._busy = True
        try:
            self._release_all()
        finally:
            self._catch_up()

    def segments(self) -> list[HeldSegment]:
        """All memory held, lowest address first; contiguous mapped memory of an expandable segment is one segment."""
        pools = [*self._small.values(), *self._large.values()]
        held = [block for pool in pools for block in pool.blocks]
        held += [block for block in self._live.values() if block is not None]
        held += self._waiting.values()
        return show(held, self._waiting)

    def adopt(self, segments: Iterable[HeldSegment]) -> None:
        """Begin with segments that are there already, as a memory snapshot shows them.

        Raises:
            ValueError: the allocator is not new, segments are expandable by its settings, segments overlap, or blocks
                do not fill theirs.
        """
        if self._small or self._large or self.settings.expandable_segments:
            raise ValueError("only a new allocator without expandable segments can begin with segments")
        held = list(segments)
        self._device.space.adopt([(segment.address, segment.size_bytes) for segment in held])
        for segment in held:
            pools = self._small if segment.small else self._large
            pool = pools.setdefault(segment.stream, Pool(segment.small, segment.stream, self._searches))
            for block, part in build(segment, pool):
                self._adopt_block(block, part)
            self._device.reserved_bytes += segment.size_bytes
        self.reset_peaks()

    def _adopt_block(self, block: Block, part: HeldBlock) -> None:
        if part.key is None:
            block.free = True
            block.pool.add(block)
            return
        if part.key in self._live or part.key in self._waiting:
            raise ValueError(f"two blocks have the key {part.key}")
        block.key = part.key
        if part.waiting:
            self._waiting[part.key] = block
            self.waiting_bytes += block.size
            if self._lag is not None:
                self._due.append((self._lag, part.key))
        else:
            self._live[part.key] = block
            self.allocated_bytes += block.size

    def _take_cached(self, pool: Pool, size: int) -> Block | None:
        if not pool.small:
            self._searches.count += 1
        at = bisect_left(pool.keys, size << ADDRESS_BITS)
        if at == len(pool.keys):
            return None
        picked = self._segments.pick(pool, at, size)
        if picked is None:
            return None
        del pool.keys[picked]
        return pool.blocks.pop(picked)

    def _take_new(self, pool: Pool, size: int, requested_bytes: int) -> Block:
        """Ask the device, freeing more and more of what is cached; the order is that of ``malloc``."""
        segments, device = self._segments, self._device
        wanted = segment_bytes(size, self.settings)
        segments.collect([self._large[stream] for stream in sorted(self._large)])
        block = None
        if not device.rejects(wanted):
            block = segments.grow(pool, size)
            if block is None and segments.release_some(pool, size):
                block = segments.grow(pool, size)
            if block is None:
                self._release_all()
                self.retries += 1
                block = segments.grow(pool, size)
        if block is None:
            raise OutOfMemory(requested_bytes, wanted, self.allocated_bytes, device.reserved_bytes, device.left_bytes())
        return block

    def _split(self, block: Block, size: int) -> None:
        least = least_remainder(size, self.settings)
        rest = block.size - size
        if least is None or rest < least:
            return
        pool = block.pool
        remainder = Block(block.address + size, rest, pool, block.span)
        remainder.free = True
        remainder.link(block, block.next)
        pool.add(remainder)
        block.size = size

    def _release_all(self) -> None:
        self._finish_all()
        # In torch's order: large before small, streams by their handle.
        for pools in (self._large, self._small):
            self._segments.release_all([pools[stream] for stream in sorted(pools)])

    def _finish_all(self) -> None:
        self._due.clear()
        for key in list(self._waiting):
            self._finish(key)

    def _finish(self, key: int) -> None:
        block = self._waiting.pop(key)
        self.waiting_bytes -= block.size
        block.streams = None
        self._let_go(block)

    def _let_go(self, block: Block) -> None:
        absorb(block, block.previous)
        absorb(block, block.next)
        block.free = True
        block.pool.add(block)
