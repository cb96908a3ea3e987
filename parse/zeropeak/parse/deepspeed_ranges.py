"""ZeRO events from DeepSpeed's own NVTX ranges, for traces that hold none of ours.

DeepSpeed names its ranges after functions and does not say which parameters, modules or kinds of gather they are about.
One thing follows from the order in ``fetch_sub_module``: it launches what its module lacks, waits for it, and only then
prefetches. So a gather that a wait follows in the same ``fetch_sub_module`` is a fetch, one that none follows is a
prefetch; in a trace without any waits the kind stays null.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.profile.labels import Kind, Phase, event_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SCOPE, _LAUNCH, _GATHER, _WAIT, _RELEASE, _FREE, _REDUCE, _STEP, _FORWARD, _BACKWARD = range(10)

_NAMES: Final = (
    (_SCOPE, r"(^|\.)fetch_sub_module$"),
    (_LAUNCH, r"__all_gather_params_?$"),
    (_GATHER, r"(^|\.)(_all_gather|all_gather_coalesced)$"),
    (_WAIT, r"\.wait$"),
    (_RELEASE, r"(^|\.)(release_sub_module|release_and_reset_all|release_backward_leftovers)$"),
    (_FREE, r"^free_param$"),
    (_REDUCE, r"__reduce_and_partition_ipg_grads$"),
    (_STEP, r"^DeepSpeedZeroOptimizer\w*\.step$"),
    (_FORWARD, r"^DeepSpeedEngine\.forward$"),
    (_BACKWARD, r"^DeepSpeedEngine\.backward$"),
)
"""Functions that DeepSpeed 0.10 to 0.19 decorates with ``instrument_w_nvtx``, by the end of their qualified names."""

_SIMPLE: Final = {_RELEASE: Kind.RELEASE, _FREE: Kind.FREE, _REDUCE: Kind.REDUCE, _STEP: Kind.STEP}
_PHASES: Final = {_FORWARD: Phase.FORWARD, _BACKWARD: Phase.BACKWARD, _STEP: Phase.STEP}
_ANY: Final = "|".join(pattern for _, pattern in _NAMES)
_NEVER: Final = 1 << 63
_ROWS: Final = 65_536


def deepspeed_rows(rows: pa.Table) -> pa.Table:
    """Those rows of nvtx_ranges that events are made of: thread, name, start and end."""
    names = pc.dictionary_encode(rows["name"]).combine_chunks()
    ours = pc.match_substring_regex(names.dictionary, _ANY).fill_null(False).take(names.indices).fill_null(False)
    return rows.select(["thread_id", "name", "start_ns", "end_ns"]).filter(ours)


def deepspeed_events(
    batches: Iterable[pa.Table], rank: int, source: str, *, has_waits: bool
) -> Iterator[tuple[str, pa.Table]]:
    """Rows of zero_events and phases (without ``rank``) from DeepSpeed's ranges, in bounded memory.

    Args:
        batches: rows of :func:`deepspeed_rows` in order of their begin.
        rank: global rank, for the ids.
        source: reader that the ranges come from.
        has_waits: whether any of the ranges is a wait.

    Yields:
        Table name and rows.
    """
    story = _Story(rank, source, has_waits)
    codes: dict[str, int] = {}
    for batch in batches:
        columns = (batch[name].to_pylist() for name in ("thread_id", "name", "start_ns", "end_ns"))
        for thread, name, start, end in zip(*columns, strict=True):
            code = codes.get(name)
            if code is None:
                code = codes[name] = next(code for code, pattern in _NAMES if re.search(pattern, name))
            story.add(_Span(code, thread, name, start, _NEVER if end is None else end))
        yield from story.finished(everything=False)
    story.close()
    yield from story.finished(everything=True)


def is_wait(names: pa.ChunkedArray) -> bool:
    """Whether any name is that of a wait."""
    found: bool | None = pc.any(pc.match_substring_regex(pc.unique(names), r"\.wait$")).as_py()
    return bool(found)


@dataclass(slots=True)
class _Span:
    """A range; ``kind`` and what follows are set when it is an event."""

    code: int
    thread: int
    name: str
    start: int
    end: int
    kind: str | None = None
    step: int | None = None
    phase: str | None = None
    launches: list[_Span] = field(default_factory=list)


class _Story:
    """Nesting of ranges, in order of their begin; events leave it once their kind is known."""

    def __init__(self, rank: int, source: str, has_waits: bool) -> None:
        self._rank = rank
        self._source = source
        self._has_waits = has_waits
        self._stacks: dict[int, list[_Span]] = {}
        self._events: list[_Span] = []
        self._phases: list[_Span] = []
        self._phase: _Span | None = None
        self._step: int | None = None
        self._step_ends: list[int] = []
        self._count = 0

    def add(self, span: _Span) -> None:
        """Take the next range."""
        stack = self._stacks.setdefault(span.thread, [])
        while stack and stack[-1].end <= span.start:
            self._leave(stack.pop())
        self._place(span)
        self._name(span, stack)
        stack.append(span)

    def close(self) -> None:
        """No more ranges."""
        for stack in self._stacks.values():
            while stack:
                self._leave(stack.pop())

    def finished(self, *, everything: bool) -> Iterator[tuple[str, pa.Table]]:
        """Events and phases since the last call, when there are enough of them."""
        if self._events and (everything or len(self._events) >= _ROWS):
            yield "zero_events", self._event_rows()
            self._events = []
        if self._phases and everything:
            yield (
                "phases",
                pa.table(
                    {
                        "phase": [_PHASES[span.code].value for span in self._phases],
                        "step": pa.array([span.step for span in self._phases], pa.int64()),
                        "start_ns": [span.start for span in self._phases],
                        "end_ns": pa.array([_end(span) for span in self._phases], pa.int64()),
                    }
                ),
            )

    def _place(self, span: _Span) -> None:
        """Set phase and step: the engine's forward, backward and the optimizer's step are phases, in turn."""
        while self._step_ends and self._step_ends[0] <= span.start:
            self._step_ends.pop(0)
            self._step = (self._step or 0) + 1
        if self._phase is not None and self._phase.end <= span.start:
            self._phase = None
        if span.code in _PHASES and self._phase is None:
            if self._step is None:
                self._step = 0
            self._phase = span
            self._phases.append(span)
            if span.code == _STEP:
                self._step_ends.append(span.end)
        span.step = self._step
        span.phase = _PHASES[self._phase.code].value if self._phase is not None else None

    def _name(self, span: _Span, stack: list[_Span]) -> None:
        """Set the kind, where it is known at once, and make an event of it."""
        around = {outer.code for outer in stack}
        if span.code in _SIMPLE:
            self._emit(span, _SIMPLE[span.code])
        elif span.code == _LAUNCH and _LAUNCH not in around:
            scope = next((outer for outer in reversed(stack) if outer.code == _SCOPE), None)
            if scope is None:
                self._events.append(span)
            else:
                scope.launches.append(span)
        elif span.code == _GATHER and not around & {_LAUNCH, _GATHER}:
            self._emit(span, Kind.GATHER)
        elif span.code == _WAIT and _SCOPE in around and not around & {_WAIT, _LAUNCH, _GATHER}:
            self._emit(span, Kind.WAIT)
            scope = next(outer for outer in reversed(stack) if outer.code == _SCOPE)
            for launch in scope.launches:
                launch.kind = Kind.FETCH.value

    def _emit(self, span: _Span, kind: Kind) -> None:
        span.kind = kind.value
        self._events.append(span)

    def _leave(self, span: _Span) -> None:
        """A fetch_sub_module is over: what nothing waited for in it was launched ahead."""
        for launch in span.launches:
            if launch.kind is None and self._has_waits:
                launch.kind = Kind.PREFETCH.value
            self._events.append(launch)

    def _event_rows(self) -> pa.Table:
        spans = sorted(self._events, key=lambda span: span.start)
        first = self._count + 1
        self._count += len(spans)
        columns: dict[str, Any] = {
            "event_id": [event_id(self._rank, number) for number in range(first, self._count + 1)],
            "kind": pa.array([span.kind for span in spans], pa.string()),
            "name": [span.name for span in spans],
            "step": pa.array([span.step for span in spans], pa.int64()),
            "phase": pa.array([span.phase for span in spans], pa.string()),
            "thread_id": [span.thread for span in spans],
            "start_ns": [span.start for span in spans],
            "end_ns": pa.array([span.start if span.code == _FREE else _end(span) for span in spans], pa.int64()),
            "source": [self._source] * len(spans),
        }
        return pa.table(columns)


def _end(span: _Span) -> int | None:
    return None if span.end == _NEVER else span.end
