"""Sizes and times for people. The only place that formats them; tables hold int64 bytes and nanoseconds."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from zeropeak.profile.labels import TICK_NS

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIMES: Final = (("ns", 1), ("µs", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000))
UNKNOWN: Final = "unknown"
_TICKS: Final[ContextVar[bool]] = ContextVar("ticks", default=False)


@contextmanager
def in_ticks(predicted: bool) -> Iterator[None]:
    """Context in which times read as counts of happenings, for a run whose clock knows no seconds."""
    token = _TICKS.set(predicted)
    try:
        yield
    finally:
        _TICKS.reset(token)


def size(size_bytes: int | None) -> str:
    """Three digits and a binary unit.

    >>> size(1610612736), size(13107200), size(640), size(-2048), size(None)
    ('1.50 GiB', '12.5 MiB', '640 B', '-2.00 KiB', 'unknown')
    """
    if size_bytes is None:
        return UNKNOWN
    sign, value = "-" if size_bytes < 0 else "", float(abs(size_bytes))
    power = 0
    while power + 1 < len(_SIZES) and value >= 999.5:
        value, power = value / 1024, power + 1
    return f"{sign}{_three(value) if power else int(value)} {_SIZES[power]}"


def exact(size_bytes: int) -> str:
    """Every byte.

    >>> exact(13107200)
    '13,107,200 bytes'
    """
    return f"{size_bytes:,} bytes"


def duration(dur_ns: int | None) -> str:
    """Three digits and a unit.

    >>> duration(850), duration(12_345_678), duration(2_100_000_000)
    ('850 ns', '12.3 ms', '2.10 s')
    """
    if dur_ns is None:
        return UNKNOWN
    if _TICKS.get():
        return count(round(dur_ns / TICK_NS), "tick")
    sign, value = "-" if dur_ns < 0 else "", abs(dur_ns)
    name, scale = next(((n, s) for n, s in reversed(_TIMES) if value >= s), _TIMES[0])
    return f"{sign}{_three(value / scale) if scale > 1 else value} {name}"


def moment(ts_ns: int | None, start_ns: int) -> str:
    """Seconds since the moment that times are counted from; negative before it.

    >>> moment(1_000_812_400_000, 1_000_000_000_000), moment(5_000_000_000, 7_500_000_000)
    ('0.8124 s', '-2.5000 s')
    """
    if ts_ns is None:
        return UNKNOWN
    if _TICKS.get():
        return f"tick {round((ts_ns - start_ns) / TICK_NS):,}"
    return f"{(ts_ns - start_ns) / 1e9:,.4f} s"


def offset(dur_ns: int) -> str:
    """A signed distance in time.

    >>> offset(-1_500_000), offset(0)
    ('-1.50 ms', '0')
    """
    return f"{'+' if dur_ns > 0 else ''}{duration(dur_ns)}" if dur_ns else "0"


def axis_value(seconds: float) -> str:
    """A value of a time axis in seconds, as its ticks are labelled.

    >>> axis_value(0.25)
    '0.25'
    """
    return f"{seconds * 1e9 / TICK_NS if _TICKS.get() else seconds:,.10g}"


def axis_name(since: str) -> str:
    """What a time axis shows.

    >>> axis_name("the first forward began")
    'seconds since the first forward began'
    """
    if _TICKS.get():
        return f"ticks since {since}: the order of what happened, not seconds"
    return f"seconds since {since}"


def percent(part: int, whole: int) -> str:
    """A share, never rounded to a false 0 or 100.

    >>> percent(61, 100), percent(1, 1000), percent(999, 1000), percent(0, 5), percent(1, 0)
    ('61 %', '<1 %', '>99 %', '0 %', 'unknown')
    """
    if whole <= 0:
        return UNKNOWN
    share = 100 * part / whole
    if 0 < share < 1:
        return "<1 %"
    return ">99 %" if 99 < share < 100 else f"{share:.0f} %"


def count(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun.

    >>> count(1, "weight"), count(1234, "weight"), count(2, "storage", "storages")
    ('1 weight', '1,234 weights', '2 storages')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def scale(largest_bytes: int) -> tuple[int, str]:
    """Divisor and unit in which an axis up to ``largest_bytes`` reads well.

    >>> scale(20 << 20)
    (1048576, 'MiB')
    """
    power = 0
    while power + 1 < len(_SIZES) and abs(largest_bytes) >= 1.5 * 1024 ** (power + 1):
        power += 1
    return 1024**power, _SIZES[power]


def _three(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"
