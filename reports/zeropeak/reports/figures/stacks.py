"""Peak composition as one stacked bar a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zeropeak.reports.figures import style

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from zeropeak.reports.composition import Composition


def categories(compositions: Sequence[Composition]) -> list[str]:
    """Categories with any bytes on any rank, in stacking order."""
    return style.category_order(name for one in compositions for name, size_bytes in one.parts.items() if size_bytes)


def layers(compositions: Sequence[Composition], most: int) -> list[tuple[str, list[int]]]:
    """Bytes by category and rank; beyond ``most`` categories the smallest are one layer, "smaller ones".

    The layers of a rank sum to the sum of its parts.
    """
    names = categories(compositions)
    values = {name: [one.parts.get(name, 0) for one in compositions] for name in names}
    if len(names) <= most:
        return list(values.items())
    by_size = sorted(names, key=lambda name: -max(map(abs, values[name])))
    kept, small = set(by_size[: most - 1]), by_size[most - 1 :]
    rest = [sum(values[name][place] for name in small) for place in range(len(compositions))]
    return [*((name, values[name]) for name in names if name in kept), (f"{len(small)} smaller ones", rest)]


def draw(ax: Axes, compositions: Sequence[Composition], stack: Sequence[tuple[str, list[int]]], divisor: int) -> None:
    """Draw vertical bars, first layer at the bottom; negative values (over-attribution) hang below zero."""
    places = np.arange(len(compositions))
    above, below = np.zeros(len(compositions)), np.zeros(len(compositions))
    few = len(compositions) <= 16
    span = 0.78 if few else 1.0
    for name, sizes in stack:
        heights = np.array(sizes, dtype=float) / divisor
        bottom = np.where(heights >= 0, above, below)
        ax.bar(
            places,
            heights,
            span,
            bottom=bottom,
            linewidth=0.4 if few else 0,
            antialiased=few,
            **style.category_fill(name, "white"),
        )
        above += np.maximum(heights, 0)
        below += np.minimum(heights, 0)
    ax.set_xlim(-0.6, len(compositions) - 0.4)
    every = max(1, -(-len(compositions) // 16))
    ax.set_xticks(places[::every], [str(one.rank) for one in compositions[::every]])
    ax.tick_params(axis="x", length=0)
