"""Microseconds as written in a trace to int64 nanoseconds, exactly.

A float holds such a number to the nanosecond only below 2**43 us (three months); and an allocation must not swap places
with a range's edge. So the digits are read as an integer.
"""

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
    Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]

_DOT, _NEWLINE = ord("."), ord("\n")
_DIGITS: Final = 18
"""Digits that surely fit an int64."""

_MAX: Final = 1 << 62
_EXACT: Final = decimal.Context(prec=60, Emax=999_999, Emin=-999_999, traps=[decimal.InvalidOperation])


def microseconds(text: bytes, count: int) -> tuple[Ints, Flags]:
    """A column of numbers of microseconds as nanoseconds, and whether each is one (else 0).

    Args:
        text: the numbers as they stand in JSON, joined by newlines; an empty text where there is none.
        count: how many.
    """
    if not count:
        return np.zeros(0, np.int64), np.zeros(0, bool)
    fast = _uniform(text, count)
    if fast is not None:
        return fast, np.ones(count, bool)
    found = [nanoseconds(one) for one in text.split(b"\n")]
    return (
        np.array([0 if one is None else one for one in found], np.int64),
        np.array([one is not None for one in found], bool),
    )


def _uniform(text: bytes, count: int) -> Ints | None:
    """All at once, when all are whole numbers or all have three decimals, and none is negative or long."""
    if text.translate(None, b"0123456789.\n"):
        return None
    chars = np.frombuffer(text, np.uint8)
    ends = np.append(np.flatnonzero(chars == _NEWLINE), len(text))
    dots = np.flatnonzero(chars == _DOT)
    lengths = np.diff(ends, prepend=-1) - 1
    if len(dots) == count and np.array_equal(dots + 4, ends) and lengths.min() > 4 and lengths.max() <= _DIGITS:
        return np.fromstring(text.replace(b".", b""), np.int64, sep="\n")
    if not len(dots) and lengths.min() > 0 and lengths.max() <= _DIGITS - 3:
        return np.fromstring(text, np.int64, sep="\n") * 1000
    return None


def nanoseconds(text: bytes) -> int | None:
    """One number of microseconds, rounded half to even; None when it is none or out of range.

    >>> nanoseconds(b"5199832495528.640"), nanoseconds(b"-0.0005"), nanoseconds(b'"12"'), nanoseconds(b"null")
    (5199832495528640, 0, 12000, None)
    """
    whole, _, fraction = text.partition(b".")
    if len(whole) <= _DIGITS - 3 and len(fraction) <= 3 and whole.isdigit() and (fraction.isdigit() or not fraction):
        return int(whole + fraction.ljust(3, b"0"))
    try:
        number = _EXACT.create_decimal(text.strip(b'" ').decode("ascii"))
        if not number.is_finite() or number.adjusted() > 30:
            return None
        value = int(_EXACT.multiply(number, decimal.Decimal(1000)).to_integral_value(decimal.ROUND_HALF_EVEN))
    except (decimal.InvalidOperation, UnicodeDecodeError):
        return None
    return value if abs(value) < _MAX else None
