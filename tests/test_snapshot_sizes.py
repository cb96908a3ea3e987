"""The allocator's rounding, against a plain version of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeropeak.parse.snapshot.sizes import Settings, read_settings, rounded, taken

MIB = 1 << 20


def plain(size: int, divisions: tuple[int, ...]) -> int:
    """``round_size`` and ``roundup_power2_next_division``, one size at a time."""
    interval = min(max(size.bit_length() - 1 - 20, 0), 15)
    parts = divisions[interval] if divisions else 0
    if size < 512:
        return 512
    if parts > 1 and size > 512 * parts:
        if size & (size - 1) == 0:
            return size
        step = (1 << size.bit_length() - 1) >> (parts.bit_length() - 1)
        low = size & ~(step - 1)
        return size if low == size else low + step
    return (size + 511) // 512 * 512


@given(
    st.lists(st.one_of(st.integers(1, 1 << 47), st.integers(0, 47).map(lambda bits: 1 << bits)), min_size=1),
    st.one_of(st.just(()), st.lists(st.sampled_from([0, 1, 2, 3, 4, 8, 16]), min_size=16, max_size=16).map(tuple)),
)
def test_rounds_as_the_allocator_does(requested: list[int], divisions: tuple[int, ...]) -> None:
    found = rounded(np.array(requested, np.int64), Settings(divisions=divisions))
    assert found.tolist() == [plain(size, divisions) for size in requested]


@pytest.mark.parametrize(
    ("hole", "size"), [(2 * MIB, 2 * MIB), (3 * MIB, 3 * MIB), (3 * MIB + 512, 2 * MIB), (MIB, 2 * MIB)]
)
def test_a_remainder_of_a_mebibyte_is_kept(hole: int, size: int) -> None:
    assert taken(np.array([2 * MIB]), np.array([hole]), Settings()).tolist() == [size]


def test_blocks_beyond_the_split_limit_are_never_split() -> None:
    settings = Settings(max_split_bytes=8 * MIB)
    assert taken(np.array([8 * MIB, 7 * MIB]), np.array([20 * MIB] * 2), settings).tolist() == [20 * MIB, 7 * MIB]


@pytest.mark.parametrize("found", [None, 5, {}, {"max_split_size": "x", "roundup_power2_divisions": [1]}])
def test_odd_settings_are_the_defaults(found: object) -> None:
    assert read_settings(found) == Settings()


def test_settings_of_a_dump() -> None:
    divisions = {str(1 << place): 4 if place else 0 for place in range(16)}
    found = {"expandable_segments": True, "max_split_size": 200 * MIB, "roundup_power2_divisions": divisions}
    assert read_settings(found) == Settings(True, 200 * MIB, (0, *[4] * 15))
