"""A colour and a line for each run, the same in every figure of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeropeak.reports.compare.side import Side

COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#7a5195", "#5c5c5c")
"""Of the Okabe-Ito palette, without the vermilion that reports keep for released-but-alive bytes."""
_LINES: Final[Sequence[Any]] = ("-", (0, (5, 2)), (0, (1, 1.5)))


def colour(sides: Sequence[Side], side: Side) -> str:
    """Colour of a run."""
    return COLOURS[_place(sides, side) % len(COLOURS)]


def line(sides: Sequence[Side], side: Side) -> Any:
    """Its line: solid while the colours last, then broken; a simulated run's is dashed."""
    if side.simulated:
        return _LINES[1]
    return _LINES[_place(sides, side) // len(COLOURS) % len(_LINES)]


def _place(sides: Sequence[Side], side: Side) -> int:
    return next(index for index, one in enumerate(sides) if one is side)
