"""The bug report's table with measured columns: a row a run, a cell a moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeropeak.reports.compare.moment import MOMENTS
from zeropeak.reports.compare.reported import reported
from zeropeak.reports.selection import alike, all_ranks
from zeropeak.reports.units import size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeropeak.reports.compare.moment import Moment, Reading
    from zeropeak.reports.compare.overlap import Overlap
    from zeropeak.reports.compare.reported import Reported
    from zeropeak.reports.compare.side import Side


@dataclass(frozen=True)
class Cell:
    """A run at a moment, over the ranks that are compared.

    Attributes:
        readings: by rank, of the ranks that know it.
        reported: the bug report's figure, as it stands there.
    """

    moment: Moment
    readings: Mapping[int, Reading]
    reported: str | None

    @property
    def highest(self) -> int | None:
        """Rank that holds most, the lowest such rank; None when no rank knows."""
        return min(self.readings, key=lambda rank: (-self.readings[rank].size_bytes, rank), default=None)

    @property
    def size_bytes(self) -> int | None:
        """What that rank holds."""
        return None if self.highest is None else self.readings[self.highest].size_bytes

    @property
    def at_least(self) -> bool:
        """Whether it may be more."""
        return any(reading.at_least for reading in self.readings.values())

    @property
    def lowest_bytes(self) -> int | None:
        """What the rank with least holds."""
        return min((reading.size_bytes for reading in self.readings.values()), default=None)

    def words(self) -> str:
        """For people: "≥ 30.7 GiB"."""
        return "-" if self.size_bytes is None else f"{'≥ ' if self.at_least else ''}{size(self.size_bytes)}"

    def who(self, ranks: int) -> str:
        """Which rank holds that much, of so many."""
        if self.highest is None:
            return "-"
        return f"{all_ranks(list(self.readings), ranks)} alike" if self.alike else f"rank {self.highest}"

    def spread(self) -> str:
        """How far the ranks lie apart."""
        if self.size_bytes is None or self.lowest_bytes is None or len(self.readings) < 2:
            return "-"
        difference = self.size_bytes - self.lowest_bytes
        if self.alike:
            return f"within {size(difference)}" if difference else "the same"
        return f"{size(self.lowest_bytes)} to {size(self.size_bytes)}"

    @property
    def alike(self) -> bool:
        """Whether several ranks hold about the same."""
        return alike({rank: reading.size_bytes for rank, reading in self.readings.items()})


@dataclass(frozen=True)
class Row:
    """One run."""

    side: Side
    cells: Sequence[Cell]
    reported: Reported | None


def rows(sides: Sequence[Side], common: Overlap) -> list[Row]:
    """The table."""
    found = []
    for side in sides:
        said = reported(side)
        cells = [Cell(moment, _readings(side, common, moment), said.at(moment) if said else None) for moment in MOMENTS]
        found.append(Row(side, cells, said))
    return found


def _readings(side: Side, common: Overlap, moment: Moment) -> dict[int, Reading]:
    found = {rank: common.reading(side, rank, moment) for rank in common.ranks}
    return {rank: reading for rank, reading in found.items() if reading is not None}
