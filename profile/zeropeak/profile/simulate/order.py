"""The clock of a prediction: it counts what happens, and knows no seconds."""

from __future__ import annotations

from zeropeak.profile.labels import TICK_NS


class Order:
    """A counter in place of a monotonic clock: no two readings are equal, later is larger.

    >>> order = Order()
    >>> order() < order()
    True
    """

    def __init__(self) -> None:
        self._now_ns = 0

    def __call__(self) -> int:
        """Next moment, in the unit of a clock's nanoseconds."""
        self._now_ns += TICK_NS
        return self._now_ns
