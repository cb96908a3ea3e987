"""The table of a comparison for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeropeak.reports.compare.moment import MOMENTS
from zeropeak.reports.compare.overlap import covered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeropeak.reports.compare.comparison import Comparison
    from zeropeak.reports.compare.table import Cell


def table_lines(comparison: Comparison) -> list[str]:
    """The table in columns, then what it is over and cannot say."""
    head = ["", *(moment.name for moment in MOMENTS), "peak on"]
    rows = [
        [row.side.title, *(_cell(cell) for cell in row.cells), row.cells[-1].who(len(row.side.ranks))]
        for row in comparison.rows
    ]
    table = _columns([head, *rows])
    over = f"Allocated bytes of the rank that holds most; peak over {covered(comparison.common)}."
    return [*table, over, *(f"! {line}" for line in comparison.limits)]


def _cell(cell: Cell) -> str:
    return f"{cell.words()} (reported {cell.reported})" if cell.reported else cell.words()


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
