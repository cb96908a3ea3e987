"""How many bytes the CUDA caching allocator took for a request: its rounding and its rule for splitting blocks.

The history holds what was asked for; ``torch.cuda.memory_allocated`` counts what was taken. The rules are those of the
allocator's model (``zeropeak.profile.allocator``), here for whole columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from zeropeak.profile.allocator.settings import (
    DIVISIONS_INTERVALS,
    MIN_BLOCK_BYTES,
    SMALL_BYTES,
    Settings,
    round_size,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["MIN_BLOCK_BYTES", "SMALL_BYTES", "Settings", "may_stay_whole", "read_settings", "rounded", "taken"]


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
    if not settings.divisions:
        return np.maximum(-(-requested // MIN_BLOCK_BYTES), 1) * MIN_BLOCK_BYTES
    distinct, place = np.unique(np.maximum(requested, 1), return_inverse=True)
    sizes = np.array([round_size(size, settings) for size in distinct.tolist()], np.int64)
    return sizes[place]


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
