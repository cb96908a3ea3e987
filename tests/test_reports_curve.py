"""Curves and what is made of them: nothing is lost in reduction, and sums stay sums."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zeropeak.reports.columns import ABSENT, NEVER
from zeropeak.reports.composition import Composition
from zeropeak.reports.curve import Curve, Intervals, envelope
from zeropeak.reports.figures import lanes, stacks
from zeropeak.reports.findings.saving import without

TIMES = st.lists(st.integers(0, 1000), min_size=1, max_size=60).map(sorted)
SIZES = st.integers(0, 1 << 40)


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def curve(*points: tuple[int, int]) -> Curve:
    return Curve(ints(*(t for t, _ in points)), ints(*(b for _, b in points)))


@given(TIMES, st.data(), st.integers(1, 12))
def test_an_envelope_loses_no_extreme(times: list[int], data: st.DataObject, bins: int) -> None:
    sizes = data.draw(st.lists(SIZES, min_size=len(times), max_size=len(times)))
    whole = curve(*zip(times, sizes, strict=True))
    start, end = 0, 1001
    seen = envelope(whole, start, end, bins)
    inside = whole.window(start, end)
    assert seen.high_bytes.max() == inside.size_bytes.max()
    assert seen.low_bytes.min() == min(int(inside.size_bytes.min()), int(whole.at(ints(start))[0]))
    assert (seen.low_bytes <= seen.high_bytes).all()
    # Each bin's highest value is the curve's value (or one of those in that very moment) at the moment that it names.
    for high, moment in zip(seen.high_bytes, seen.high_ns, strict=True):
        assert high in {*whole.size_bytes[whole.ts_ns == moment].tolist(), int(whole.at(ints(int(moment)))[0])}


def test_values_before_the_first_change_are_zero() -> None:
    assert curve((5, 7), (9, 3)).at(ints(4, 5, 8, 9, 99)).tolist() == [0, 7, 7, 3, 3]
    assert curve().at(ints(1)).tolist() == [0]


def test_a_window_carries_the_value_at_its_start() -> None:
    cut = curve((0, 5), (10, 8), (20, 2)).window(12, 20)
    assert (cut.ts_ns.tolist(), cut.size_bytes.tolist()) == ([12, 20], [8, 2])


def test_released_storages_count_from_release_to_end() -> None:
    held = Intervals(
        ints(0, 2, 4, 6), ints(5, 2, 5, NEVER), ints(10, 99, 1, 7), ints(1, 2, 3, ABSENT), ints(1, 2, 3, 4)
    )
    assert held.curve().ts_ns.tolist() == [0, 4, 5, 6]
    assert held.curve().size_bytes.tolist() == [10, 11, 0, 7]
    assert held.of(ints(3)).curve().size_bytes.tolist() == [1, 0]


def test_the_peak_without_some_storages_may_be_at_another_moment() -> None:
    allocated = curve((0, 10), (10, 30), (20, 25), (30, 5))
    saving = without(allocated, curve((8, 15), (20, 0)))
    assert saving is not None
    assert (saving.peak_bytes, saving.without_bytes, saving.size_bytes) == (30, 25, 5)
    assert without(curve(), allocated) is None


def test_what_the_samples_save_is_taken_off_the_allocators_maximum() -> None:
    sampled = Curve(ints(0, 10), ints(10, 30), sampled=True)
    saving = without(sampled, curve((5, 15)), allocator_bytes=40)
    assert saving is not None
    assert (saving.peak_bytes, saving.without_bytes, saving.sampled) == (40, 25, True)
    exact = without(curve((0, 10), (10, 30)), curve((5, 15)), allocator_bytes=40)
    assert exact is not None
    assert exact.peak_bytes == 30


@given(TIMES, st.data())
def test_taking_storages_off_never_raises_the_peak(times: list[int], data: st.DataObject) -> None:
    held = data.draw(st.lists(st.integers(0, 100), min_size=len(times), max_size=len(times)))
    rest = data.draw(st.lists(st.integers(0, 100), min_size=len(times), max_size=len(times)))
    whole = curve(*((t, h + r) for t, h, r in zip(times, held, rest, strict=True)))
    saving = without(whole, curve(*zip(times, held, strict=True)))
    assert saving is not None
    assert 0 <= saving.size_bytes <= max(held)


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcdefghijklmnop"), st.integers(-5, 1 << 45), min_size=1),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 12),
)
def test_stacked_layers_sum_to_each_ranks_parts(parts: list[dict[str, int]], most: int) -> None:
    ranks = [Composition(rank, sum(one.values()), one) for rank, one in enumerate(parts)]
    layers = stacks.layers(ranks, most)
    assert len(layers) <= most
    for place, one in enumerate(ranks):
        assert sum(sizes[place] for _, sizes in layers) == one.total_bytes
        assert one.gap_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 30)), max_size=30), st.integers(1, 20))
def test_merged_lanes_cover_every_event_and_no_gap_wider_than_a_pixel(spans: list[tuple[int, int]], gap: int) -> None:
    spans.sort()
    starts, ends = lanes.merged(ints(*(s for s, _ in spans)), ints(*(s + d for s, d in spans)), gap)
    assert all(any(a <= s and s + d <= b for a, b in zip(starts, ends, strict=True)) for s, d in spans)
    assert all(b + gap <= c for b, c in zip(ends[:-1], starts[1:], strict=True))
