"""Reads a framed pickle of a snapshot with a machine of our own, the runs of its history with arrays.

The machine knows plain data only: there is nothing in it that could load a class. It is for the files that torch's
``_dump_snapshot`` writes (protocol 4 and 5, with frames); anything else makes it give up, and the file is read by
:mod:`zeropeak.parse.snapshot.unpickle`.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from zeropeak.parse.snapshot.entries import ACTIONS, Columns, columns, join
from zeropeak.parse.snapshot.scan import PADDING, WINDOW_BYTES, Template, Window, get_opcode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

MAX_STEPS: Final = 3_000_000
"""Opcodes that are decoded one by one, about a second's worth; a file that needs more is not what this is for."""

FIRST_WINDOW: Final = 1 << 18
"""Bytes of the first window with a new template; the ones after it are four times as large each."""

MAX_TEMPLATES: Final = 8
"""A history has one shape of entries, or two where some lack a compile context."""

ELSEWHERE: Final[list[Any]] = []
"""Stands for objects of the memo that were decoded in a run: entries and stacks, which can be no key of a dict."""

_FRAME: Final = 0x95
_HEADER: Final = struct.Struct("<BQ")
_GETS: Final = re.compile(rb"(?:h.|j.{4})+", re.DOTALL)


class GaveUp(Exception):
    """The pickle is not of the kind this reads; it need not be a bad one."""


