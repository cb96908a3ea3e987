"""Full parameters that ZeRO kept when a module let go of them: from that decision to their next use.

Rows of ``delayed_frees``; those tables follow a storage to its very end, here it counts until a module uses it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.lookup import ints as column_ints
from zeropeak.reports.columns import ABSENT, NEVER, Flags, Ints, ints
from zeropeak.reports.curve import Intervals
from zeropeak.reports.findings.finding import Evidence

if TYPE_CHECKING:
    from zeropeak.reports.findings.replay import Replay
    from zeropeak.reports.run import Run

_TOP_ROWS: Final = 5
_SHOWN: Final = ("step", "phase", "module", "param_id", "param", "size_bytes", "decided_ns", "freed_ns", "until_module")


@dataclass(frozen=True)
class Kept:
    """Stays of one cause, parallel arrays.

    Attributes:
        rows: rows of delayed_frees.
        until_ns: next use, or the end of the storage when that is first; ``NEVER`` when neither was seen.
        distance: elements that the modules use which run until then, counted as DeepSpeed does; ``ABSENT`` without a
            next use.
    """

    rank: int
    cause: str
    rows: pa.Table
    until_ns: Ints
    distance: Ints

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def size_bytes(self) -> Ints:
        """Sizes."""
        return ints(self.rows, "size_bytes", 0)

    @property
    def total_bytes(self) -> int:
        """Sum of the sizes."""
        return int(self.size_bytes.sum())

    @property
    def param_id(self) -> Ints:
        """Parameters."""
        return ints(self.rows, "param_id")

    def at(self, ts_ns: int) -> Kept:
        """Those that were being kept at a moment."""
        return self._keep((ints(self.rows, "decided_ns") <= ts_ns) & (self.until_ns > ts_ns))

    def most_bytes(self) -> int:
        """Most that was kept at any moment."""
        nobody = np.full(len(self), ABSENT)
        lives = Intervals(ints(self.rows, "decided_ns"), self.until_ns, self.size_bytes, nobody, nobody)
        return int(lives.curve().size_bytes.max(initial=0))

    def names(self) -> list[str]:
        """Modules that let go of them."""
        return [name or "the model" for name in self.rows["module"].to_pylist()]

    def evidence(self) -> Evidence:
        """The largest of them."""
        top = np.argsort(-self.size_bytes, kind="stable")[:_TOP_ROWS]
        rows = self.rows.select(_SHOWN).take(pa.array(top)).to_pylist()
        for row, at in zip(rows, top, strict=True):
            row["distance_numel"] = None if self.distance[at] == ABSENT else int(self.distance[at])
        where = {"rank": self.rank, "cause": self.cause}
        return Evidence("delayed_frees", where, [{"rank": self.rank, **row} for row in rows], "the largest at the peak")

    def _keep(self, flags: Flags) -> Kept:
        return Kept(
            self.rank, self.cause, self.rows.filter(pa.array(flags)), self.until_ns[flags], self.distance[flags]
        )


def read_kept(run: Run, rank: int, replay: Replay, cause: str) -> Kept:
    """What was kept for one cause of ``delayed_frees``."""
    rows = run.arrow("delayed_frees", rank)
    rows = rows.filter(pc.equal(rows["cause"], cause))
    runs = replay.runs
    now = runs.first_after(ints(rows, "decided_ns"))
    use = runs.next_use(ints(rows, "param_id"), now)
    again = use >= 0
    start = np.append(runs.start, NEVER)
    until = np.minimum(column_ints(rows["freed_ns"], NEVER), np.where(again, start[use], NEVER))
    elements = replay.distance[np.where(again, use, 0)] - replay.distance[np.minimum(now, len(replay.distance) - 1)]
    return Kept(rank, cause, rows, until, np.where(again, elements, ABSENT))


def none_written(run: Run, rank: int) -> bool:
    """Whether the tables hold no delayed free at all: an older parse did not look for them."""
    return not len(run.arrow("delayed_frees", rank, ["param_id"])["param_id"])
