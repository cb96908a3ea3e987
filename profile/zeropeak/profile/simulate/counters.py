"""Allocator counters of the simulated device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zeropeak.profile.counters import Reading
from zeropeak.profile.simulate.device import NAME

if TYPE_CHECKING:
    from zeropeak.profile.simulate.ledger import Ledger


class SimulatedCounters:
    """What the recorder asks of a device, from the ledger.

    Args:
        ledger: what is allocated.
        total_bytes: memory of the device, where the user says.
    """

    device: Final = NAME
    device_name: str | None = None

    def __init__(self, ledger: Ledger, total_bytes: int | None) -> None:
        self._ledger = ledger
        self._total = ledger.total(NAME)
        self.device_total_bytes = total_bytes

    def read(self) -> Reading:
        """See :class:`zeropeak.profile.counters.Counters`."""
        return Reading(self._total.now, self._ledger.reserved_bytes)

    def window_max(self) -> int | None:
        """See :class:`zeropeak.profile.counters.Counters`."""
        return self._total.window_max

    def reset_window(self) -> None:
        """See :class:`zeropeak.profile.counters.Counters`."""
        self._ledger.reset_window(NAME)

    def device_used(self) -> int | None:
        """See :class:`zeropeak.profile.counters.Counters`: no device is there to ask."""
        return None

    def stream(self) -> int | None:
        """See :class:`zeropeak.profile.counters.Counters`."""
        return self._ledger.stream
