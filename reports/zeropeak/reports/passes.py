"""Passes of a rank through the model: what each one fetched, prefetched and let go of.

A pass is one forward with its backward: a micro-step. ZeRO-3 records the order of modules in one pass and prefetches by
it from the next one on; each pass is one use of that order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.profile.labels import Phase
from zeropeak.reports.columns import ints

if TYPE_CHECKING:
    from zeropeak.reports.columns import Ints
    from zeropeak.reports.run import Run

_PHASES: Final = (Phase.FORWARD.value, Phase.BACKWARD.value)
_COLUMNS: Final = ("event_id", "kind", "step", "micro_step", "phase", "start_ns", "full_bytes")


@dataclass(frozen=True)
class Pass:
    """One forward with its backward.

    Attributes:
        whole: forward and backward were both seen to end.
        fetches, prefetches: number of events.
        prefetched_bytes, gathered_bytes: full bytes that prefetches, and fetches and prefetches, gathered.
        first_ns: begin of its first phase.
        last_prefetch_ns: begin of the last prefetch.
    """

    step: int
    micro_step: int
    whole: bool
    fetches: int
    prefetches: int
    prefetched_bytes: int
    gathered_bytes: int
    first_ns: int
    last_prefetch_ns: int | None

    @property
    def name(self) -> str:
        """For a sentence: "step 2", "micro-step 1 of step 2"."""
        return f"micro-step {self.micro_step} of step {self.step}" if self.micro_step else f"step {self.step}"


def read_passes(run: Run, rank: int) -> list[Pass]:
    """Passes in order of time; empty for a run without phases."""
    phases = run.arrow("phases", rank, ["phase", "step", "micro_step", "start_ns", "end_ns"])
    phases = phases.filter(pc.is_in(phases["phase"], value_set=pa.array(_PHASES)))
    phases = phases.filter(pc.is_valid(phases["step"]))
    events = run.arrow("zero_events", rank, _COLUMNS)
    events = events.filter(pc.is_in(events["phase"], value_set=pa.array(_PHASES)))
    keys = np.stack([ints(phases, "step"), _micro(phases)], axis=1)
    event_keys = np.stack([ints(events, "step"), _micro(events)], axis=1)
    kinds = events["kind"].to_numpy(zero_copy_only=False)
    bytes_, begun = ints(events, "full_bytes", 0), ints(events, "start_ns")
    ends, starts, names = phases["end_ns"].is_valid(), ints(phases, "start_ns"), phases["phase"].to_pylist()
    ended = ends.to_numpy(zero_copy_only=False)
    found = []
    for step, micro in np.unique(keys, axis=0).tolist() if len(keys) else []:
        mine = (event_keys == (step, micro)).all(axis=1)
        ahead, demand = mine & (kinds == "prefetch"), mine & (kinds == "fetch")
        rows = np.flatnonzero((keys == (step, micro)).all(axis=1))
        found.append(
            Pass(
                step=step,
                micro_step=micro,
                whole={names[row] for row in rows if ended[row]} == set(_PHASES),
                fetches=int(demand.sum()),
                prefetches=int(ahead.sum()),
                prefetched_bytes=int(bytes_[ahead].sum()),
                gathered_bytes=int(bytes_[ahead | demand].sum()),
                first_ns=int(starts[rows].min()),
                last_prefetch_ns=int(begun[ahead].max()) if ahead.any() else None,
            )
        )
    return sorted(found, key=lambda one: one.first_ns)


def module_order(run: Run, rank: int, one: Pass) -> list[tuple[str, str, int]]:
    """(module, direction, begin) of each module's run in a pass, in order of time."""
    columns = ["module", "direction", "step", "micro_step", "start_ns"]
    rows = run.arrow("module_ranges", rank, columns)
    mine = (ints(rows, "step") == one.step) & (_micro(rows) == one.micro_step)
    rows = rows.filter(pa.array(mine))
    rows = rows.take(pa.array(np.argsort(ints(rows, "start_ns"), kind="stable")))
    return list(
        zip(
            (name or "" for name in rows["module"].to_pylist()),
            (word or "" for word in rows["direction"].to_pylist()),
            rows["start_ns"].to_pylist(),
            strict=True,
        )
    )


def _micro(table: pa.Table) -> Ints:
    return ints(table, "micro_step", 0)
