"""Figures of a comparison: one module each, data built apart from drawing, listed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zeropeak.reports.compare.figures import by_phase, moments, spread, waterfall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeropeak.reports.compare.comparison import Comparison, Pair
    from zeropeak.reports.figures.drawing import Drawing

MOST_PAIRS: Final = 6
"""Pairs with a figure of their own; of more, those with the first run."""


def drawings(comparison: Comparison) -> list[Drawing]:
    """All figures, in the order of the report."""
    found = [moments.drawing(comparison)]
    found += [waterfall.drawing(pair, comparison.common) for pair in shown_pairs(comparison)]
    if comparison.alignment is not None:
        found.append(by_phase.drawing(comparison.alignment, comparison.sides))
    if len(comparison.common.ranks) > 1:
        found.append(spread.drawing(comparison))
    return found


def shown_pairs(comparison: Comparison) -> Sequence[Pair]:
    """Pairs that get a figure."""
    if len(comparison.pairs) <= MOST_PAIRS:
        return comparison.pairs
    return [pair for pair in comparison.pairs if pair.before is comparison.sides[0]]
