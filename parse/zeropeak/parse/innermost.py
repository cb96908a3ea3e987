"""Which of many overlapping spans is the innermost (last begun, still open) at a moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]

NONE: Final = -1


class Innermost:
    """Answers "which span was innermost at t"; a span is open from its start up to, not including, its end.

    Args:
        start: int64 ns, any order.
        end: int64 ns; a span that never ended has the largest int64.

    >>> import numpy as np
    >>> outer_and_inner = Innermost(np.array([0, 10]), np.array([100, 20]))
    >>> outer_and_inner.at(np.array([-1, 5, 10, 19, 20, 100])).tolist()
    [-1, 0, 1, 1, 0, -1]
    """

    def __init__(self, start: Ints, end: Ints) -> None:
        count = len(start)
        spans = np.arange(count)
        times = np.concatenate([start, end])
        # At one moment ends come before starts, and an outer span (the one that ends later) starts before an inner.
        opening = np.concatenate([np.ones(count, np.int64), np.zeros(count, np.int64)])
        tie = np.concatenate([-end, np.zeros(count, np.int64)])
        order = np.lexsort((np.concatenate([spans, spans]), tie, opening, times))
        self._times = times[order]
        self._span = np.empty(len(order), np.int64)
        stack: list[int] = []
        closed: set[int] = set()
        empty = set(np.flatnonzero(end <= start).tolist())
        for at, edge in enumerate(order.tolist()):
            span = edge % count
            if span not in empty:
                if edge < count:
                    stack.append(span)
                else:
                    closed.add(span)
                    while stack and stack[-1] in closed:
                        closed.discard(stack.pop())
            self._span[at] = stack[-1] if stack else NONE

    def at(self, ts: Ints) -> Ints:
        """Row of the innermost span at each moment, NONE (-1) where none is open."""
        place = np.searchsorted(self._times, ts, "right") - 1
        if not len(self._times):
            return np.full(len(ts), NONE)
        return np.where(place >= 0, self._span[np.maximum(place, 0)], NONE)
