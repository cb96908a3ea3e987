"""The registered blocks of a rank: allocations of which the capture said what they hold, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse import lookup
from zeropeak.reports.columns import NEVER, Flags, Ints, ints
from zeropeak.reports.curve import Intervals, of_device
from zeropeak.reports.findings.finding import Evidence
from zeropeak.reports.selection import SAMPLED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeropeak.profile.labels import Stored
    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Story

_COLUMNS: Final = (
    "block_id",
    "device",
    "size_bytes",
    "born_ns",
    "free_requested_ns",
    "freed_ns",
    "category",
    "owner",
    "param_id",
    "storage_id",
    "released_ns",
    "born_event_id",
    "source",
)
_SHOWN: Final = ("block_id", "category", "owner", "size_bytes", "born_ns", "free_requested_ns", "freed_ns")
_TOP_ROWS: Final = 5


@dataclass(frozen=True)
class Registered:
    """Blocks with a category; parallel arrays.

    Attributes:
        table: the rows of ``memory_blocks``.
        rank: whose.
    """

    table: pa.Table
    rank: int

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def born_ns(self) -> Ints:
        """Birth; ``ABSENT`` when before the known history."""
        return ints(self.table, "born_ns")

    @property
    def end_ns(self) -> Ints:
        """When allocated memory fell by it; ``NEVER`` when not seen."""
        return lookup.ints(pc.coalesce(self.table["free_requested_ns"], self.table["freed_ns"]), NEVER)

    @property
    def released_ns(self) -> Ints:
        """When ZeRO released it; ``NEVER`` when it did not."""
        return ints(self.table, "released_ns", NEVER)

    @property
    def size_bytes(self) -> Ints:
        """Sizes."""
        return ints(self.table, "size_bytes")

    @property
    def param_id(self) -> Ints:
        """Parameters, or ``ABSENT``."""
        return ints(self.table, "param_id")

    @property
    def born_event_id(self) -> Ints:
        """Event that each was born in, or ``ABSENT``."""
        return ints(self.table, "born_event_id")

    def of(self, *categories: Stored) -> Registered:
        """Those of some categories."""
        wanted = pa.array([category.value for category in categories], pa.string())
        return Registered(self.table.filter(pc.is_in(self.table["category"], wanted)), self.rank)

    def keep(self, flags: Flags) -> Registered:
        """Those flagged."""
        return Registered(self.table.filter(pa.array(flags)), self.rank)

    def alive(self, ts_ns: int) -> Registered:
        """Those that were allocated at a moment."""
        return self.keep((self.born_ns <= ts_ns) & (self.end_ns > ts_ns))

    @property
    def total_bytes(self) -> int:
        """Sum of the sizes."""
        return int(self.size_bytes.sum())

    def intervals(
        self, start_ns: Ints | None = None, end_ns: Ints | None = None, size_bytes: Ints | None = None
    ) -> Intervals:
        """Their lives, or a part of each."""
        return Intervals(
            self.born_ns if start_ns is None else start_ns,
            self.end_ns if end_ns is None else end_ns,
            self.size_bytes if size_bytes is None else size_bytes,
            self.param_id,
            ints(self.table, "storage_id"),
        )

    def evidence(self, what: str) -> Evidence:
        """The largest of them."""
        order = np.argsort(-self.size_bytes, kind="stable")[:_TOP_ROWS]
        rows = self.table.select(_SHOWN).take(pa.array(order)).to_pylist()
        where = {"rank": self.rank, "block_id": [row["block_id"] for row in rows]}
        return Evidence("memory_blocks", where, [{"rank": self.rank, **row} for row in rows], what)


def read_registered(run: Run, rank: int) -> Registered:
    """The registered blocks that count in the rank's memory curve; kept by the run for a while."""
    return run.keep(("registered", rank), lambda: _read(run, rank))


def read_unregistered(run: Run, rank: int, event_ids: Ints) -> Registered:
    """Blocks of which only the event that they were born in is known: copies that a collective makes for itself.

    Gloo gathers into memory of its own and copies out of it, on a thread of its own; NCCL does not.
    """
    return _read(run, rank, event_ids)


def of_composition(story: Story, categories: Sequence[str], what: str) -> Evidence:
    """Rows of peak_composition of the run's peak, of some categories."""
    parts = {part.category: part for part in story.composition}
    rows: list[dict[str, Any]] = [
        {
            "rank": story.rank,
            "scope": "run",
            "category": name,
            "size_bytes": parts[name].size_bytes,
            "block_count": parts[name].block_count,
        }
        for name in categories
        if name in parts
    ]
    return Evidence("peak_composition", {"rank": story.rank, "scope": "run", "category": list(categories)}, rows, what)


def part_bytes(story: Story, category: str) -> int:
    """Bytes of one category at the run's peak."""
    return sum(part.size_bytes for part in story.composition if part.category == category)


def _read(run: Run, rank: int, of_events: Ints | None = None) -> Registered:
    blocks = run.keep(("blocks", rank), lambda: run.arrow("memory_blocks", rank, _COLUMNS))
    wanted = pc.is_valid(blocks["category"])
    if of_events is not None:
        born_in = pc.is_in(blocks["born_event_id"], pa.array(of_events, pa.int64()))
        wanted = pc.and_(pc.invert(wanted), born_in)
    blocks = of_device(blocks.filter(wanted), run, rank)
    source = run.arrow("ranks", rank, ["memory_source"])["memory_source"]
    if not len(source) or source[0].as_py() != SAMPLED:
        # Registered storages are named within the allocator's blocks; as rows of their own they would count twice.
        blocks = blocks.filter(pc.fill_null(pc.not_equal(blocks["source"], "log"), True))
    return Registered(blocks, rank)
