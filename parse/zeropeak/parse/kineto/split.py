"""Where the events of a trace begin and end, whatever its layout, in bounded memory.

The text is cut after an event that looks like one (``}, {"ph"``), and the piece, put in brackets, is decoded as a JSON
array. If that succeeds the cut was right: a balanced text that began between two events also ends between two. If it
fails (a cut inside an event, the end of the list, damage), a small piece is gone through event by event instead.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from zeropeak.parse.kineto.metadata import read_head, read_tail, tolerant
from zeropeak.parse.kineto.part import WHOLE
from zeropeak.parse.kineto.window import Window

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

    from zeropeak.parse.kineto.part import Part
    from zeropeak.parse.kineto.unpack import Blocks

CHUNK_BYTES: Final = 256 << 10
"""Text decoded at once: with what it becomes it fits a core's cache (1 MiB costs a fifth more)."""

CAREFUL_BYTES: Final = 4 << 10
"""Text gone through event by event where decoding at once failed."""

SHRINK: Final = 8
"""Factor from one chunk that failed to the next try; the way back up is in steps of two."""

LOOKAHEAD_BYTES: Final = 16 << 10
"""Text looked at first beyond that, so that an event's end is found."""

MAX_EVENT_BYTES: Final = 16 << 20
"""Longest event; a longer one is dropped."""

GROWTHS: Final = 16
"""How often in a row a longer look is taken at what may be a long event, so that damage cannot make it slow."""

_BOUNDARY: Final = re.compile(rb'\}[ \t\r\n]*(,)[ \t\r\n]*\{[ \t\r\n]*"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp)"')
_BOUNDARY_TEXT: Final = re.compile(_BOUNDARY.pattern.decode())
_BETWEEN: Final = re.compile(r"[\s,]*")
# Not every ``]}`` at the end of the text: an event that is cut can end so too.
_LIST_END: Final = re.compile(
    r'\s*\]\s*,\s*"(?:traceName|displayTimeUnit|baseTimeNanoseconds|schemaVersion|deviceProperties|distributedInfo|'
    r'trace_id|record_shapes|with_\w+|profile_memory)"|(?<=\})[ \t\r]*\n\s*\]\s*\}?\s*$'
)
_EVENT_START: Final = re.compile(r'\{\s*"(?:ph|cat|name|pid|tid|ts|id)"\s*:')


class Taker(Protocol):
    """What is done with the events."""

    def attempt(self, array: memoryview) -> bool:
        """Take all events of a JSON array; False, having taken none, when it is not valid JSON."""

    def single(self, text: bytes) -> bool:
        """Take one event, mending it if need be; False, having counted nothing, when it cannot be read."""

    def settle(self) -> None:
        """Let go of the memory of the arrays that were attempted: it is about to be used again."""


