"""What prefetches had gathered and no module had used yet, over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse import lookup
from zeropeak.parse.lookup import Lookup
from zeropeak.parse.series import Series
from zeropeak.profile.labels import Kind, Stored
from zeropeak.reports.columns import NEVER, Ints, ints
from zeropeak.reports.findings.registered import Registered, read_registered, read_unregistered

if TYPE_CHECKING:
    from zeropeak.reports.findings.replay import Replay
    from zeropeak.reports.run import Run


@dataclass(frozen=True)
class Ahead:
    """Blocks of prefetches: full parameters until their first use, flat buffers and collectives' own copies.

    Attributes:
        until_ns: first use of a parameter; end of a buffer or copy.
    """

    blocks: Registered
    until_ns: Ints

    def at(self, ts_ns: int) -> Registered:
        """Those that lay there at a moment."""
        return self.blocks.keep((self.blocks.born_ns <= ts_ns) & (self.until_ns > ts_ns))

    def most_bytes(self) -> int:
        """Most at any moment."""
        return int(self.blocks.intervals(end_ns=self.until_ns).curve().size_bytes.max(initial=0))


def read_ahead(run: Run, rank: int, replay: Replay) -> Ahead:
    """Everything that prefetches gathered, until it is used."""
    every = read_registered(run, rank)
    events = run.arrow("zero_events", rank, ["event_id", "kind", "start_ns"])
    events = events.filter(
        pc.is_in(events["kind"], pa.array([Kind.FETCH.value, Kind.PREFETCH.value, Kind.GATHER.value]))
    )
    prefetch = pc.equal(events["kind"], Kind.PREFETCH.value).to_numpy()
    members = run.arrow("zero_event_params", rank, ["event_id", "param_id"])
    at = lookup.ints(Lookup(events["event_id"]).find(members["event_id"]))
    moved, at = ints(members, "param_id")[at >= 0], at[at >= 0]
    full = every.of(Stored.PARAM_FULL, Stored.PARAM_PERSISTENT)
    # A parameter's block is born when its gather is launched, or when that was waited for: after the launch.
    found = Series(moved, ints(events, "start_ns")[at]).last(full.param_id, full.born_ns)
    ahead = full.keep((found >= 0) & prefetch[np.append(at, 0)[found]])
    runs = replay.runs
    # The run that was on when it was born may be its first use: it waits for the gather.
    now = runs.first_after(ahead.born_ns)
    use = runs.next_use(ahead.param_id, now)
    start = np.append(runs.start, NEVER)[use]
    using = runs.used_between(ahead.param_id, ahead.born_ns, ahead.born_ns + 1)
    first_use = np.where(using, ahead.born_ns, np.where(use >= 0, start, NEVER))
    buffers = every.of(Stored.GATHER_BUFFER)
    buffers = buffers.keep(np.isin(buffers.born_event_id, ints(events, "event_id")[prefetch]))
    copies = read_unregistered(run, rank, ints(events, "event_id")[prefetch])
    blocks = Registered(pa.concat_tables([ahead.table, buffers.table, copies.table]), rank)
    return Ahead(blocks, np.concatenate([np.minimum(first_use, ahead.end_ns), buffers.end_ns, copies.end_ns]))
