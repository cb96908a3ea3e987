"""The recorder: turns "this begins" and "this ends" into log rows and ranges with one id."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, NamedTuple

from zeropeak.profile.eventlog import FLUSH_VALUES
from zeropeak.profile.labels import Kind, Phase, event_id, range_name
from zeropeak.profile.packed import BEGIN, END, NONE, POINT, Context, What

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zeropeak.profile.counters import Counters
    from zeropeak.profile.eventlog import EventLog
    from zeropeak.profile.ranges import Ranges


class Position:
    """Where training is: set by the engine's hooks, stamped on every event.

    Attributes:
        step: optimizer step, -1 before the first forward.
        micro_step: within the step.
        phase: what the loop is doing.
        version: counts the changes.
    """

    def __init__(self) -> None:
        self.step = -1
        self.micro_step = 0
        self.phase: Phase | None = None
        self.version = 0

    def move(self, *, step: int, micro_step: int) -> None:
        """A new micro-step begins."""
        self.step, self.micro_step = step, micro_step
        self.version += 1

    def enter(self, phase: Phase | None) -> None:
        """A phase begins, or None: it ended."""
        self.phase = phase
        self.version += 1


class OpenEvent:
    """An event that has begun."""

    __slots__ = ("event_id", "nested", "parent", "read", "tokens", "what")

    def __init__(self, event_id: int, what: int, parent: int | None, nested: bool, read: bool) -> None:
        self.event_id = event_id
        self.what = what
        self.parent = parent
        self.nested = nested
        self.read = read
        self.tokens: list[object] = []


class _Thread:
    """What the recorder keeps for each thread: its open events, and its context as of a position's version."""

    __slots__ = ("context", "native_id", "stack", "version")

    def __init__(self) -> None:
        self.native_id = threading.get_native_id()
        self.stack: list[OpenEvent] = []
        self.version = -1
        self.context = 0


class Known(NamedTuple):
    """A kind and target that :meth:`Recorder.known` has looked up: what happens again and again is looked up once.

    Attributes:
        number: in the log's ``whats``.
        name: of its range.
        category: its kind's word.
        read: whether its events read the counters.
    """

    number: int
    name: str
    category: str
    read: bool


