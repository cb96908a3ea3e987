"""The part of a trace's text that is in memory: a buffer that the file is read through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeropeak.parse.kineto.unpack import Blocks

BUFFER_BYTES: Final = 2 << 20
"""Text read at once."""


class Window:
    """A window on the text.

    Args:
        blocks: the file.
        moving: called before the text in memory moves or is written over.

    Attributes:
        buffer: memory; never shrinks, replaced when a longer text is asked for.
        start: index of the first byte not dealt with yet; at least 1, so that a bracket can be put before it.
        end: index after the last byte that was read.
        ended: the file has no more.
    """

    def __init__(self, blocks: Blocks, moving: Callable[[], None]) -> None:
        self.buffer = bytearray(BUFFER_BYTES)
        self.start = self.end = 1
        self.ended = False
        self._blocks, self._moving = blocks, moving
        self._offset = -1

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def problem(self) -> str | None:
        """What ended the compressed stream early, so far."""
        return self._blocks.problem

    @property
    def offset(self) -> int:
        """Where ``start`` is in the whole text."""
        return self._offset + self.start

    def skip(self, count: int) -> None:
        """Pass over text at the very beginning."""
        self._offset += self._blocks.skip(count)

    def text(self, length: int | None = None) -> str:
        """Text from ``start`` on; every byte stands for itself (latin-1), so that positions are those of the bytes."""
        stop = self.end if length is None else min(self.start + length, self.end)
        return self.buffer[self.start : stop].decode("latin-1")

    def fill(self, want: int) -> None:
        """Have at least ``want`` bytes from ``start`` on, unless the file ends before."""
        if len(self) >= want or self.ended:
            return
        self._moving()
        kept = self.buffer[self.start - 1 : self.end]
        if want + 1 > len(self.buffer):
            self.buffer = bytearray(2 * want)
        self.buffer[: len(kept)] = kept
        self._offset += self.start - 1
        self.start, self.end = 1, len(kept)
        view = memoryview(self.buffer)
        while self.end < len(view):
            count = self._blocks.readinto(view[self.end :])
            if not count:
                self.ended = True
                return
            self.end += count
