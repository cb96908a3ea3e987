"""Which blocks are alive at a place of the curve, asked again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zeropeak.parse.blocks import ROW

if TYPE_CHECKING:
    Ints = np.ndarray[tuple[int], np.dtype[np.signedinteger]]


class Alive:
    """Answers in time proportional to what is alive and what was born since the last question, if asked in order.

    Args:
        birth: place of each block's birth, any order.
        end: place of its end; it is alive from its birth up to, not including, its end.

    >>> import numpy as np
    >>> Alive(np.array([0, 2, 4]), np.array([3, 9, 9])).rows(2).tolist()
    [0, 1]
    """

    def __init__(self, birth: Ints, end: Ints) -> None:
        self._by_birth = np.argsort(birth, kind="stable").astype(ROW)
        self._birth = birth[self._by_birth]
        self._end = end
        self._place: int | None = None
        self._born = 0
        self._alive = np.empty(0, ROW)

    def rows(self, place: int) -> Ints:
        """Rows of the blocks that are alive."""
        if self._place is None or place < self._place:
            self._born, self._alive = 0, np.empty(0, ROW)
        self._place = place
        born = int(np.searchsorted(self._birth, place, "right"))
        candidates = np.concatenate([self._alive, self._by_birth[self._born : born]])
        self._alive = candidates[self._end[candidates] > place]
        self._born = born
        return self._alive
