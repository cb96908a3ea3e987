"""From what one run held to what another held, category by category; the steps sum to the measured difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeropeak.reports.figures.style import category_order

if TYPE_CHECKING:
    from zeropeak.reports.compare.moment import Moment, Reading
    from zeropeak.reports.compare.overlap import Overlap
    from zeropeak.reports.compare.side import Side


@dataclass(frozen=True)
class Waterfall:
    """One rank at one moment in two runs.

    Attributes:
        steps: difference (after minus before) by category, in the order of reports; categories that do not differ
            are left out, ``unattributed`` never is.
    """

    moment: Moment
    rank: int
    before: Reading
    after: Reading
    steps: tuple[tuple[str, int], ...]

    @property
    def difference_bytes(self) -> int:
        """After minus before, as measured; what the steps sum to."""
        return self.after.size_bytes - self.before.size_bytes

    @property
    def largest(self) -> list[tuple[str, int]]:
        """Steps, largest first."""
        return sorted((step for step in self.steps if step[1]), key=lambda step: -abs(step[1]))


def waterfall(before: Side, after: Side, common: Overlap, rank: int, moment: Moment) -> Waterfall | None:
    """The waterfall of a rank at a moment; None when one of the runs does not say what its bytes were."""
    one, other = common.reading(before, rank, moment), common.reading(after, rank, moment)
    if one is None or other is None or one.parts is None or other.parts is None:
        return None
    names = category_order({*one.parts, *other.parts, "unattributed"})
    steps = [(name, other.parts.get(name, 0) - one.parts.get(name, 0)) for name in names]
    return Waterfall(
        moment, rank, one, other, tuple((name, size) for name, size in steps if size or name == "unattributed")
    )
