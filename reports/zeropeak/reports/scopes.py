"""Peaks of the run's scopes on one rank: of the whole run, of each step and of each phase, and what was alive then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from zeropeak.reports.selection import SAMPLED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeropeak.reports.run import Run

_COLUMNS: Final = (
    "rank",
    "scope",
    "step",
    "phase",
    "ts_ns",
    "allocated_bytes",
    "reserved_bytes",
    "allocator_peak_bytes",
    "partial",
    "source",
)


@dataclass(frozen=True)
class ScopePeak:
    """Highest allocated memory of one scope.

    Attributes:
        scope: run, step or phase; ``step`` and ``phase`` are None where the scope has none.
        highest_bytes: the curve's maximum, or the allocator's own where it is higher and the curve has gaps.
        known: whether a higher one is ruled out: the curve covers the scope, or the allocator's maximum is there.
        row: the row of the table ``peaks``, for evidence.
    """

    scope: str
    step: int | None
    phase: str | None
    highest_bytes: int
    known: bool
    row: dict[str, Any]

    @property
    def where(self) -> str:
        """In a sentence: "init", "the backward of step 1", "the optimizer's step of step 0"."""
        if self.phase is None or self.phase == "init":
            return self.phase or "the run"
        name = "optimizer's step" if self.phase == "step" else self.phase
        return f"the {name} of step {self.step}" if (self.step or 0) >= 0 else f"the {name}"


def scope_peaks(run: Run, rank: int) -> list[ScopePeak]:
    """All peaks of a rank, in the table's order (by time); rows without a size are left out."""
    rows = run.arrow("peaks", rank, _COLUMNS).to_pylist()
    return [_peak(row) for row in rows if row["allocated_bytes"] is not None]


def parts_at(run: Run, rank: int, peak: ScopePeak) -> dict[str, int]:
    """Bytes by category at a peak; empty when the tables hold no composition of it."""
    rows = run.arrow("peak_composition", rank, ["scope", "step", "phase", "category", "size_bytes"]).to_pylist()
    key = (peak.scope, peak.step, peak.phase)
    return {row["category"]: row["size_bytes"] for row in rows if (row["scope"], row["step"], row["phase"]) == key}


def highest(peaks: Sequence[ScopePeak]) -> ScopePeak | None:
    """The highest, the first of equals."""
    return max(peaks, key=lambda peak: peak.highest_bytes, default=None)


def _peak(row: dict[str, Any]) -> ScopePeak:
    sampled, counted = row["source"] == SAMPLED, row["allocator_peak_bytes"]
    gaps = sampled or bool(row["partial"])
    top = max(row["allocated_bytes"], counted or 0) if gaps else row["allocated_bytes"]
    return ScopePeak(row["scope"], row["step"], row["phase"], top, not gaps or counted is not None, row)
