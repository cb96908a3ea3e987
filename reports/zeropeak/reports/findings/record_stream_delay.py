"""Memory whose owner let go but which the allocator gets back later, since another stream was recorded as using it.

DeepSpeed gathers on a stream of its own and records the computing stream as a user of what it gathered. Dropping the
last reference lowers ``memory_allocated`` at once; the block can be handed out again only when the other stream has got
there. Until then new allocations need other memory: what counts for the device is allocated plus waiting.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.profile.labels import Stored
from zeropeak.reports import setting
from zeropeak.reports.columns import ABSENT, Ints, ints
from zeropeak.reports.curve import Intervals, of_device
from zeropeak.reports.findings.finding import Evidence
from zeropeak.reports.findings.judging import (
    judge,
    mend,
    not_applicable,
    noticeable,
    ruled_out,
    sure,
    unknown,
)
from zeropeak.reports.story import read_story
from zeropeak.reports.units import count, duration, percent, size

if TYPE_CHECKING:
    from zeropeak.reports.curve import Curve
    from zeropeak.reports.findings.finding import Finding
    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Peak, Story

ID: Final = "record-stream-delay"
TITLE: Final = "Freed memory waits for another stream"
KNOB: Final = "overlap_comm"
_HISTORY: Final = "snapshot"
_OF_ZERO: Final = (Stored.GATHER_BUFFER.value, Stored.PARAM_FULL.value, Stored.PARAM_PERSISTENT.value)
_TOP_ROWS: Final = 5
_RESOLUTION_NS: Final = 1_000
"""Step of the clock in an allocator history: request and return of a block that nothing delays may lie one apart."""
_COLUMNS: Final = (
    "block_id", "device", "size_bytes", "category", "owner", "param_id", "storage_id",
    "born_ns", "free_requested_ns", "freed_ns",
)  # fmt: skip


@dataclass(frozen=True)
class Waiting:
    """Blocks between the request to free them and their return, and what they add to the peak.

    Attributes:
        blocks: rows of memory_blocks.
        ts_ns: when allocated plus waiting was highest.
        total_bytes: allocated plus waiting then.
        waiting_bytes: of it waiting.
        over_bytes: how far that is above the highest allocated alone.
        most_bytes: most that waited at any moment.
    """

    blocks: pa.Table
    ts_ns: int
    total_bytes: int
    waiting_bytes: int
    over_bytes: int
    most_bytes: int


def find(run: Run) -> list[Finding]:
    """One finding a rank, missing ranks included."""
    return judge(run, ID, of_rank)


def of_rank(run: Run, blank: Finding) -> Finding:
    """The finding on one rank, filled in from a blank one."""
    rank, story = blank.rank, read_story(run, blank.rank)
    device = run.arrow("ranks", rank, ["device"])["device"]
    name = device[0].as_py() if len(device) else None
    if name == "cpu":
        return not_applicable(blank, "The CPU's allocator has no streams that could delay a free.")
    if story.memory_source != _HISTORY or story.peak is None or not len(story.curve):
        return unknown(
            blank,
            "Whether frees waited for another stream shows only in the allocator's history.",
            mend(run) or "Capture with `zeropeak torch`, which records it.",
        )
    waiting = read_waiting(run, story)
    peak = story.peak
    blank = replace(blank, bytes=waiting.over_bytes, allocated_bytes=peak.highest_bytes)
    late = int(pc.sum(pc.greater(_delay(waiting.blocks), _RESOLUTION_NS)).as_py() or 0)
    longest = duration(int(pc.max(_delay(waiting.blocks)).as_py() or 0))
    evidence = [_largest(waiting, rank)]
    if not noticeable(waiting.over_bytes, peak):
        effect = f"raise the peak by {size(waiting.over_bytes)}" if waiting.over_bytes else "do not raise the peak"
        return ruled_out(
            blank,
            f"{count(late, 'block')} came back later than asked for, by up to {longest}; counted until then, "
            f"they {effect} (at most {size(waiting.most_bytes)} waited at any time).",
            waiting.over_bytes,
            evidence,
        )
    here = _at(waiting.blocks, waiting.ts_ns)
    zero = here.filter(pc.is_in(here["category"], pa.array(_OF_ZERO)))
    ours, all_ = (int(pc.sum(rows["size_bytes"]).as_py() or 0) for rows in (zero, here))
    turn_off, advice = _change(run, blank, waiting, peak, ours, all_)
    return replace(
        blank,
        verdict=sure(blank),
        knob=setting.config_key(run, KNOB) if turn_off else None,
        value=False if turn_off else None,
        advice=advice,
        step=peak.step,
        headline=f"{size(waiting.waiting_bytes)} of freed memory was waiting for another stream when allocated and "
        f"waiting together were highest: {size(waiting.total_bytes)}, {size(waiting.over_bytes)} "
        f"({percent(waiting.over_bytes, peak.highest_bytes)}) above the highest allocated alone. "
        f"{size(ours)} of it is gathered parameters and their buffers; blocks waited up to {longest}.",
        evidence=[*evidence, _rows(here, rank, f"waiting at {waiting.ts_ns}")],
    )


def read_waiting(run: Run, story: Story) -> Waiting:
    """What waited, from the blocks of a rank that has an allocator history and a curve."""
    blocks = of_device(run.arrow("memory_blocks", story.rank, _COLUMNS), run, story.rank)
    blocks = blocks.filter(pc.fill_null(pc.greater(blocks["freed_ns"], blocks["free_requested_ns"]), False))
    start, end = ints(blocks, "free_requested_ns"), ints(blocks, "freed_ns")
    nobody = np.full(len(start), ABSENT)
    curve = Intervals(start, end, ints(blocks, "size_bytes"), nobody, nobody).curve()
    times, total = _sum(story.curve, curve)
    top = int(np.argmax(total))
    at = times[top : top + 1]
    highest = int(story.curve.size_bytes.max())
    return Waiting(
        blocks,
        int(at[0]),
        int(total[top]),
        int(curve.at(at)[0]),
        max(int(total[top]) - highest, 0),
        int(curve.size_bytes.max(initial=0)),
    )


def _sum(one: Curve, two: Curve) -> tuple[Ints, Ints]:
    """Times at which either changes, and both together then.

    Several rows of a curve may share a moment. The last of them is taken: a block that is asked back and returned
    within the clock's step must not count once as allocated and once as waiting.
    """
    times = np.unique(np.concatenate([one.ts_ns, two.ts_ns]))
    return times, one.at(times) + two.at(times)


def _change(run: Run, blank: Finding, waiting: Waiting, peak: Peak, ours: int, all_: int) -> tuple[bool, str]:
    """Whether to turn the knob off, and what to say."""
    key = setting.config_key(run, KNOB)
    overlap = setting.flag(run, blank.rank, KNOB)
    if 2 * ours < all_ or overlap is False:
        why = f"{key} is false already" if overlap is False else "most of it is not what ZeRO gathers"
        return False, (
            f"{why[0].upper()}{why[1:]}: look at what records streams on the blocks in the evidence (a data loader's "
            "copies, other communication)."
        )
    return True, (
        f"Set {key} to false: gathers then run on the computing stream, so that what is let go of comes back at once; "
        f"up to {size(waiting.over_bytes)} less is needed of the device ({size(waiting.total_bytes)} to "
        f"{size(peak.allocated_bytes)}), and communication no longer overlaps computation."
    )


def _delay(blocks: pa.Table) -> pa.ChunkedArray:
    return pc.subtract(blocks["freed_ns"], blocks["free_requested_ns"])


def _at(blocks: pa.Table, ts_ns: int) -> pa.Table:
    return blocks.filter(
        pc.and_(pc.less_equal(blocks["free_requested_ns"], ts_ns), pc.greater(blocks["freed_ns"], ts_ns))
    )


def _largest(waiting: Waiting, rank: int) -> Evidence:
    late = waiting.blocks.filter(pc.greater(_delay(waiting.blocks), _RESOLUTION_NS))
    return _rows(late, rank, "the largest that came back late")


def _rows(blocks: pa.Table, rank: int, what: str) -> Evidence:
    order = np.argsort(-ints(blocks, "size_bytes", 0), kind="stable")[:_TOP_ROWS]
    shown = ["block_id", "category", "owner", "size_bytes", "free_requested_ns", "freed_ns"]
    rows = blocks.select(shown).take(pa.array(order)).to_pylist()
    where = {"rank": rank, "block_id": [row["block_id"] for row in rows]}
    return Evidence("memory_blocks", where, [{"rank": rank, **row} for row in rows], what)
