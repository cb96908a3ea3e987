"""Where a rank ran out of memory: the request that was refused, what the rank was doing, what it held then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc

from zeropeak.reports.columns import NEVER, ints
from zeropeak.reports.composition import at_moment
from zeropeak.reports.curve import allocated, reserved
from zeropeak.reports.figures.style import category_label
from zeropeak.reports.story import read_story
from zeropeak.reports.units import count, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeropeak.reports.run import Run


@dataclass(frozen=True)
class Shortage:
    """The last request of a rank that its allocator refused.

    Attributes:
        count: refused requests in all; a program may have caught earlier ones.
        requested_bytes: what was asked for, as the allocator rounds it.
        allocated_bytes, reserved_bytes: held then; None when not known.
        event: range name of the innermost ZeRO event in flight; None when none was.
        module: innermost module that was running; "" is the model itself.
        parts: bytes held then by category, largest first; empty without blocks.
    """

    rank: int
    ts_ns: int
    count: int
    requested_bytes: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    step: int | None
    phase: str | None
    event: str | None
    module: str | None
    parts: Mapping[str, int]


def shortages(run: Run) -> list[Shortage]:
    """One for each rank that was refused memory, in order of rank."""
    found = []
    for rank in run.rank_ids:
        events = run.arrow("memory_events", rank, ["ts_ns", "action", "size_bytes"])
        refused = events.filter(pc.equal(events["action"], "oom"))
        if refused.num_rows:
            last = refused.slice(refused.num_rows - 1).to_pylist()[0]
            found.append(_shortage(run, rank, last["ts_ns"], last["size_bytes"], refused.num_rows))
    return found


def _shortage(run: Run, rank: int, ts_ns: int, requested_bytes: int, number: int) -> Shortage:
    story = read_story(run, rank)
    when = np.array([ts_ns], np.int64)
    held = [int(curve.at(when)[0]) if len(curve) else None for curve in (allocated(run, rank), reserved(run, rank))]
    span = next((one for one in reversed(story.phases) if one.start_ns <= ts_ns <= one.end_ns), None)
    open_ = np.flatnonzero((story.events.start_ns <= ts_ns) & (story.events.end_ns >= ts_ns))
    parts = next((one.parts for one in at_moment(run, ts_ns)[0] if one.rank == rank), {})
    return Shortage(
        rank,
        ts_ns,
        number,
        requested_bytes,
        held[0],
        held[1],
        span.step if span else None,
        span.phase if span else None,
        story.events[int(open_[-1])].name if len(open_) else None,
        _module(run, rank, ts_ns),
        dict(sorted(parts.items(), key=lambda item: -item[1])),
    )


def _module(run: Run, rank: int, ts_ns: int) -> str | None:
    ranges = run.arrow("module_ranges", rank, ["module", "start_ns", "end_ns"])
    running = np.flatnonzero((ints(ranges, "start_ns") <= ts_ns) & (ints(ranges, "end_ns", NEVER) >= ts_ns))
    if not len(running):
        return None
    name: str | None = ranges["module"][int(running[np.argmax(ints(ranges, "start_ns")[running])])].as_py()
    return name


def sentence(shortage: Shortage, limit_bytes: int | None) -> str:
    """What happened, for page 1.

    Args:
        shortage: of one rank.
        limit_bytes: what the allocator was allowed to take, where the capture limited it.
    """
    where = [f"the {shortage.phase} of step {shortage.step}"] if shortage.phase in _IN_STEPS else []
    where = where or ([shortage.phase] if shortage.phase else [])
    if shortage.module is not None:
        where.append(f"module {shortage.module or 'model'}")
    where.append(f"during {shortage.event}" if shortage.event else "with no ZeRO event in flight")
    place = ", ".join(where) if len(where) == 1 else f"in {', '.join(where)}"
    held = "an unknown amount" if shortage.allocated_bytes is None else size(shortage.allocated_bytes)
    cached = (
        f", {size(shortage.reserved_bytes - shortage.allocated_bytes)} more in its cache"
        if shortage.reserved_bytes is not None and shortage.allocated_bytes is not None
        else ""
    )
    limit = f" It was allowed {size(limit_bytes)}." if limit_bytes is not None else ""
    parts = ", ".join(
        f"{size(bytes_)} {category_label(name)}" for name, bytes_ in list(shortage.parts.items())[:4] if bytes_
    )
    alive = f" Alive then: {parts}." if parts else ""
    earlier = f" {count(shortage.count - 1, 'earlier request')} had been refused too." if shortage.count > 1 else ""
    return (
        f"Rank {shortage.rank} asked for {size(shortage.requested_bytes)} {place}, and was refused: it "
        f"held {held}{cached}.{limit}{alive}{earlier}"
    )


_IN_STEPS: Final = ("forward", "backward", "step", "eval")
