"""Moments by group, asked for the last at or before a time and the first after it, all questions at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


class Series:
    """Rows with a group and a moment, searched within a group.

    Args:
        group: int64 id of each row's group.
        ts: int64 moment of each row, in any unit and order.

    >>> import numpy as np
    >>> series = Series(np.array([1, 1, 2]), np.array([10, 30, 20]))
    >>> series.last(np.array([1, 1, 2, 3]), np.array([9, 30, 99, 99])).tolist()
    [-1, 1, 2, -1]
    >>> series.following(np.array([1, 1, 2, 3]), np.array([9, 30, 19, 0])).tolist()
    [0, -1, 2, -1]
    """

    def __init__(self, group: Ints, ts: Ints) -> None:
        self._groups, dense = np.unique(group, return_inverse=True)
        self._times = np.unique(ts)
        self._width = len(self._times) + 1
        self.order = np.lexsort((ts, dense))
        """Rows by group, then by time."""
        self._group = dense[self.order]
        self._key = self._group * self._width + np.searchsorted(self._times, ts[self.order]) + 1

    def last(self, group: Ints, ts: Ints) -> Ints:
        """Row of each group's last moment at or before ``ts``, -1 for none."""
        place, dense = self._place(group, ts)
        place -= 1
        return self._row(place, dense)

    def following(self, group: Ints, ts: Ints) -> Ints:
        """Row of each group's first moment after ``ts``, -1 for none."""
        return self._row(*self._place(group, ts))

    def _place(self, group: Ints, ts: Ints) -> tuple[Ints, Ints]:
        """How many rows are at or before each question in the order of rows, and the question's group (-1: none)."""
        if not len(self._groups):
            return np.zeros(len(group), np.int64), np.full(len(group), -1)
        dense = np.minimum(np.searchsorted(self._groups, group), len(self._groups) - 1)
        known = self._groups[dense] == group
        key = dense * self._width + np.searchsorted(self._times, ts, "right")
        return np.searchsorted(self._key, key, "right"), np.where(known, dense, -1)

    def _row(self, place: Ints, dense: Ints) -> Ints:
        inside = (place >= 0) & (place < len(self._key)) & (dense >= 0)
        at = np.where(inside, place, 0)
        if not len(self._key):
            return np.full(len(place), -1)
        return np.where(inside & (self._group[at] == dense), self.order[at], -1)