class Trace(list[Any]):
    """A device's history in the making: a list for the machine, which it never fills."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Columns] = []
        self._waiting: list[Any] = []

    def extend(self, items: Any, /) -> None:
        """Take entries that were decoded one by one."""
        self._waiting.extend(items)

    def append(self, item: Any, /) -> None:
        """Take an entry that was decoded by itself."""
        self._waiting.append(item)

    def add(self, part: Columns) -> None:
        """Take entries that were decoded as a run."""
        self.settle()
        self.parts.append(part)

    def settle(self) -> None:
        """Turn single entries into a part."""
        if self._waiting:
            self.parts.append(columns(self._waiting))
            self._waiting = []

    def columns(self) -> Columns:
        """The whole history."""
        self.settle()
        return join(self.parts)


def unframed(file: BinaryIO, expected_bytes: int) -> Bytes | None:
    """The opcodes of a framed pickle without protocol and frame headers, padded; None when it is not wholly framed.

    Args:
        file: at the pickle's start.
        expected_bytes: about how large the pickle is; room for so much is made at the start.
    """
    protocol = file.read(2)
    if len(protocol) < 2 or protocol[0] != 0x80 or protocol[1] not in (4, 5):
        return None
    data = np.empty(expected_bytes + PADDING, np.uint8)
    used = 0
    while header := file.read(_HEADER.size):
        if len(header) < _HEADER.size or header[0] != _FRAME:
            return None
        left = _HEADER.unpack(header)[1]
        while left:
            # A frame that claims more than the file has makes no more room than the file has bytes.
            if used + PADDING == len(data):
                data = np.concatenate([data, np.empty(len(data), np.uint8)])
            count = file.readinto(data.data[used : min(used + left, len(data) - PADDING)])  # type: ignore[attr-defined]
            if not count:
                return None
            used += count
            left -= count
    data[used : used + PADDING] = 0
    return data[: used + PADDING]


class Machine:
    """A pickle machine for plain data."""

    def __init__(self, data: Bytes) -> None:
        self._bytes = data
        self._data = data.data
        self._at = 0
        self._memo: dict[int, Any] = {}
        self._memo_size = 0
        self._places: dict[str, int] = {}
        """Where the memo has a string first."""
        self._actions: dict[int, int] = {}
        """Our codes of the actions in the memo, by place."""
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._steps = 0
        self._traces: list[Any] | None = None
        self._templates: dict[tuple[str, ...], Template] = {}
        """How entries are written that were decoded one by one, by their keys."""
        self._window: Window | None = None

    def load(self) -> Any:
        """Run to the end and return what the pickle holds. Raises GaveUp."""
        try:
            self._run(-1)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError, struct.error) as error:
            raise GaveUp(str(error)) from error
        if len(self._stack) != 1 or self._marks:
            raise GaveUp("objects left over")
        found = self._stack[0]
        annotations = found.get("external_annotations") if isinstance(found, dict) else None
        for annotation in annotations if isinstance(annotations, list) else ():
            if isinstance(annotation, dict) and any(value is ELSEWHERE for value in annotation.values()):
                raise GaveUp("an annotation that refers to an entry")
        return found

    def _run(self, until_depth: int) -> None:
        """Decode opcodes up to STOP, or up to the SETITEMS that leaves ``until_depth`` marks."""
        data, memo, marks, stack = self._data, self._memo, self._marks, self._stack
        at = self._at
        last = len(data) - PADDING
        steps = 0
        while True:
            if at >= last:
                raise GaveUp("no STOP")
            steps += 1
            code = data[at]
            at += 1
            if code == 0x68 or code == 0x6A:  # BINGET, LONG_BINGET
                found = _GETS.match(data, at - 1)
                assert found is not None
                at = found.end()
                self._gets(found[0], stack)
            elif code == 0x94:  # MEMOIZE
                top = stack[-1]
                memo[self._memo_size] = top
                if type(top) is str:
                    self._places.setdefault(top, self._memo_size)
                    if top in ACTIONS:
                        self._actions[self._memo_size] = ACTIONS[top]
                self._memo_size += 1
            elif code == 0x8C:  # SHORT_BINUNICODE
                end = at + 1 + data[at]
                stack.append(str(data[at + 1 : end], "utf-8", "surrogatepass"))
                at = end
            elif code == 0x4B:  # BININT1
                stack.append(data[at])
                at += 1
            elif code == 0x8A:  # LONG1
                end = at + 1 + data[at]
                stack.append(int.from_bytes(data[at + 1 : end], "little", signed=True))
                at = end
            elif code == 0x4D:  # BININT2
                stack.append(int.from_bytes(data[at : at + 2], "little"))
                at += 2
            elif code == 0x4A:  # BININT
                stack.append(int.from_bytes(data[at : at + 4], "little", signed=True))
                at += 4
            elif code == 0x7D:  # EMPTY_DICT
                stack.append({})
            elif code == 0x28:  # MARK
                if type(stack[-1] if stack else None) is Trace:
                    self._at = at
                    self._steps += steps
                    self._entries(stack[-1])
                    at, steps = self._at, 0
                else:
                    marks.append(stack)
                    stack = self._stack = []
            elif code == 0x75:  # SETITEMS
                items = stack
                stack = self._stack = marks.pop()
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
                if len(marks) <= until_depth:
                    break
            elif code == 0x5D:  # EMPTY_LIST
                stack.append(self._new_list(stack, marks))
            elif code == 0x65:  # APPENDS
                items = stack
                stack = self._stack = marks.pop()
                stack[-1].extend(items)
                if len(marks) < until_depth:
                    raise GaveUp("an entry that is no dict")
            elif code == 0x61:  # APPEND
                item = stack.pop()
                stack[-1].append(item)
            elif code == 0x73:  # SETITEM
                value, key = stack.pop(), stack.pop()
                stack[-1][key] = value
            elif code == 0x58:  # BINUNICODE
                end = at + 4 + int.from_bytes(data[at : at + 4], "little")
                stack.append(str(data[at + 4 : end], "utf-8", "surrogatepass"))
                at = end
            elif code == 0x4E:  # NONE
                stack.append(None)
            elif code == 0x88 or code == 0x89:  # NEWTRUE, NEWFALSE
                stack.append(code == 0x88)
            elif code == 0x47:  # BINFLOAT
                stack.append(struct.unpack(">d", data[at : at + 8])[0])
                at += 8
            elif 0x85 <= code <= 0x87:  # TUPLE1 to TUPLE3
                size = code - 0x84
                stack[-size:] = [tuple(stack[-size:])]
            elif code == 0x29:  # EMPTY_TUPLE
                stack.append(())
            elif code == 0x2E:  # STOP
                if until_depth >= 0:
                    raise GaveUp("STOP inside an entry")
                break
            else:
                raise GaveUp(f"opcode {code:#x}")
            if steps > MAX_STEPS - self._steps:
                raise GaveUp("too much to decode one by one")
        self._at = at
        self._steps += steps

    def _gets(self, opcodes: bytes, stack: list[Any]) -> None:
        """Push the objects of a row of BINGET and LONG_BINGET."""
        memo, size = self._memo, self._memo_size
        at = 0
        while at < len(opcodes):
            if opcodes[at] == 0x68:
                place, at = opcodes[at + 1], at + 2
            else:
                place, at = int.from_bytes(opcodes[at + 1 : at + 5], "little"), at + 5
            if place >= size:
                raise GaveUp("a reference to nothing")
            stack.append(memo.get(place, ELSEWHERE))

    def _new_list(self, stack: list[Any], marks: list[list[Any]]) -> list[Any]:
        """An empty list: the traces, a trace, or any other, by where it will go."""
        if len(marks) == 1 and len(stack) % 2 and stack[-1] == "device_traces":
            self._traces = []
            return self._traces
        if self._traces is not None and (
            (stack and stack[-1] is self._traces) or (marks and marks[-1] and marks[-1][-1] is self._traces)
        ):
            return Trace()
        return []

    def _entries(self, trace: Trace) -> None:
        """Decode the entries of a trace, from behind its first MARK to behind its last APPENDS."""
        data = self._data
        while True:
            code = data[self._at]
            if code == 0x7D:  # EMPTY_DICT
                if not self._take_run(trace):
                    self._take_one(trace)
            elif code == 0x65:  # APPENDS
                self._at += 1
                if data[self._at] != 0x28:  # MARK
                    return
                self._at += 1
            else:
                raise GaveUp("a trace of something else than dicts")

    def _take_run(self, trace: Trace) -> bool:
        """Decode entries at once; False when the next one is not like one of those before."""
        if not self._templates:
            return False
        window, templates = self._window, tuple(self._templates.values())
        same = window is not None and window.templates == templates
        if window is None or not same or not window.start <= self._at < window.stop:
            grown = 4 * (window.stop - window.start) if window and same else FIRST_WINDOW
            window = self._window = Window(self._bytes, self._at, templates, min(grown, WINDOW_BYTES))
        run = window.run(self._at)
        if run is None:
            return False
        trace.add(run.columns)
        self._at = run.end
        self._memo_size += run.memoized
        return True

    def _take_one(self, trace: Trace) -> None:
        """Decode one entry opcode by opcode, and learn from it how the ones behind it may look."""
        outer = self._stack
        self._marks.append(outer)
        self._stack = []
        depth = len(self._marks)
        self._run(depth)
        found = self._stack
        if len(found) != 1 or len(self._marks) != depth or self._marks.pop() is not outer:
            raise GaveUp("an entry that is no dict")
        self._stack = outer
        trace.append(found[0])
        self._learn(found[0])

    def _learn(self, entry: dict[Any, Any]) -> None:
        shape = tuple(entry)
        if not {"action", "addr", "size"} <= entry.keys() or not all(name in self._places for name in shape):
            return
        keys = tuple((name, get_opcode(self._places[name])) for name in shape)
        known = next(iter(self._templates.values()), None)
        new = shape not in self._templates and len(self._templates) < MAX_TEMPLATES
        if known is not None and known.keys[0] != keys[0]:
            return
        if new or known is None or len(known.actions) < len(self._actions):
            actions = dict(self._actions)
            shapes = {name: some.keys for name, some in self._templates.items()} | ({shape: keys} if new else {})
            self._templates = {name: Template(some, actions) for name, some in shapes.items()}
