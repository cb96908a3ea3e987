"""One run of a comparison: its label, and what each rank held at the moments that are compared."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from zeropeak.reports.compare.moment import Moment, Reading, whole
from zeropeak.reports.findings import Basis, find_all
from zeropeak.reports.selection import SAMPLED

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa

    from zeropeak.reports.findings import Finding
    from zeropeak.reports.run import Run

_KEYS = ("rank", "scope", "step", "category", "size_bytes")
_MARK_KEYS = ("rank", "step", "micro_step", "mark", "category", "size_bytes")


class Side:
    """One run.

    Args:
        run: the run.
        label: short, unique within the comparison.
        captured: what is known of how it came into the comparison ("reused ..."); empty for an existing run.
    """

    def __init__(self, run: Run, label: str, captured: str = "") -> None:
        self.run = run
        self.label = label
        self.captured = captured

    def __repr__(self) -> str:
        return f"<Side {self.title!r}>"

    @property
    def basis(self) -> Basis:
        """Whether its figures were measured or simulated."""
        return self.run.basis

    @property
    def simulated(self) -> bool:
        """Whether no memory was measured at all."""
        return self.basis is not Basis.MEASURED

    @property
    def title(self) -> str:
        """The label as it stands beside every figure: a simulated run says so."""
        return f"{self.label} ({self.basis.value})" if self.simulated else self.label

    @property
    def status(self) -> str | None:
        """How the run ended; None for one that zeropeak did not capture."""
        found = self.run.manifest.get("status")
        return str(found) if found else None

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that have any figure to compare."""
        known = {rank for rank, _, _ in self._marks} | set(self._peaks)
        return tuple(sorted(rank for rank in self.run.rank_ids if rank in known))

    @cached_property
    def findings(self) -> list[Finding]:
        """All findings of the run."""
        return find_all(self.run)

    @cached_property
    def cut_ranks(self) -> frozenset[int]:
        """Ranks whose data stops before their own end, or whose curve misses a part."""
        rows = self.run.arrow("ranks", columns=["rank", "status", "memory_partial"]).to_pylist()
        return frozenset(
            row["rank"] for row in rows if row["status"] not in {None, "complete"} or row["memory_partial"]
        )

    @cached_property
    def sampled(self) -> bool:
        """Whether a rank's curve is of counters read now and then."""
        return SAMPLED in self.run.arrow("ranks", columns=["memory_source"])["memory_source"].to_pylist()

    @property
    def knows_steps(self) -> bool:
        """Whether it says where its steps begin and end."""
        return self.has_marks or any(_is_step(row) for rows in self._peaks.values() for row in rows)

    @property
    def has_marks(self) -> bool:
        """Whether the allocated bytes are known at any mark."""
        return bool(self._marks)

    def complete_steps(self, rank: int) -> frozenset[int]:
        """Steps that the rank went through to their end; -1 is init. Empty when the run knows no steps."""
        return self._ended.get(rank) or frozenset(
            row["step"] for row in self._peaks.get(rank, ()) if _is_step(row) and not row["partial"]
        )

    @cached_property
    def _ended(self) -> Mapping[int, frozenset[int]]:
        """Steps whose last mark is there, by rank."""
        found: defaultdict[int, set[int]] = defaultdict(set)
        for rank, step, mark in self._marks:
            if mark in {"init", "step"} and step is not None:
                found[rank].add(step)
        return {rank: frozenset(steps) for rank, steps in found.items()}

    def readings(self, rank: int, moment: Moment) -> list[int]:
        """Allocated bytes at a mark, one a micro-step in order."""
        return self._marks.get((rank, moment.step if moment.step is not None else -1, moment.at), [])

    def at_mark(self, rank: int, moment: Moment) -> Reading | None:
        """What a rank held at a mark of a step's first micro-step; None when that is not known."""
        found = self.readings(rank, moment)
        if not found:
            return None
        parts, gap = whole(found[0], found[0], self._mark_parts(moment).get(rank))
        return Reading(found[0], step=moment.step, parts=parts, gap_bytes=gap)

    def peak(self, rank: int, steps: Collection[int]) -> Reading | None:
        """A rank's peak within some steps; of the whole run when it knows no steps or ``steps`` is empty."""
        rows = self._peaks.get(rank, ())
        inside = [row for row in rows if _is_step(row) and row["step"] in steps]
        top = max(inside or [row for row in rows if row["scope"] == "run"], key=_highest, default=None)
        if top is None:
            return None
        parts, gap = whole(
            _highest(top), top["allocated_bytes"], self._peak_parts.get((rank, top["scope"], top["step"]))
        )
        missing = rank in self.cut_ranks and (not steps or not set(steps) <= self.complete_steps(rank))
        return Reading(
            _highest(top), missing or any(row["partial"] for row in inside or [top]), top["step"], parts, gap
        )

    @cached_property
    def _marks(self) -> Mapping[tuple[int, int | None, str], list[int]]:
        table = self.run.arrow("marks", columns=["rank", "step", "micro_step", "mark", "ts_ns", "allocated_bytes"])
        table = table.filter(pc.is_valid(table["allocated_bytes"])).sort_by(
            [("rank", "ascending"), ("ts_ns", "ascending")]
        )
        found: defaultdict[tuple[int, int | None, str], list[int]] = defaultdict(list)
        for row in table.to_pylist():
            found[row["rank"], row["step"], row["mark"]].append(row["allocated_bytes"])
        return dict(found)

    @cached_property
    def _peaks(self) -> Mapping[int, Sequence[dict[str, Any]]]:
        """Rows of ``peaks`` of the run and of its steps, by rank."""
        table = self.run.arrow("peaks")
        table = table.filter(pc.and_(pc.is_valid(table["allocated_bytes"]), pc.not_equal(table["scope"], "phase")))
        found: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in table.to_pylist():
            found[row["rank"]].append(row)
        return found

    @cached_property
    def _peak_parts(self) -> Mapping[tuple[int, str, int | None], dict[str, int]]:
        table = self.run.arrow("peak_composition", columns=_KEYS)
        table = table.filter(pc.not_equal(table["scope"], "phase"))
        found: defaultdict[tuple[int, str, int | None], dict[str, int]] = defaultdict(dict)
        for row in table.to_pylist():
            _add(found[row["rank"], row["scope"], row["step"]], row)
        return found

    def _mark_parts(self, moment: Moment) -> Mapping[int, dict[str, int]]:
        return self.run.keep(
            ("parts", moment), lambda: _parts(self.run.arrow("mark_composition", columns=_MARK_KEYS), moment)
        )


def _parts(table: pa.Table, moment: Moment) -> Mapping[int, dict[str, int]]:
    """By rank, at the first mark of a kind in a step."""
    table = table.filter(pc.and_(pc.equal(table["step"], moment.step), pc.equal(table["mark"], moment.at)))
    table = table.filter(pc.equal(pc.fill_null(table["micro_step"], 0), 0))
    found: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for row in table.to_pylist():
        _add(found[row["rank"]], row)
    return found


def _add(parts: dict[str, int], row: Mapping[str, Any]) -> None:
    parts[row["category"]] = parts.get(row["category"], 0) + row["size_bytes"]


def _is_step(row: Mapping[str, Any]) -> bool:
    return row["scope"] == "step" and row["step"] is not None


def _highest(row: Mapping[str, Any]) -> int:
    """The allocator's own maximum where the curve is sampled, as everywhere in reports."""
    top: int = row["allocated_bytes"]
    return max(top, row["allocator_peak_bytes"] or 0) if row["source"] == SAMPLED else top
