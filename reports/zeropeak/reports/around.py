"""The ZeRO events around a rank's peak: some before, all in flight, some after."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Event, Story

EACH_SIDE: Final = 5
_MOST_IN_FLIGHT: Final = 6


class When(StrEnum):
    """Where an event lies relative to the peak."""

    BEFORE = "before"
    IN_FLIGHT = "in flight"
    AFTER = "after"


@dataclass(frozen=True)
class Neighbour:
    """One event and where it lies."""

    event: Event
    when: When


def around(story: Story, each_side: int = EACH_SIDE) -> list[Neighbour]:
    """Events around the peak in order of their begin; empty without a peak.

    In flight are those that had begun and not ended. Of many (ranges left open by a cut), the last ones.
    """
    if story.peak is None or not len(story.events):
        return []
    events, ts_ns = story.events, story.peak.ts_ns
    begun = int(np.searchsorted(events.start_ns, ts_ns, side="right"))
    open_ = np.flatnonzero((events.end_ns[:begun] >= ts_ns) & (events.end_ns[:begun] > events.start_ns[:begun]))
    innermost = events.index_of(story.peak.in_flight.event_id) if story.peak.in_flight else None
    flying = set(open_[-_MOST_IN_FLIGHT:].tolist()) | ({innermost} if innermost is not None else set())
    before = [index for index in range(max(0, begun - each_side - len(flying)), begun) if index not in flying]
    after = [index for index in range(begun, min(len(events), begun + each_side)) if index not in flying]
    rows = [(index, When.BEFORE) for index in before[-each_side:]]
    rows += [(index, When.IN_FLIGHT) for index in sorted(flying)]
    rows += [(index, When.AFTER) for index in after]
    return [Neighbour(events[index], when) for index, when in rows]


def parameters(run: Run, rank: int, events: Sequence[Event]) -> dict[int, list[str]]:
    """Names of the parameters of some events, by event id."""
    wanted = [event.event_id for event in events if event.event_id is not None]
    table = run.arrow("zero_event_params", rank, ["event_id", "param"])
    table = table.filter(pc.is_in(table["event_id"], value_set=pa.array(wanted, pa.int64())))
    found: dict[int, list[str]] = {}
    for event_id, name in zip(table["event_id"].to_pylist(), table["param"].to_pylist(), strict=True):
        found.setdefault(event_id, []).append(name or "?")
    return found
