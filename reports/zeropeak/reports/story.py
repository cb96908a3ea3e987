"""What one rank went through, ready to be told: phases, events, marks, curve, peak and what was alive at it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.stats import NOTHING_CAPTURED
from zeropeak.profile.labels import Kind
from zeropeak.reports import setting
from zeropeak.reports.columns import NEVER, Ints, ints
from zeropeak.reports.curve import Curve, Intervals, allocated, released_intervals, reserved
from zeropeak.reports.given import of_files
from zeropeak.reports.origin import run_origin
from zeropeak.reports.selection import SAMPLED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeropeak.reports.run import Run

RELEASED_ALIVE: Final = "released_but_alive"
"""Category of peak_composition: full parameters that ZeRO released and whose storage is alive."""
UNATTRIBUTED: Final = "unattributed"

_STEPS_SHOWN: Final = 6
"""Steps in one picture: of more, a step is too narrow to tell forward from backward in print."""

_EVENT_COLUMNS: Final = (
    "event_id",
    "kind",
    "name",
    "module",
    "step",
    "phase",
    "start_ns",
    "end_ns",
    "param_count",
    "full_bytes",
)


@dataclass(frozen=True)
class Span:
    """A phase. ``end_ns`` is ``NEVER`` when the capture was cut inside."""

    phase: str
    step: int | None
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Event:
    """One ZeRO event. ``end_ns`` is None when it was never seen to end."""

    event_id: int | None
    kind: str | None
    name: str
    module: str | None
    step: int | None
    phase: str | None
    start_ns: int
    end_ns: int | None
    param_count: int | None
    full_bytes: int | None


@dataclass(frozen=True)
class Events:
    """The ZeRO events of a rank in order of their begin; ``end_ns`` is ``NEVER`` for one never seen to end."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, index: int) -> Event:
        values = {name: self.table[name][index].as_py() for name in _EVENT_COLUMNS}
        values["name"] = values["name"] or values["kind"] or "unnamed event"
        return Event(**values)

    @cached_property
    def start_ns(self) -> Ints:
        """Begins."""
        return ints(self.table, "start_ns")

    @cached_property
    def end_ns(self) -> Ints:
        """Ends."""
        return ints(self.table, "end_ns", NEVER)

    @cached_property
    def kinds(self) -> Sequence[str]:
        """Kinds that occur, in the vocabulary's order."""
        seen = set(pc.unique(self.table["kind"]).to_pylist()) - {None}
        return [kind.value for kind in Kind if kind.value in seen] + sorted(seen - {kind.value for kind in Kind})

    def of_kind(self, kind: str) -> Events:
        """Those of one kind."""
        return Events(self.table.filter(pc.equal(self.table["kind"], kind)))

    def index_of(self, event_id: int | None) -> int | None:
        """Position of an event."""
        if event_id is None:
            return None
        index = pc.index(self.table["event_id"], event_id).as_py()
        return None if index < 0 else int(index)


@dataclass(frozen=True)
class Peak:
    """Highest allocated memory of a rank over the whole run.

    Attributes:
        in_flight: innermost ZeRO event at that moment; None when none was.
        before: last event that had begun before it.
        allocator_bytes: highest value of the allocator's own counter; above allocated_bytes when the peak fell
            between two samples.
        sampled: counters were read now and then, so the moment is that of the highest sample.
        partial: the curve does not cover the whole run, so the real peak may be higher.
        phase_start_ns: begin of the phase that it lies in, or the end of the last phase before it.
        allocator_phase, allocator_step: where allocator_bytes was reached first, as far as the marks tell.
        phases_told, events_told: whether the run's data can tell phase and event; files from elsewhere may hold none.
    """

    ts_ns: int
    allocated_bytes: int
    reserved_bytes: int | None
    in_flight: Event | None
    before: Event | None
    module: str | None
    phase: str | None
    step: int | None
    allocator_bytes: int | None
    sampled: bool
    partial: bool
    allocator_phase: str | None = None
    allocator_step: int | None = None
    phase_start_ns: int = 0
    phases_told: bool = True
    events_told: bool = True

    @property
    def preceding(self) -> Event | None:
        """Last event begun before, when it began in the same phase: one of an earlier phase explains nothing."""
        return self.before if self.before is not None and self.before.start_ns >= self.phase_start_ns else None

    @property
    def highest_bytes(self) -> int:
        """The allocator's own maximum where the curve is sampled and it is known, else the curve's maximum."""
        return max(self.allocated_bytes, self.allocator_bytes or 0) if self.sampled else self.allocated_bytes


@dataclass(frozen=True)
class Part:
    """One line of what was alive."""

    category: str
    size_bytes: int
    block_count: int | None


