"""What the event log tells about a moment: the event in flight, the module that ran, the phase and step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.blocks import ALIVE
from zeropeak.parse.innermost import NONE, Innermost
from zeropeak.parse.lookup import ints

if TYPE_CHECKING:
    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Spans:
    """Begin and end (ALIVE when open at the end) of the rows of a table, and who is innermost when."""

    rows: pa.Table
    start: Ints
    end: Ints

    @classmethod
    def of(cls, rows: pa.Table) -> Spans:
        """From a table with ``start_ns`` and ``end_ns``."""
        return cls(rows, ints(rows["start_ns"]), ints(rows["end_ns"], ALIVE))

    @cached_property
    def innermost(self) -> Innermost:
        """Made when first asked for: a run of millions of events and no memory to explain needs none."""
        return Innermost(self.start, self.end)

    def at(self, ts: Ints) -> pa.Array:
        """Row of the innermost span at each moment, null where none is open."""
        found = self.innermost.at(ts)
        return pa.array(found, pa.int64(), mask=found == NONE)

    def column_at(self, name: str, ts: Ints) -> pa.Array:
        """A column of the innermost span at each moment."""
        column = self.rows[name]
        values = column.combine_chunks() if column.num_chunks else pa.array([], column.type)
        return pc.take(values, self.at(ts))


class Timeline:
    """Spans of one rank on the run's clock.

    Args:
        zero_events: rows of the table of that name.
        module_ranges: likewise.
        phases: likewise.
    """

    def __init__(self, zero_events: pa.Table, module_ranges: pa.Table, phases: pa.Table) -> None:
        self.events = Spans.of(zero_events)
        self.modules = Spans.of(module_ranges)
        self.phases = Spans.of(phases)
        shared = ["event_id", "start_ns", "end_ns"]
        self.anything = Spans.of(pa.concat_tables([zero_events.select(shared), module_ranges.select(shared)]))
        step = ints(phases["step"])
        self._steps = np.unique(step)
        self._step_end = np.array([self.phases.end[step == s].max() for s in self._steps], np.int64)
        order = np.argsort(self.events.start, kind="stable")
        self._begun, self._begun_ids = self.events.start[order], ints(zero_events["event_id"])[order]

    def event_at(self, ts: int) -> int | None:
        """Id of the innermost ZeRO event in flight."""
        found: int | None = self.events.column_at("event_id", np.array([ts]))[0].as_py()
        return found

    def last_event_before(self, ts: int, but: int | None = None) -> int | None:
        """Id of the last ZeRO event that had begun by then; of the last two when the last is ``but``."""
        place = int(np.searchsorted(self._begun, ts, "right")) - 1
        if place >= 0 and self._begun_ids[place] == but:
            place -= 1
        return int(self._begun_ids[place]) if place >= 0 and self._begun_ids[place] >= 0 else None

    def module_at(self, ts: int) -> str | None:
        """Qualified name of the innermost running module ('' is the model itself)."""
        found: str | None = self.modules.column_at("module", np.array([ts]))[0].as_py()
        return found

    def running_modules(self, ts: int) -> Ints:
        """Ids of all modules that run at a moment."""
        running = (self.modules.start <= ts) & (ts < self.modules.end)
        return np.unique(ints(self.modules.rows["module_id"])[running])

    def step_end(self, step: Ints) -> Ints:
        """End of the last phase of each step; ALIVE for a step that is not in the log or was cut."""
        if not len(self._steps):
            return np.full(len(step), ALIVE)
        place = np.minimum(np.searchsorted(self._steps, step), len(self._steps) - 1)
        return np.where(self._steps[place] == step, self._step_end[place], ALIVE)

    @property
    def last_step(self) -> int:
        """Highest step in the log, -1 when there is none."""
        return int(self._steps[-1]) if len(self._steps) else -1