class Recorder:
    """Writes events of one rank.

    Runs thousands of times a step, so it is written for few calls: what repeats is looked up, what does not is one row
    of integers (``benchmarks/overhead.py`` has the figures).

    Args:
        rank: global rank.
        log: where rows go.
        ranges: where the same events show as ranges.
        counters: the device's allocator counters.
        clock: monotonic nanoseconds.
        sampled: read the counters at every event; otherwise at phases only, where something else (the allocator's
            history, torch.profiler) records the memory: one reading costs more than all the rest of an event.
    """

    def __init__(
        self,
        rank: int,
        log: EventLog,
        ranges: Iterable[Ranges],
        counters: Counters,
        clock: Callable[[], int],
        *,
        sampled: bool = True,
    ) -> None:
        self.rank = rank
        self.log = log
        self.position = Position()
        self.counters = counters
        self.clock = clock
        self._ranges = list(ranges)
        self._sampled = sampled
        self._next = itertools.count(event_id(rank, 1)).__next__
        self._local = threading.local()
        self._known: dict[str, Known] = {}
        self._add = log.adder("events")
        self._add_param = log.adder("event_params")
        self._params = log.packed["event_params"]

    def known(self, kind: Kind, target: str = "") -> Known:
        """What stands for a kind and the name it acts on; see :func:`zeropeak.profile.labels.range_name`."""
        # A key of text: an enum member's hash is a call into Python.
        known = self._known.get(kind + target)
        if known is None:
            number = self.log.whats.of(What(kind, target))
            known = Known(number, range_name(kind, target), kind.value, self._sampled or kind is Kind.PHASE)
            known = self._known.setdefault(kind + target, known)
        return known

    def begin(
        self, known: Known, module_id: int | None = None, params: Iterable[int] = (), nested: bool = True
    ) -> OpenEvent:
        """Open an event.

        Args:
            known: what it is, and on what.
            module_id: module that is running or letting go.
            params: ids of the parameters it moves.
            nested: it ends on this thread before anything that is open now; False for modules, phases and gathers.
        """
        thread = self._thread()
        stack = thread.stack
        parent = stack[-1].event_id if stack else None
        opened = OpenEvent(self._next(), known.number, parent, nested, known.read)
        self._write(BEGIN, opened, module_id, thread.context, self.counters.stream() if nested else None)
        for param in params:
            self._add_param((opened.event_id, param, NONE, NONE))
        for ranges in self._ranges:
            show = ranges.push if nested else ranges.start
            opened.tokens.append(show(known.name, known.category, opened.event_id))
        if nested:
            stack.append(opened)
        return opened

    def end(self, opened: OpenEvent) -> None:
        """Close an event, and first whatever is still open inside it: an exception can skip an inner end."""
        thread = self._thread()
        if opened.nested:
            stack = thread.stack
            while opened in stack and (inner := stack.pop()) is not opened:
                self._close(inner, thread)
        self._close(opened, thread)

    def _close(self, opened: OpenEvent, thread: _Thread) -> None:
        for ranges, token in zip(reversed(self._ranges), reversed(opened.tokens), strict=True):
            (ranges.pop if opened.nested else ranges.end)(token)
        self._write(END, opened, None, thread.context, None)

    def point(self, known: Known, param_id: int, address: int, storage_id: int | None) -> int:
        """Record a moment.

        Args:
            known: what it is, and on what.
            param_id: parameter that it drops.
            address: of its full storage.
            storage_id: registered storage; None for one that stays by design.

        Returns:
            The event's id.
        """
        thread = self._thread()
        stack = thread.stack
        moment = OpenEvent(self._next(), known.number, stack[-1].event_id if stack else None, True, known.read)
        self._write(POINT, moment, None, thread.context, self.counters.stream())
        self._add_param((moment.event_id, param_id, address, NONE if storage_id is None else storage_id))
        for ranges in self._ranges:
            ranges.mark(known.name, known.category, moment.event_id)
        return moment.event_id

    def moved(self, opened: OpenEvent, param_id: int, address: int = NONE, storage_id: int = NONE) -> None:
        """Note a parameter that an event moved, known only while it runs.

        Args:
            opened: the event.
            param_id: the parameter.
            address: of its full storage, where it exists.
            storage_id: registered storage.
        """
        self._add_param((opened.event_id, param_id, address, storage_id))

    def current(self) -> int | None:
        """Id of the innermost nested event on this thread."""
        stack = self._thread().stack
        return stack[-1].event_id if stack else None

    def _thread(self) -> _Thread:
        try:
            thread: _Thread = self._local.thread
        except AttributeError:
            thread = self._local.thread = _Thread()
        position = self.position
        if thread.version != position.version:
            thread.version = position.version
            phase = position.phase.value if position.phase else None
            thread.context = self.log.contexts.of(Context(thread.native_id, position.step, position.micro_step, phase))
        return thread

    def _write(self, edge: int, event: OpenEvent, module_id: int | None, context: int, stream: int | None) -> None:
        allocated = reserved = NONE
        if event.read:
            reading = self.counters.read()
            if reading.allocated_bytes is not None:
                allocated = reading.allocated_bytes
            if reading.reserved_bytes is not None:
                reserved = reading.reserved_bytes
        now = self.clock()
        self._add(
            (
                event.event_id,
                edge,
                now,
                event.what,
                NONE if module_id is None else module_id,
                context,
                NONE if stream is None else stream,
                allocated,
                reserved,
                NONE if edge == END or event.parent is None else event.parent,
            )
        )
        if now > self.log.due_ns or len(self._params) > FLUSH_VALUES:
            self.log.flush()
