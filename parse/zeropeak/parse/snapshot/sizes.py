"""How many bytes the CUDA caching allocator takes for a request: its rounding and its rule for splitting blocks.

The history holds what was asked for; ``torch.cuda.memory_allocated`` counts what was taken. Rules and constants are
those of ``c10/cuda/CUDACachingAllocator.cpp`` (``round_size``, ``should_split``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

MIN_BLOCK_BYTES: Final = 512
"""``kMinBlockSize``: every size is a multiple of this."""

SMALL_BYTES: Final = 1 << 20
"""``kSmallSize``: larger blocks lie in the large pool, where a remainder of up to this size stays unsplit."""

DIVISIONS_INTERVALS: Final = 16
"""``kRoundUpPowerOfTwoIntervals``: one setting for each power of two from 1 MiB on."""


@dataclass(frozen=True)
class Settings:
    """The allocator's settings that decide about sizes, as they were at the dump."""

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    """Blocks from this size on are never split; None: no such limit."""
    divisions: tuple[int, ...] = ()
    """``roundup_power2_divisions``, one for each interval; empty or 0: plain rounding."""


def read_settings(found: Any) -> Settings:
    """Take the settings from ``allocator_settings``; what is missing or odd is the default.

    >>> read_settings({"max_split_size": -1, "roundup_power2_divisions": {"1": 4}}).divisions[:2]
    (4, 0)
    """
    if not isinstance(found, dict):
        return Settings()
    split = found.get("max_split_size")
    table = found.get("roundup_power2_divisions")
    divisions = []
    for interval in range(DIVISIONS_INTERVALS):
        value = table.get(str(1 << interval)) if isinstance(table, dict) else None
        divisions.append(value if type(value) is int and 0 < value < 1 << 32 else 0)
    return Settings(
        expandable_segments=found.get("expandable_segments") is True,
        max_split_bytes=split if type(split) is int and 0 < split < 1 << 62 else None,
        divisions=tuple(divisions) if any(divisions) else (),
    )


def rounded(requested: Ints, settings: Settings) -> Ints:
    """Bytes that requests are rounded up to (``round_size``).

    >>> rounded(np.array([1, 512, 513]), Settings()).tolist()
    [512, 512, 1024]
    >>> rounded(np.array([1300000]), Settings(divisions=(4,) * 16)).tolist()
    [1310720]
    """
    whole = np.maximum(-(-requested // MIN_BLOCK_BYTES), 1) * MIN_BLOCK_BYTES
    if not settings.divisions:
        return whole
    # frexp gives the exponent of integers below 2^53 exactly; log2 may round up just below a power of two.
    exponent = np.frexp(requested.astype(np.float64))[1].astype(np.int64) - 1
    divisions = np.array(settings.divisions, np.int64)[np.clip(exponent - 20, 0, DIVISIONS_INTERVALS - 1)]
    division_exponent = np.frexp(divisions.astype(np.float64))[1].astype(np.int64) - 1
    step = np.left_shift(np.int64(1), np.clip(exponent - division_exponent, 0, 62))
    return np.where((divisions > 1) & (requested > MIN_BLOCK_BYTES * divisions), -(-requested // step) * step, whole)


def may_stay_whole(size: Ints, settings: Settings) -> NDArray[np.bool_]:
    """Which sizes can take more than their rounded request: those of the large pool, unless segments are expandable."""
    return (size > SMALL_BYTES) & (not settings.expandable_segments)


def taken(size: Ints, hole: Ints, settings: Settings) -> Ints:
    """Bytes taken from free blocks of ``hole`` bytes for rounded requests of the large pool (``should_split``).

    A hole smaller than the request contradicts the history and is ignored.

    >>> taken(np.array([2 << 20, 2 << 20]), np.array([3 << 20, 4 << 20]), Settings()).tolist()
    [3145728, 2097152]
    """
    whole = (hole >= size) & (hole - size <= SMALL_BYTES)
    if settings.max_split_bytes is not None:
        whole |= (hole >= size) & (size >= settings.max_split_bytes)
    return np.where(whole, hole, size)
