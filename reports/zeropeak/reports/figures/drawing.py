"""A figure ready to be drawn: its data is built, where it is drawn is not decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zeropeak.reports.origin import FIRST_FORWARD

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
        since: what the origin is, for people.
        releases: whether the ZeRO stage releases weights, so that there can be some that stay alive.
    """

    title: str
    subtitle: str
    origin_ns: int
    start_ns: int
    end_ns: int
    since: str = field(default=FIRST_FORWARD, kw_only=True)
    releases: bool = field(default=True, kw_only=True)


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
