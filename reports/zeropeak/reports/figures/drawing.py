"""A figure ready to be drawn: its data is built, where it is drawn is not decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeropeak.reports.figures.style import Panel


@dataclass(frozen=True)
class Head:
    """What the data of every figure over time begins with; times in run ns.

    Attributes:
        title: the message.
        subtitle: what limits it.
        origin_ns: the moment that times are counted from.
        start_ns, end_ns: what the time axis shows.
    """

    title: str
    subtitle: str
    origin_ns: int
    start_ns: int
    end_ns: int


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
