"""Passes of a rank through the model: what each one fetched, prefetched and let go of.

A pass is one forward with its backward: a micro-step. ZeRO-3 records the order of modules in one pass and prefetches by
it from the next one on; each pass is one use of that order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.profile.labels import Kind, Phase
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
    starts, ended = ints(phases, "start_ns"), phases["end_ns"].is_valid().to_pylist()
    rows_of: dict[tuple[int, int], list[int]] = {}
    for row, key in enumerate(zip(ints(phases, "step").tolist(), _micro(phases).tolist(), strict=True)):
        rows_of.setdefault(key, []).append(row)
    names, gathered = phases["phase"].to_pylist(), _gathered(events)
    found = []
    for (step, micro), rows in rows_of.items():
        mine = gathered.get((step, micro), _Gathered())
        found.append(
            Pass(
                step=step,
                micro_step=micro,
                whole={names[row] for row in rows if ended[row]} == set(_PHASES),
                fetches=mine.fetches,
                prefetches=mine.prefetches,
                prefetched_bytes=mine.prefetched_bytes,
                gathered_bytes=mine.fetched_bytes + mine.prefetched_bytes,
                first_ns=int(starts[rows].min()),
                last_prefetch_ns=mine.last_prefetch_ns,
            )
        )
    return sorted(found, key=lambda one: one.first_ns)


@dataclass(frozen=True)
class _Gathered:
    """What one pass gathered."""

    fetches: int = 0
    fetched_bytes: int = 0
    prefetches: int = 0
    prefetched_bytes: int = 0
    last_prefetch_ns: int | None = None


def _gathered(events: pa.Table) -> dict[tuple[int, int], _Gathered]:
    """By step and micro-step; one look at the events however many passes there are."""
    table = pa.table(
        {
            "step": ints(events, "step"),
            "micro": _micro(events),
            "kind": events["kind"],
            "bytes": ints(events, "full_bytes", 0),
            "start_ns": ints(events, "start_ns"),
        }
    )
    table = table.filter(pc.is_in(table["kind"], value_set=pa.array((Kind.FETCH.value, Kind.PREFETCH.value))))
    sums = table.group_by(["step", "micro", "kind"]).aggregate(
        [("bytes", "count"), ("bytes", "sum"), ("start_ns", "max")]
    )
    found: dict[tuple[int, int], _Gathered] = {}
    for row in sums.to_pylist():
        key, one = (row["step"], row["micro"]), found.get((row["step"], row["micro"]), _Gathered())
        if row["kind"] == Kind.FETCH.value:
            found[key] = replace(one, fetches=row["bytes_count"], fetched_bytes=row["bytes_sum"])
        else:
            found[key] = replace(
                one,
                prefetches=row["bytes_count"],
                prefetched_bytes=row["bytes_sum"],
                last_prefetch_ns=row["start_ns_max"],
            )
    return found


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
