"""The recorder: turns "this begins" and "this ends" into log rows and ranges with one id."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zeropeak.profile.labels import Edge, Kind, Phase, event_id, range_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zeropeak.profile.counters import Counters
    from zeropeak.profile.eventlog import EventLog
    from zeropeak.profile.ranges import Ranges


@dataclass(slots=True)
class Position:
    """Where training is: set by the engine's hooks, stamped on every event."""

    step: int = -1
    micro_step: int = 0
    phase: Phase | None = None


@dataclass(slots=True, eq=False)
class OpenEvent:
    """An event that has begun."""

    event_id: int
    kind: Kind
    target: str
    module_id: int | None
    nested: bool
    parent: int | None
    tokens: list[object] = field(default_factory=list)


class Recorder:
    """Writes events of one rank.

    Args:
        rank: global rank.
        log: where rows go.
        ranges: where the same events show as ranges.
        counters: the device's allocator counters.
        clock: monotonic nanoseconds.
    """

    def __init__(
        self, rank: int, log: EventLog, ranges: Iterable[Ranges], counters: Counters, clock: Callable[[], int]
    ) -> None:
        self.rank = rank
        self.log = log
        self.position = Position()
        self.counters = counters
        self.clock = clock
        self._ranges = list(ranges)
        self._sequence = itertools.count(1)
        self._local = threading.local()

    def begin(
        self,
        kind: Kind,
        target: str = "",
        module_id: int | None = None,
        params: Iterable[int] = (),
        nested: bool = True,
    ) -> OpenEvent:
        """Open an event.

        Args:
            kind: what it is.
            target: name it acts on; see :func:`zeropeak.profile.labels.range_name`.
            module_id: module that is running or letting go.
            params: ids of the parameters it moves.
            nested: it ends on this thread before anything that is open now; False for modules, phases and gathers.
        """
        stack = self._stack()
        opened = OpenEvent(
            event_id(self.rank, next(self._sequence)), kind, target, module_id, nested, self._innermost(stack)
        )
        self._write(Edge.BEGIN, opened)
        for param in params:
            self.log.append("event_params", (opened.event_id, param, None, None))
        name = range_name(kind, target)
        for ranges in self._ranges:
            show = ranges.push if nested else ranges.start
            opened.tokens.append(show(name, kind.value, opened.event_id))
        if nested:
            stack.append(opened)
        return opened

    def end(self, opened: OpenEvent) -> None:
        """Close an event, and first whatever is still open inside it: an exception can skip an inner end."""
        if opened.nested:
            stack = self._stack()
            while opened in stack and (inner := stack.pop()) is not opened:
                self._close(inner)
        self._close(opened)

    def _close(self, opened: OpenEvent) -> None:
        for ranges, token in zip(reversed(self._ranges), reversed(opened.tokens), strict=True):
            (ranges.pop if opened.nested else ranges.end)(token)
        self._write(Edge.END, opened)

    def point(
        self, kind: Kind, target: str, params: Iterable[tuple[int, int, int | None]], module_id: int | None = None
    ) -> int:
        """Record a moment.

        Args:
            kind: what it is.
            target: name it acts on.
            params: (parameter id, address, storage id) of what it drops; no storage id for one that stays by design.
            module_id: module that owns it.

        Returns:
            The event's id.
        """
        stack = self._stack()
        moment = OpenEvent(
            event_id(self.rank, next(self._sequence)), kind, target, module_id, True, self._innermost(stack)
        )
        self._write(Edge.POINT, moment)
        for param, address, storage in params:
            self.log.append("event_params", (moment.event_id, param, address, storage))
        name = range_name(kind, target)
        for ranges in self._ranges:
            ranges.mark(name, kind.value, moment.event_id)
        return moment.event_id

    def current(self) -> int | None:
        """Id of the innermost nested event on this thread."""
        return self._innermost(self._stack())

    @staticmethod
    def _innermost(stack: list[OpenEvent]) -> int | None:
        return stack[-1].event_id if stack else None

    def _stack(self) -> list[OpenEvent]:
        try:
            stack: list[OpenEvent] = self._local.stack
        except AttributeError:
            stack = self._local.stack = []
            self._local.thread = threading.get_native_id()
        return stack

    def _write(self, edge: Edge, event: OpenEvent) -> None:
        reading = self.counters.read()
        position = self.position
        self.log.append(
            "events",
            (
                event.event_id,
                edge.value,
                self.clock(),
                event.kind.value,
                event.target,
                event.module_id,
                self._local.thread,
                position.step,
                position.micro_step,
                position.phase.value if position.phase else None,
                self.counters.stream(),
                reading.allocated_bytes,
                reading.reserved_bytes,
                event.parent,
            ),
        )