class Skip:
    """Takes nothing: for a pass that is after the metadata only."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(list[msgspec.Raw]).decode

    def attempt(self, array: memoryview) -> bool:
        """Whether this is a JSON array."""
        try:
            self._decode(array)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def single(self, text: bytes) -> bool:
        """Pass over one event."""
        return True

    def settle(self) -> None:
        """Nothing was kept."""


class Splitter:
    """Takes a trace apart: metadata, events, metadata.

    A file can be split between processes: each takes the events from the first boundary after one offset to the first
    after the next. That the later one began between two events is known when the earlier one arrives there.

    Args:
        blocks: the file.
        path: its name in errors.
        taker: takes the events.
        counts: takes ``events_dropped``, ``events_cut`` and the like.
        part: what part of the text.

    Attributes:
        metadata: top-level values other than ``traceEvents``, as far as they have been read.
        partial: the file ends within its events.
        bare: the file is a list of events without metadata.
        met: the events were taken up to the boundary after ``stop``, where another process began.
    """

    def __init__(
        self, blocks: Blocks, path: Path | str, taker: Taker, counts: Counter[str], part: Part = WHOLE
    ) -> None:
        self.metadata: dict[str, Any] = {}
        self.partial = self.bare = self.met = False
        self._path, self._taker, self._counts = path, taker, counts
        self._window = Window(blocks, taker.settle)
        self._begin, self._stop = part
        self._goal: int | None = None
        self._growths = GROWTHS

    def open(self) -> bool:
        """Go to the first event; False when there is none after ``begin``.

        Raises:
            TraceError: this is no trace; the message names what it is instead, where that can be told.
        """
        if not self._begin:
            self.bare = read_head(self._window, self._path, self.metadata, self._counts)
            return True
        self._window.skip(self._begin)
        self._window.fill(LOOKAHEAD_BYTES)
        boundary = self._first_boundary(self._window.start)
        if boundary is not None:
            self._window.start = boundary + 1
        return boundary is not None

    def take(self) -> None:
        """Hand over the events, then read the metadata after them."""
        window, limit, ended = self._window, CHUNK_BYTES, False
        while not ended and not self._arrived():
            window.fill(CHUNK_BYTES + LOOKAHEAD_BYTES)
            goal = self._goal_index()
            end = min(window.start + limit, window.end, goal)
            cut = self._last_boundary(end)
            if cut > 0 and self._attempt(cut):
                limit = min(2 * limit, CHUNK_BYTES)
            elif limit > CAREFUL_BYTES and cut > 0:
                limit = max(limit // SHRINK, CAREFUL_BYTES)
            else:
                ended = self._one_by_one(min(cut if cut > 0 else end, goal) - window.start)
        self._taker.settle()
        if self.bare or self.partial:
            self._counts["trailing_bytes"] += len(window.text().strip())
        elif not self.met:
            read_tail(window, self.metadata, self._counts)

    def _goal_index(self) -> int:
        """Index of the comma after which another process began; beyond all text when that is not in sight."""
        window = self._window
        if self._stop is not None and window.offset + CHUNK_BYTES > self._stop:
            at = window.start + self._stop - window.offset
            comma = self._first_boundary(at) if at >= window.start else None
            self._goal = None if comma is None else window.offset + comma - window.start
            self._stop = None
        return sys.maxsize if self._goal is None else window.start + self._goal - window.offset

    def _arrived(self) -> bool:
        """Whether the next event is the one that another process began with; forgets the goal once it is passed."""
        window = self._window
        if self._goal is None or window.offset <= self._goal:
            return False
        goal = window.start + self._goal - window.offset
        self.met = not window.buffer[goal + 1 : window.start].strip(b" \t\r\n,")
        self._goal = None
        return self.met

    def _attempt(self, cut: int) -> bool:
        window = self._window
        before, window.buffer[window.start - 1] = window.buffer[window.start - 1], ord("[")
        window.buffer[cut] = ord("]")
        taken = self._taker.attempt(memoryview(window.buffer)[window.start - 1 : cut + 1])
        window.buffer[window.start - 1], window.buffer[cut] = before, ord(",")
        if taken:
            window.start = cut + 1
        return taken

    def _first_boundary(self, start: int) -> int | None:
        """Index of the comma of the first boundary from ``start`` on that lies within the lookahead."""
        found = _BOUNDARY.search(self._window.buffer, start, min(start + LOOKAHEAD_BYTES, self._window.end))
        return found.start(1) if found else None

    def _last_boundary(self, stop: int) -> int:
        """Index of the comma after the last event that seems to end before ``stop``; -1 when there is none."""
        window = self._window
        at = window.buffer.rfind(b"}", window.start, stop)
        while at >= 0:
            if found := _BOUNDARY.match(window.buffer, at, window.end):
                return found.start(1)
            at = window.buffer.rfind(b"}", window.start, at)
        return -1

    def _one_by_one(self, span: int) -> bool:
        """Hand over the events that begin within ``span`` bytes, at least one; True when there are no more."""
        look = span + LOOKAHEAD_BYTES
        while True:
            self._window.fill(look)
            text = self._window.text(look)
            final = self._window.ended and len(text) == len(self._window)
            at, state = 0, "more"
            while state == "more" and at <= span:
                at, state = self._step(text, at, final, look >= MAX_EVENT_BYTES)
            self._window.start += at
            if state != "short" or at > 0:
                return state == "ended"
            look = min(4 * look, MAX_EVENT_BYTES)

    def _step(self, text: str, at: int, final: bool, longest: bool) -> tuple[int, str]:
        """Hand over the event at ``at``: the position of the next, and ``more``, ``ended`` (no more) or ``short``.

        ``short``: the event seems to go on past the text, the position is the same.
        """
        start = _skip_commas(text, at)
        if start == len(text):
            if final:
                self.partial = not self.bare or self._window.problem is not None
                self._counts["list_not_closed"] += 1
            return start, "ended" if final else "done"
        if text[start] == "]":
            return start + 1, "ended"
        try:
            _, end = tolerant.raw_decode(text, start)
        except (ValueError, RecursionError):
            return self._damaged(text, start, final, longest)
        if end - start > LOOKAHEAD_BYTES:
            self._growths = GROWTHS
        if not self._taker.single(text[start:end].encode("latin-1")):
            self._counts["events_dropped"] += 1
        after = _skip_commas(text, end)
        if text[after : after + 1] == "{" and "," not in text[end:after]:
            self._counts["commas_missing"] += 1
        return after, "more"

    def _damaged(self, text: str, at: int, final: bool, longest: bool) -> tuple[int, str]:
        """The same for what is not JSON: a damaged event, or one that goes on past the text."""
        if not longest and self._goes_on(text[at:]):
            if not final:
                return at, "short"
            self.partial = True
            self._counts["events_cut"] += 1
            return len(text), "ended"
        boundary = _BOUNDARY_TEXT.search(text, at)
        end = boundary.start() + 1 if boundary else len(text)
        if boundary and (self._swallowed(text, at, end) or self._taker.single(text[at:end].encode("latin-1"))):
            return _skip_commas(text, end), "more"
        if not boundary and not final and not longest:
            return at, "short"
        # The last event of the list has no boundary of its own.
        if last := _LIST_END.search(text, at, end):
            end = last.start()
            if self._taker.single(text[at:end].encode("latin-1")):
                return end, "more"
        elif not boundary and final:
            self.partial = True
            self._counts["events_cut"] += 1
            return len(text), "ended"
        if not self._swallowed(text, at, end):
            self._counts["events_dropped"] += 1
        return _skip_commas(text, end), "more"

    def _swallowed(self, text: str, at: int, end: int) -> bool:
        """Take the sound event that follows the remains of one that lost its end; False when there is none."""
        for start in _EVENT_START.finditer(text, at + 1, end):
            try:
                _, stop = tolerant.raw_decode(text, start.start())
            except (ValueError, RecursionError):
                continue
            if stop == end and self._taker.single(text[start.start() : end].encode("latin-1")):
                self._counts["events_dropped"] += 1
                return True
        return False

    def _goes_on(self, text: str) -> bool:
        """Whether this is the beginning of valid JSON; said a limited number of times."""
        if self._growths <= 0:
            return False
        try:
            # Of a cut number msgspec says that it is malformed.
            msgspec.json.decode(text.rstrip("+-.eE0123456789").encode("latin-1"), type=msgspec.Raw)
        except msgspec.DecodeError as error:
            going_on = "truncated" in str(error)
        except RecursionError:
            going_on = False
        else:
            going_on = False
        self._growths -= going_on
        return going_on


def _skip_commas(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    assert found is not None
    return found.end()
