"""A schedule in bytes: what comes and goes at which action of a trace."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeropeak.reports.columns import Flags, Ints
    from zeropeak.reports.findings.coordinator import Schedule, Trace
    from zeropeak.reports.findings.turns import Turn


@dataclass(frozen=True)
class Told:
    """A schedule in bytes, by place: the index of an action, one past the last for what is there at the end.

    Attributes:
        start, until: of each stay of a parameter, from its gather to the end of its memory.
        ahead: whether a prefetch launched it, which happens after the run's own were waited for.
        size_bytes: of each stay.
        twice: rows that are copied out of a flat buffer, ``ready``: where.
        let_go: parameters that are released in the forward.
    """

    schedule: Schedule
    start: Ints
    until: Ints
    ahead: Flags
    size_bytes: Ints
    twice: Ints
    ready: Ints
    let_go: frozenset[int]

    def changes(self, turn: Turn) -> tuple[Ints, Ints]:
        """Times and bytes of what comes (positive) and goes (negative) in a turn."""
        at = np.append(turn.at_ns, turn.until_ns)
        settled = np.append(turn.settled_ns, turn.until_ns)
        start = np.where(self.ahead, settled[self.start], at[self.start])
        ready, twice = self.ready, self.size_bytes[self.twice]
        return (
            np.concatenate([start, at[self.until], at[ready], settled[ready]]),
            np.concatenate([self.size_bytes, -self.size_bytes, twice, -twice]),
        )

    def without(self, other: Told, turn: Turn) -> list[int]:
        """Events of a turn's gathers that another telling does not launch there."""
        there = set(zip(other.schedule.places, other.schedule.gathers, strict=True))
        mine = zip(self.schedule.places, self.schedule.gathers, turn.recorded.events, strict=True)
        return [event for place, gather, event in mine if (place, gather) not in there]


def tell(trace: Trace, told: Schedule, full_bytes: Mapping[int, int], held: frozenset[int]) -> Told:
    """A schedule of a trace in bytes.

    Args:
        full_bytes: by parameter.
        held: parameters that autograd holds from their release in a forward to the backward that uses them.
    """
    end = len(trace.actions)
    backwards: dict[int, list[int]] = {}
    for place, (run, ends) in enumerate(trace.actions):
        if ends and not trace.forward[run]:
            for param in held.intersection(trace.users[run]):
                backwards.setdefault(param, []).append(place)
    let_go: set[int] = set()
    until = []
    for stay in told.stays:
        gone = end if stay.until is None else stay.until
        if stay.until is not None and trace.forward[trace.actions[stay.until][0]]:
            let_go.add(stay.param)
            if stay.param in held:
                # Its memory ends with the backward that autograd saved it for.
                later = backwards.get(stay.param, [])
                after = bisect_right(later, stay.until)
                gone = later[after] if after < len(later) else end
        until.append(gone)
    # Copied out of the flat buffer where it is waited for: there, for a moment, twice.
    twice = [row for row, stay in enumerate(told.stays) if stay.together > 1 and stay.ready is not None]
    return Told(
        told,
        np.array([max(stay.launched, 0) for stay in told.stays], np.int64),
        np.array(until, np.int64),
        np.array([stay.prefetch for stay in told.stays], bool),
        np.array([full_bytes[stay.param] for stay in told.stays], np.int64),
        np.array(twice, np.int64),
        np.array([told.stays[row].ready or 0 for row in twice], np.int64),
        frozenset(let_go),
    )
