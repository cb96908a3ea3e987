"""The recorder: turns "this begins" and "this ends" into log rows and ranges with one id."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any, Final

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


class Known:
    """A kind and target that :meth:`Recorder.known` has looked up: what happens again and again is looked up once.

    Attributes:
        number: in the log's ``whats``.
        read: whether its events read the counters.
        nested: whether they end on their thread before anything that was open when they began.
        handles: what each kind of range shows them by.
    """

    __slots__ = ("handles", "nested", "number", "read")

    def __init__(self, number: int, handles: list[Any], *, read: bool, nested: bool) -> None:
        self.number = number
        self.handles = handles
        self.read = read
        self.nested = nested


OpenEvent = tuple[int, Known, list[Any] | None]
"""An event that has begun: its id, what it is, and what opening its ranges gave (None without ranges)."""


class _Thread:
    """What the recorder keeps for each thread: its open nested events, and its context as of a position's version."""

    __slots__ = ("context", "native_id", "stack", "version")

    def __init__(self) -> None:
        self.native_id = threading.get_native_id()
        self.stack: list[OpenEvent] = []
        self.version = -1
        self.context = 0


class Recorder:
    """Writes events of one rank.

    Runs thousands of times a step, each time between work that has pushed it out of the processor's caches: it touches
    as little memory as it can. What repeats is looked up once, what does not is one row of integers
    (``benchmarks/overhead.py`` has the figures).

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
        self._stream = counters.stream
        self._next = itertools.count(event_id(rank, 1)).__next__
        self._local = threading.local()
        self._known: dict[tuple[Kind, str, bool], Known] = {}
        self._add = log.adder("events")
        self._add_param = log.adder("event_params")
        self._params = log.packed["event_params"]

    def known(self, kind: Kind, target: str = "", *, nested: bool = True) -> Known:
        """What stands for a kind and the name it acts on.

        Args:
            kind: what it is.
            target: see :func:`zeropeak.profile.labels.range_name`.
            nested: its events end on their thread before anything that was open when they began; False for modules,
                phases and contexts.
        """
        key = kind, target, nested
        known = self._known.get(key)
        if known is None:
            name = range_name(kind, target)
            known = Known(
                self.log.whats.of(What(kind, target)),
                [ranges.handle(name, kind.value) for ranges in self._ranges],
                read=self._sampled or kind is Kind.PHASE,
                nested=nested,
            )
            known = self._known.setdefault(key, known)
        return known

    def begin(self, known: Known, module_id: int = NONE, params: Iterable[int] = ()) -> OpenEvent:
        """Open an event.

        Args:
            known: what it is, and on what.
            module_id: module that is running or letting go.
            params: ids of the parameters it moves.
        """
        thread = self._thread()
        number, now = self._first_row(BEGIN, known, module_id, thread)
        for param in params:
            self._add_param((number, param, NONE, NONE))
        opened = number, known, self._show(known, number) if known.handles else None
        if known.nested:
            thread.stack.append(opened)
        if now > self.log.due_ns:
            self.log.flush()
        return opened

    def end(self, opened: OpenEvent) -> None:
        """Close an event, and first whatever is still open inside it: an exception can skip an inner end."""
        thread = self._thread()
        if opened[1].nested:
            stack = thread.stack
            if stack and stack[-1] is opened:
                stack.pop()
            elif opened in stack:
                while (inner := stack.pop()) is not opened:
                    self._close(inner, thread)
        self._close(opened, thread)

    def _close(self, opened: OpenEvent, thread: _Thread) -> None:
        number, known, tokens = opened
        if tokens is not None:
            for ranges, token in zip(reversed(self._ranges), reversed(tokens), strict=True):
                (ranges.pop if known.nested else ranges.end)(token)
        allocated, reserved = self._memory() if known.read else _UNREAD
        now = self.clock()
        self._add((number, END, now, known.number, NONE, thread.context, NONE, allocated, reserved, NONE))
        if now > self.log.due_ns or len(self._params) > FLUSH_VALUES:
            self.log.flush()

    def point(self, known: Known, param_id: int, address: int, storage_id: int) -> int:
        """Record a moment.

        Args:
            known: what it is, and on what.
            param_id: parameter that it drops.
            address: of its full storage.
            storage_id: registered storage; NONE for one that stays by design.

        Returns:
            The event's id.
        """
        number, _ = self._first_row(POINT, known, NONE, self._thread())
        self._add_param((number, param_id, address, storage_id))
        if known.handles:
            for ranges, handle in zip(self._ranges, known.handles, strict=True):
                ranges.mark(handle, number)
        return number

    def moved(self, opened: OpenEvent, param_id: int, address: int = NONE, storage_id: int = NONE) -> None:
        """Note a parameter that an event moved, known only while it runs.

        Args:
            opened: the event.
            param_id: the parameter.
            address: of its full storage, where it exists.
            storage_id: registered storage.
        """
        self._add_param((opened[0], param_id, address, storage_id))

    def current(self) -> int:
        """Id of the innermost nested event on this thread; NONE without one."""
        stack = self._thread().stack
        return stack[-1][0] if stack else NONE

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

    def _first_row(self, edge: int, known: Known, module_id: int, thread: _Thread) -> tuple[int, int]:
        """Write the row that an event, or a moment, starts with; its id and its time."""
        stack = thread.stack
        number = self._next()
        allocated, reserved = self._memory() if known.read else _UNREAD
        stream = self._stream() if known.nested else None
        now = self.clock()
        self._add(
            (
                number,
                edge,
                now,
                known.number,
                module_id,
                thread.context,
                NONE if stream is None else stream,
                allocated,
                reserved,
                stack[-1][0] if stack else NONE,
            )
        )
        return number, now

    def _show(self, known: Known, number: int) -> list[Any]:
        """Open the event's ranges; what each gave."""
        return [
            (ranges.push if known.nested else ranges.start)(handle, number)
            for ranges, handle in zip(self._ranges, known.handles, strict=True)
        ]

    def _memory(self) -> tuple[int, int]:
        """Allocated and reserved bytes now; NONE where the device keeps no such counter."""
        allocated, reserved = self.counters.read()
        return NONE if allocated is None else allocated, NONE if reserved is None else reserved


_UNREAD: Final = (NONE, NONE)
