"""The allocator's constants and settings, and the sizes that follow from them.

Constants carry the names of ``c10/core/AllocatorConfig.h`` in their descriptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20

MIN_BLOCK_BYTES: Final = 512
"""``kMinBlockSize``: every size is a multiple of this."""

SMALL_BYTES: Final = MIB
"""``kSmallSize``: larger blocks lie in the large pool, where a remainder of up to this size stays unsplit."""

SMALL_SEGMENT_BYTES: Final = 2 * MIB
"""``kSmallBuffer``: segments of the small pool, and pages of its expandable segments."""

LARGE_SEGMENT_BYTES: Final = 20 * MIB
"""Default of ``large_segment_size_mb``: segments for middling requests, and pages of large expandable segments."""

OWN_SEGMENT_BYTES: Final = 10 * MIB
"""``kMinLargeAlloc``: requests from this size on get a segment of their own."""

ROUND_LARGE_BYTES: Final = 2 * MIB
"""``kRoundLarge``: segments of their own are a multiple of this."""

DIVISIONS_INTERVALS: Final = 16
"""``kRoundUpPowerOfTwoIntervals``: one setting for each power of two from 1 MiB on."""

FIRST_INTERVAL: Final = 20
"""Exponent of the first of these intervals, which smaller requests share."""


@dataclass(frozen=True)
class Settings:
    """The allocator's settings that decide about memory on the device; the defaults are torch's."""

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    """Blocks from this size on are never split; None: no such limit."""
    divisions: tuple[int, ...] = ()
    """``roundup_power2_divisions``, one for each interval; empty or 0: plain rounding."""
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    """A block that is never split serves requests that are smaller by less than this."""
    garbage_collection_threshold: float = 0.0
    """Share of the allowed memory from which on old cached segments are freed; 0 or ``memory_fraction`` 1: never."""
    memory_fraction: float = 1.0
    """Share of the device that this process may take (``per_process_memory_fraction``)."""
    reject_early: bool = False
    """``throw_on_cudamalloc_oom``: give up when more than the device has is asked for, before freeing what is cached.

    torch looks at ``memory_fraction`` first, so with a fraction below 1 this changes nothing."""


def round_size(requested: int, settings: Settings) -> int:
    """Bytes of a block for a request, which is positive (``round_size``).

    >>> round_size(1, Settings()), round_size(513, Settings()), round_size(1_300_000, Settings(divisions=(4,) * 16))
    (512, 1024, 1310720)
    """
    if settings.divisions:
        exponent = requested.bit_length() - 1
        parts = settings.divisions[min(max(exponent - FIRST_INTERVAL, 0), DIVISIONS_INTERVALS - 1)]
        if parts > 1 and requested > MIN_BLOCK_BYTES * parts:
            step = 1 << max(exponent - parts.bit_length() + 1, 0)
            return -(-requested // step) * step
    return -(-requested // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


def segment_bytes(size: int, settings: Settings) -> int:
    """Bytes of the segment that a rounded request gets when nothing cached serves it (``get_allocation_size``).

    >>> [segment_bytes(size, Settings()) >> 20 for size in (512, 1 << 20, (1 << 20) + 512, 10 << 20, 21 << 20)]
    [2, 2, 20, 10, 22]
    """
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < OWN_SEGMENT_BYTES:
        return settings.large_segment_bytes
    return -(-size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


def least_remainder(size: int, settings: Settings) -> int | None:
    """Smallest remainder that is split off a block for a rounded request; None: never split (``should_split``).

    >>> least_remainder(512, Settings()), least_remainder(2 << 20, Settings())
    (512, 1048577)
    """
    if size <= SMALL_BYTES or settings.expandable_segments:
        return MIN_BLOCK_BYTES
    if settings.max_split_bytes is not None and size >= settings.max_split_bytes:
        return None
    return SMALL_BYTES + 1
