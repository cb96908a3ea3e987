"""A figure ready to be drawn: its data is built, where it is drawn is not decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeropeak.reports.figures.style import Panel


@dataclass(frozen=True)
class Drawing:
    """One figure.

    Attributes:
        name: of the PNG, without its ending.
        caption: how to read it; for the page.
        draw: draws it into a panel, as often as wanted.
    """

    name: str
    caption: str
    draw: Callable[[Panel], None]
