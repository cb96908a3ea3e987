"""Runs of history entries, read straight from the bytes of a pickle.

Python's pickler writes the dicts of a history one like the other: the same keys in the same order, each key a reference
to the string's first occurrence, the values small integers, references, or a list of references to frames. So where an
entry has just been decoded, the ones behind it can be decoded all at once, field by field, with arrays. Nothing is
guessed: decoding starts where an entry is known to start, checks every byte of every entry, and goes on only where the
next entry starts exactly behind the last. Whatever looks different ends the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from zeropeak.parse.snapshot.entries import MISSING, Columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]
    Flags = NDArray[np.bool_]
    Codes = NDArray[np.uint8]

WINDOW_BYTES: Final = 8 << 20
"""Bytes decoded at once: the arrays of so many entries (about 80,000) stay in the processor's cache."""

MAX_FRAMES: Final = 1000
"""Frames of a stack; Python's recursion limit keeps real ones below."""

PADDING: Final = 64
"""Bytes behind the pickle that decoding may look at."""

INTS: Final = ("addr", "size", "stream", "time_us")
FIELDS: Final = ("action", *INTS)
"""Keys whose values are decoded, in the order of :class:`~zeropeak.parse.snapshot.entries.Columns`."""

_ENTRY: Final = b"}\x94("
_LIST, _MEMOIZE, _MARK, _APPEND, _APPENDS, _SETITEMS = (ord(letter) for letter in "]\x94(aeu")
_BINGET, _LONG_BINGET, _BININT1, _BININT2, _BININT, _LONG1 = (ord(letter) for letter in "hjKMJ\x8a")
_NONE, _TRUE, _FALSE, _STRING, _TUPLE2 = (ord(letter) for letter in "N\x88\x89\x8c\x86")

_LENGTH: Final = np.zeros(256, np.int64)
"""Length of the opcodes that can be a value, with their argument; 0 for all others."""
for _code, _bytes in {
    _BINGET: 2,
    _LONG_BINGET: 5,
    _BININT1: 2,
    _BININT2: 3,
    _BININT: 5,
    _NONE: 1,
    _TRUE: 1,
    _FALSE: 1,
}.items():
    _LENGTH[_code] = _bytes

_MASK: Final = np.array([(1 << 8 * width) - 1 for width in range(9)], np.uint64)


def get_opcode(memo_index: int) -> bytes:
    """The bytes that refer to an object of the memo.

    >>> get_opcode(5), get_opcode(300)
    (b'h\\x05', b'j,\\x01\\x00\\x00')
    """
    if memo_index < 256:
        return bytes([_BINGET, memo_index])
    return bytes([_LONG_BINGET]) + memo_index.to_bytes(4, "little")


@dataclass(frozen=True)
class Template:
    """One way in which the entries of a history are written."""

    keys: tuple[tuple[str, bytes], ...]
    """The keys in order, each as (name, bytes that refer to it)."""
    actions: Mapping[int, int]
    """Our code of an action, by its string's place in the memo."""

    @property
    def shape(self) -> tuple[str, ...]:
        """Names of the keys in order."""
        return tuple(name for name, _ in self.keys)


@dataclass(frozen=True)
class Run:
    """Entries decoded one behind the other."""

    columns: Columns
    end: int
    """Where the last one ends."""
    memoized: int
    """Objects that they put into the memo."""


class Window:
    """All entries that start in one stretch of a pickle.

    Args:
        data: the pickle's opcodes, with PADDING bytes behind them.
        start: where an entry starts.
        templates: ways in which entries are written; all have the same first key.
        size: bytes of the stretch.
    """

    def __init__(self, data: Codes, start: int, templates: tuple[Template, ...], size: int = WINDOW_BYTES) -> None:
        self.start = start
        self.stop = min(start + size, len(data) - PADDING)
        self.templates = templates
        words: Words = np.ndarray((len(data) - 7,), "<u8", data.data, strides=(1,))
        first = _ENTRY + templates[0].keys[0][1]
        begin = start + np.flatnonzero(data[start : self.stop] == first[0])
        self._begin = begin[words[begin] & _MASK[len(first)] == int.from_bytes(first, "little")]
        found = _Fields(data, words, self._begin, templates[0])
        self._good, self._end, self._memoized = found.good, found.end, found.memoized
        self._values = {name: found.values.get(name, np.full(len(self._begin), MISSING)) for name in FIELDS}
        for template in templates[1:]:
            rest = np.flatnonzero(~self._good)
            found = _Fields(data, words, self._begin[rest], template)
            rest, good = rest[found.good], found.good
            self._good[rest], self._end[rest], self._memoized[rest] = True, found.end[good], found.memoized[good]
            for name, values in self._values.items():
                values[rest] = found.values[name][good] if name in found.values else MISSING
        # Every 1000 entries the pickler ends a batch and begins another.
        between = words[self._end] & _MASK[2] == _APPENDS + (_MARK << 8)
        linked = self._good & (self._end + 2 * between == np.append(self._begin[1:], -1))
        self._breaks = np.flatnonzero(~linked)

    def run(self, start: int) -> Run | None:
        """Decode entries from ``start`` on, the start of an entry; None when no template fits that one."""
        at = int(np.searchsorted(self._begin, start))
        if at == len(self._begin) or self._begin[at] != start or not self._good[at]:
            return None
        place = int(np.searchsorted(self._breaks, at))
        last = int(self._breaks[place])
        stop = last + bool(self._good[last])
        action, address, size, stream, time_us = (self._values[name][at:stop] for name in FIELDS)
        return Run(
            Columns(action.astype(np.uint8), address, size, stream, time_us),
            int(self._end[stop - 1]),
            int(self._memoized[at:stop].sum()),
        )


