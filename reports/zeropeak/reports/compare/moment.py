"""The moments at which runs are compared, and what one rank of one run held at one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from zeropeak.reports.story import UNATTRIBUTED

if TYPE_CHECKING:
    from collections.abc import Mapping

BETWEEN_SAMPLES: Final = "above_the_samples"
"""Part of a peak that the allocator's counter reached between two samples: what it was is not known."""


@dataclass(frozen=True, order=True)
class Moment:
    """A point of training.

    Attributes:
        at: ``init``, ``forward``, ``backward`` or ``step`` (the mark after it), or ``peak``.
        step: of the mark (-1 for init); None for the peak.
    """

    at: str
    step: int | None

    @property
    def name(self) -> str:
        """For people: "after the first forward"."""
        if self.at == "peak":
            return "at the peak"
        if self.at == "init":
            return "after init"
        return f"after the first {self.at}" if self.step == 0 else f"after the {self.at} of step {self.step}"


INIT: Final = Moment("init", -1)
FIRST_FORWARD: Final = Moment("forward", 0)
PEAK: Final = Moment("peak", None)
MOMENTS: Final = (INIT, FIRST_FORWARD, PEAK)
"""The bug report's two moments, and the peak."""


@dataclass(frozen=True)
class Reading:
    """Allocated bytes of one rank at one moment.

    Attributes:
        size_bytes: measured, or simulated in a run that is.
        at_least: the run was cut or its curve misses a part, so that a peak may be higher.
        step: step that a peak lies in; None when the run knows no steps, or for a mark.
        parts: bytes by category; they sum to ``size_bytes``. None when the run does not say what its bytes were.
        gap_bytes: what the table's parts lacked of the measured bytes; counted as unattributed.
    """

    size_bytes: int
    at_least: bool = False
    step: int | None = None
    parts: Mapping[str, int] | None = None
    gap_bytes: int = 0


def whole(size_bytes: int, sample_bytes: int, parts: Mapping[str, int] | None) -> tuple[dict[str, int] | None, int]:
    """Parts that sum to ``size_bytes``, and the gap that they had.

    Args:
        size_bytes: what was allocated.
        sample_bytes: what the parts are of; less than ``size_bytes`` when a counter went higher between two samples.
        parts: bytes by category, as the tables have them; None or empty when they have none.

    >>> whole(12, 10, {"inputs": 9, "unattributed": 1})
    ({'inputs': 9, 'unattributed': 1, 'above_the_samples': 2}, 0)
    >>> whole(10, 10, {"inputs": 9})
    ({'inputs': 9, 'unattributed': 1}, 1)
    """
    if not parts:
        return None, 0
    known = dict(parts)
    gap = sample_bytes - sum(known.values())
    if gap:
        known[UNATTRIBUTED] = known.get(UNATTRIBUTED, 0) + gap
    if size_bytes != sample_bytes:
        known[BETWEEN_SAMPLES] = size_bytes - sample_bytes
    return known, gap
