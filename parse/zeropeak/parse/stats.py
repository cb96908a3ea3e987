"""Counts of what was read, dropped or mended, on their way to the table import_stats."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from zeropeak.parse.schema import BY_NAME
from zeropeak.parse.sink import Count, add_count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeropeak.parse.sink import Severity


NOTHING_CAPTURED: Final = "nothing_captured"
"""Counted when a run holds nothing but its manifest."""


@dataclass
class Stats:
    """All counts of one parse, by rank, file and source."""

    _counts: dict[tuple[int | None, str, str | None], dict[str, Count]] = field(default_factory=dict)

    def scope(self, file: str, source: str | None, rank: int | None = None) -> StatsScope:
        """Where the counts of one file (and one rank in it) go."""
        return StatsScope(self._counts.setdefault((rank, file, source), {}))

    def merge(self, counts: Mapping[str, Count], file: str, source: str | None, rank: int | None = None) -> None:
        """Take over the counts that a reader collected."""
        scope = self.scope(file, source, rank)
        for what, line in counts.items():
            scope.count(what, line.count, line.severity, line.detail)

    def absorb(self, other: Stats) -> None:
        """Take over the counts of another parse of the same files."""
        for (rank, file, source), counts in other._counts.items():
            self.merge(counts, file, source, rank)

    def ranks_with(self, what: str) -> list[int]:
        """Ranks of which something was counted."""
        found = {rank for (rank, _, _), counts in self._counts.items() if what in counts and counts[what].count}
        return sorted(rank for rank in found if rank is not None)

    def table(self) -> pa.Table:
        """All lines as rows of import_stats; a zero says something only where anything else would be an error."""
        rows = [
            {
                "rank": rank,
                "file": file,
                "source": source,
                "what": what,
                "severity": line.severity,
                "count": line.count,
                "detail": line.detail,
            }
            for (rank, file, source), counts in self._counts.items()
            for what, line in counts.items()
            if line.count or line.severity == "error"
        ]
        return pa.Table.from_pylist(rows, schema=BY_NAME["import_stats"].arrow)

    def total(self, severity: Severity) -> dict[str, int]:
        """Sum over all files of the counts above zero with this severity, by what was counted."""
        found: dict[str, int] = {}
        for counts in self._counts.values():
            for what, line in counts.items():
                if line.severity == severity and line.count:
                    found[what] = found.get(what, 0) + line.count
        return found


@dataclass(frozen=True)
class StatsScope:
    """Counts of one file and rank."""

    counts: dict[str, Count]

    def count(self, what: str, count: int, severity: Severity = "info", detail: str | None = None) -> None:
        """Add ``count`` to one line of import_stats; repeated calls with the same ``what`` add up."""
        add_count(self.counts, what, count, severity, detail)