class _Fields:
    """The fields of many entries, decoded by one template.

    Attributes:
        good: which entries are written as the template says, to the last byte.
        end: where each ends.
        memoized: objects that each puts into the memo.
        values: by name of the key, codes of actions and integers.
    """

    def __init__(self, data: Codes, words: Words, begin: Ints, template: Template) -> None:
        self._data, self._words, self._template = data, words, template
        self.good = np.ones(len(begin), np.bool_)
        self.memoized = np.ones(len(begin), np.int64)
        self.values: dict[str, Ints] = {}
        at = begin + len(_ENTRY)
        for name, key in template.keys:
            self.good &= words[at] & _MASK[len(key)] == int.from_bytes(key, "little")
            at = self._skip(at, self._field(name, self._skip(at, len(key))) + len(key))
        self.good &= data[at] == _SETITEMS
        self.end = self._skip(at, 1)

    def _skip(self, at: Ints, length: Ints | int) -> Ints:
        # A wrong length must not lead out of the data.
        reached: Ints = np.minimum(at + length, len(self._data) - PADDING)
        return reached

    def _field(self, name: str, at: Ints) -> Ints:
        """Decode one value of every entry; returns the lengths."""
        word = self._words[at]
        opcode = (word & _MASK[1]).astype(np.uint8)
        if name in INTS:
            self.values[name], length = self._ints(at, word, opcode)
        else:
            length = _LENGTH[opcode]
            if name == "action":
                self.values[name] = self._actions(word, opcode)
            for code, measure in ((_LIST, self._lists), (_STRING, self._strings), (_BININT1, self._pairs)):
                rows = np.flatnonzero((opcode == code) & self.good)
                if len(rows):
                    length[rows] = measure(rows, at[rows])
        self.good &= length > 0
        return length

    def _ints(self, at: Ints, word: Words, opcode: Codes) -> tuple[Ints, Ints]:
        """Integers and the length of their opcodes; negative and longer ones end the run."""
        long = opcode == _LONG1
        width = np.where(long, (word >> np.uint64(8) & _MASK[1]).astype(np.int64), _LENGTH[opcode] - 1)
        number = (opcode == _BININT1) | (opcode == _BININT2) | (opcode == _BININT) | (long & (width <= 8))
        self.good &= number
        width = np.where(number, width, 0)
        raw = self._words[at + 1 + long] & _MASK[width]
        value = raw.astype(np.int64)
        signed = long | (opcode == _BININT)
        self.good &= ~(signed & (raw >> (8 * np.maximum(width, 1) - 1).astype(np.uint64)).astype(np.bool_))
        return value, np.where(number, 1 + long + width, 0)

    def _actions(self, word: Words, opcode: Codes) -> Ints:
        """Codes of actions from references to their strings."""
        short = word >> np.uint64(8) & _MASK[1]
        reference = np.where(opcode == _BINGET, short, word >> np.uint64(8) & _MASK[4])
        self.good &= (opcode == _BINGET) | (opcode == _LONG_BINGET)
        code = np.full(len(word), MISSING)
        for memo_index, action in self._template.actions.items():
            code[reference == memo_index] = action
        self.good &= code != MISSING
        return code

    def _strings(self, rows: Ints, at: Ints) -> Ints:
        """Length of strings that are written out and memoized."""
        length: Ints = 2 + self._data[at + 1].astype(np.int64)
        memoized: Flags = self._data[self._skip(at, length)] == _MEMOIZE
        self.memoized[rows] += memoized
        return length + memoized

    def _pairs(self, rows: Ints, at: Ints) -> Ints:
        """Length of small integers, and of tuples of two of them (pool_id)."""
        word = self._words[at]
        pair = (word >> np.uint64(16) & _MASK[1] == _BININT1) & (word >> np.uint64(32) & _MASK[1] == _TUPLE2)
        memoized = pair & (word >> np.uint64(40) & _MASK[1] == _MEMOIZE)
        self.memoized[rows] += memoized
        return np.where(pair, 5 + memoized, 2)

    def _lists(self, rows: Ints, at: Ints) -> Ints:
        """Length of lists of references: ``] MEMOIZE`` and nothing, ``get APPEND``, or ``MARK get... APPENDS``."""
        self.memoized[rows] += 1
        self.good[rows] &= self._data[at + 1] == _MEMOIZE
        data, inside = self._data, at + 2
        length = np.full(len(rows), 2)
        get = _LENGTH[data[inside]] * ((data[inside] == _BINGET) | (data[inside] == _LONG_BINGET))
        # Without APPEND behind it, that is the next key, and the list is empty.
        single = (get > 0) & (data[inside + get] == _APPEND)
        length[single] += get[single] + 1
        marked = np.flatnonzero(data[inside] == _MARK)
        cursor = inside[marked] + 1
        active = np.arange(len(marked))
        for _ in range(MAX_FRAMES):
            if not len(active):
                break
            opcode = data[cursor[active]]
            step = _LENGTH[opcode] * ((opcode == _BINGET) | (opcode == _LONG_BINGET))
            done = step == 0
            self.good[rows[marked[active[done]]]] &= opcode[done] == _APPENDS
            active = active[~done]
            cursor[active] = self._skip(cursor[active], step[~done])
        self.good[rows[marked[active]]] = False
        length[marked] = cursor + 1 - at[marked]
        return length
