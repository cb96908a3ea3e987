"""How much lower a rank's peak would have been without some storages: from the run's own curve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from zeropeak.reports.findings.finding import Expected
from zeropeak.reports.units import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zeropeak.reports.curve import Curve, Intervals
    from zeropeak.reports.story import Story


@dataclass(frozen=True)
class Saving:
    """Peak with and without.

    Attributes:
        sampled: the curve is of counters read now and then, so the moment of the peak is known to the sample only.
    """

    peak_bytes: int
    without_bytes: int
    sampled: bool

    @property
    def size_bytes(self) -> int:
        """Bytes saved at the peak."""
        return self.peak_bytes - self.without_bytes

    @property
    def expected(self) -> Expected:
        """For findings.json."""
        return Expected("peak", None, self.peak_bytes, self.without_bytes, self.sampled)

    @property
    def words(self) -> str:
        """For a sentence: "1.02 MiB less at the peak (22.7 MiB to 21.7 MiB)"."""
        known = "; the moment of the peak is known to the sample only" if self.sampled else ""
        return (
            f"{size(self.size_bytes)} less at the peak ({size(self.peak_bytes)} to {size(self.without_bytes)}{known})"
        )


NEARLY_ALL: Final = 0.9
"""Share of the most that a knob can save, from which a milder setting is advised instead: the last tenth costs most
(another gather for every use of the smallest parameters, no gather hidden behind computation)."""
_TRIED: Final = 6
"""Settings that are tried of each knob. They act in the steps of the model's own sizes, of which there are few."""


def mildest(values: Iterable[int], saves: Callable[[int], Saving | None], most: Saving) -> tuple[int, Saving] | None:
    """The highest of some values of a knob that still saves nearly all.

    Args:
        values: to try; of many, a few in equal strides with the lowest and the highest.
        saves: what a value saves, None when that is not known.
        most: what the strictest value saves.

    Returns:
        None when none does.
    """
    known = sorted(set(values))
    places = {round(step * (len(known) - 1) / (_TRIED - 1)) for step in range(_TRIED)} if known else set()
    for value in (known[place] for place in sorted(places, reverse=True)):
        saving = saves(value)
        if saving is not None and saving.size_bytes >= NEARLY_ALL * most.size_bytes:
            return value, saving
    return None


def peak_without(story: Story, held: Intervals) -> Saving | None:
    """Peak of a rank with ``held`` taken off; None without a curve or with nothing to take off."""
    curve = held.curve()
    return without(story.curve, curve, story.peak.allocator_bytes if story.peak else None) if len(curve) else None


def without(allocated: Curve, held: Curve, allocator_bytes: int | None = None) -> Saving | None:
    """Peak of ``allocated`` with ``held`` taken off at every moment; the peak may move to another moment.

    Args:
        allocated: of the rank.
        held: of the storages in question.
        allocator_bytes: the allocator's own maximum, where the curve is sampled: what the samples save is taken off it.

    Returns:
        None without a curve.
    """
    if not len(allocated):
        return None
    # Between two changes of either curve nothing changes, so the changes are all moments that matter. The curve's own
    # rows are taken as they are: several may share a moment, and the highest of them is a peak all the same.
    inside = held.ts_ns[(held.ts_ns >= allocated.ts_ns[0]) & (held.ts_ns <= allocated.ts_ns[-1])]
    left = max(
        int((allocated.size_bytes - held.along(allocated)).max()),
        int((allocated.at(inside) - held.at(inside)).max(initial=0)),
    )
    top = int(allocated.size_bytes.max())
    highest = max(top, allocator_bytes or 0) if allocated.sampled else top
    return Saving(highest, highest - (top - left), allocated.sampled)