class Story:
    """Everything the report tells of one rank; each part is read at its first use and then kept."""

    def __init__(self, run: Run, rank: int) -> None:
        self.rank = rank
        self._run = run
        self._facts = _row(run.arrow("ranks", rank))

    @property
    def status(self) -> str | None:
        """How the rank ended, as in the table ``ranks``."""
        return self._facts.get("status")

    @property
    def device(self) -> str | None:
        """Device of the memory curve: cpu, cuda:0, ..."""
        return self._facts.get("device")

    @property
    def memory_source(self) -> str | None:
        """What the memory curve rests on; None without one."""
        return self._facts.get("memory_source")

    @property
    def memory_partial(self) -> bool:
        """Whether the curve misses a part of the run."""
        return bool(self._facts.get("memory_partial"))

    @property
    def origin(self) -> str:
        """What times are counted from."""
        return run_origin(self._run)

    @property
    def stage(self) -> int | None:
        """ZeRO stage."""
        return setting.stage(self._run, self.rank)

    @property
    def releases(self) -> bool:
        """Whether this stage gathers and releases weights, as far as is known; False where nothing could tell."""
        if of_files(self._run) and not len(self.intervals.size_bytes):
            return False
        return self.stage is None or self.stage >= 3

    @property
    def cut(self) -> bool:
        """Whether the rank's data stops before the rank's own end."""
        return self.status not in {None, "complete"}

    @property
    def complete(self) -> bool:
        """Whether the peak is surely the highest: rank and curve end late enough, no two samples hide a higher one."""
        if self.cut or self.memory_partial or self.peak is None:
            return not self.cut and not self.memory_partial
        return not self.peak.partial and not (self.peak.sampled and self.peak.allocator_bytes is None)

    @cached_property
    def start_ns(self) -> int:
        """First time seen of the rank."""
        return min(self._times, default=0)

    @cached_property
    def end_ns(self) -> int:
        """Last time seen of the rank."""
        return max(self._times, default=0)

    @cached_property
    def phases(self) -> list[Span]:
        """Phases in order."""
        rows = self._run.arrow("phases", self.rank, ["phase", "step", "start_ns", "end_ns"]).to_pylist()
        ends = (NEVER if row["end_ns"] is None else row["end_ns"] for row in rows)
        spans = (Span(row["phase"], row["step"], row["start_ns"], end) for row, end in zip(rows, ends, strict=True))
        return sorted(spans, key=lambda span: span.start_ns)

    @cached_property
    def events(self) -> Events:
        """ZeRO events in order of their begin."""
        table = self._run.arrow("zero_events", self.rank, _EVENT_COLUMNS)
        table = table.filter(pc.is_valid(table["start_ns"]))
        return Events(table.take(pa.array(np.argsort(ints(table, "start_ns"), kind="stable"))))

    @cached_property
    def marks(self) -> list[dict[str, Any]]:
        """Rows of the table ``marks`` with a time, in order."""
        rows: list[dict[str, Any]] = self._run.arrow("marks", self.rank).to_pylist()
        return sorted((row for row in rows if row["ts_ns"] is not None), key=lambda row: row["ts_ns"])

    @cached_property
    def curve(self) -> Curve:
        """Allocated bytes. Memory: two int64 a memory event."""
        return allocated(self._run, self.rank)

    @cached_property
    def reserved(self) -> Curve:
        """Bytes that the caching allocator held; empty on CPU."""
        return reserved(self._run, self.rank)

    @cached_property
    def intervals(self) -> Intervals:
        """Full parameters between their release and their end."""
        return released_intervals(self._run, self.rank)

    @cached_property
    def released(self) -> Curve:
        """Released-but-alive bytes."""
        return self.intervals.curve()

    @cached_property
    def peak(self) -> Peak | None:
        """Highest allocated memory; None without any curve."""
        return _peak(self._run, self)

    @cached_property
    def composition(self) -> list[Part]:
        """What was alive at the peak, largest first, ``unattributed`` last."""
        table = self._run.arrow("peak_composition", self.rank)
        rows = table.filter(pc.equal(table["scope"], "run")).to_pylist()
        parts = [Part(row["category"], row["size_bytes"], row["block_count"]) for row in rows]
        return sorted(parts, key=lambda part: (part.category == UNATTRIBUTED, -part.size_bytes))

    @property
    def released_at_peak_bytes(self) -> int | None:
        """Released but alive at the peak; None when nothing tells."""
        if of_files(self._run) and not len(self.intervals.size_bytes):
            return None
        if self.composition:
            return sum(part.size_bytes for part in self.composition if part.category == RELEASED_ALIVE)
        if self.peak is None or not self.marks:
            return None
        return int(self.released.at(np.array([self.peak.ts_ns], dtype=np.int64))[0])

    def seen_phases(self) -> list[Span]:
        """Phases, one that was never seen to end drawn to where the data ends."""
        return [replace(span, end_ns=min(span.end_ns, max(self.end_ns, span.start_ns))) for span in self.phases]

    def shown_steps(self) -> tuple[int, int] | None:
        """First and last step that fit in one picture: all, or some around the peak; None without steps."""
        steps = sorted({span.step for span in self.phases if span.step is not None and span.step >= 0})
        if not steps:
            return None
        if len(steps) <= _STEPS_SHOWN:
            return steps[0], steps[-1]
        wanted = self.peak.step if self.peak and self.peak.step is not None else steps[0]
        place = bisect_left(steps, wanted)
        first = min(max(place - _STEPS_SHOWN // 2, 0), len(steps) - _STEPS_SHOWN)
        return steps[first], steps[first + _STEPS_SHOWN - 1]

    def window(self, steps: tuple[int, int] | None) -> tuple[int, int]:
        """Begin and end (ns) of a range of steps, with init when the peak lies there; all there is without steps."""
        spans = [span for span in self.phases if span.step is not None and steps and steps[0] <= span.step <= steps[1]]
        start = min((span.start_ns for span in spans), default=self.start_ns)
        end = max((span.end_ns for span in spans), default=self.end_ns)
        last = max((span.step for span in self.phases if span.step is not None), default=-1)
        if steps is None or steps[1] >= last or end == NEVER:
            end = self.end_ns
        if self.peak is not None and self.peak.ts_ns < start and (steps is None or steps[0] <= 0):
            start = self.start_ns
        return start, max(end, start + 1)

    @cached_property
    def _times(self) -> list[int]:
        given = [t for t in (self._facts.get("first_ns"), self._facts.get("last_ns")) if t is not None]
        if len(given) == 2:
            return given
        ends = (*self.curve.ts_ns[:1], *self.curve.ts_ns[-1:], *self.events.start_ns[:1], *self.events.start_ns[-1:])
        return given + [mark["ts_ns"] for mark in self.marks] + [int(t) for t in ends]


def read_story(run: Run, rank: int) -> Story:
    """The story of one rank; kept by the run for a while."""
    return run.keep(("story", rank), lambda: Story(run, rank))


def shared_window(stories: Sequence[Story]) -> tuple[int, int]:
    """Window (ns) for several ranks on one axis: the steps that the rank with the highest peak shows."""
    if not stories:
        return 0, 1
    highest = max(stories, key=lambda story: story.peak.highest_bytes if story.peak else -1)
    windows = [story.window(highest.shown_steps()) for story in stories]
    return min(start for start, _ in windows), max(end for _, end in windows)


def ended_before_capture(run: Run) -> bool:
    """Whether the capture ended before any rank wrote a file."""
    return NOTHING_CAPTURED in run.arrow("import_stats", columns=["what"])["what"].to_pylist()


def _row(table: pa.Table) -> dict[str, Any]:
    return table.slice(0, 1).to_pylist()[0] if table.num_rows else {}


def _peak(run: Run, story: Story) -> Peak | None:
    table = run.arrow("peaks", story.rank)
    row = _row(table.filter(pc.equal(table["scope"], "run")))
    ts_ns, bytes_ = row.get("ts_ns"), row.get("allocated_bytes")
    if ts_ns is None or bytes_ is None:
        if not len(story.curve):
            return None
        top = int(np.argmax(story.curve.size_bytes))
        ts_ns, bytes_ = int(story.curve.ts_ns[top]), int(story.curve.size_bytes[top])
    events = story.events
    at, before = events.index_of(row.get("event_id")), events.index_of(row.get("last_event_id"))
    highest = row.get("allocator_peak_bytes")
    mark = next((m for m in story.marks if highest is not None and m["max_allocated_bytes"] == highest), {})
    span = next((s for s in reversed(story.phases) if s.start_ns <= ts_ns <= s.end_ns), None)
    earlier = max((s.end_ns for s in story.phases if s.end_ns <= ts_ns), default=0)
    return Peak(
        ts_ns=ts_ns,
        allocated_bytes=bytes_,
        reserved_bytes=row.get("reserved_bytes"),
        in_flight=None if at is None else events[at],
        before=None if before is None else events[before],
        module=row.get("module"),
        phase=span.phase if span else None,
        step=span.step if span else None,
        allocator_bytes=highest,
        sampled=story.memory_source == SAMPLED,
        partial=bool(row.get("partial")),
        allocator_phase=mark.get("mark"),
        allocator_step=mark.get("step"),
        phase_start_ns=span.start_ns if span else earlier,
        phases_told=bool(story.phases) or not of_files(run),
        events_told=bool(len(events)) or not of_files(run),
    )
