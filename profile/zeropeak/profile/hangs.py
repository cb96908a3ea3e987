"""Which rank kept the others waiting, when a run ended because a collective timed out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from zeropeak.profile.labels import Status

if TYPE_CHECKING:
    from collections.abc import Mapping

_WATCHDOG: Final = re.compile(r"Rank (\d+)\].*Watchdog caught collective operation timeout")
"""What NCCL's watchdog prints in a rank that gave up, before it ends the process; gloo raises instead."""


def hung_rank(ends: Mapping[int, Mapping[str, Any]], printed: str) -> tuple[int, str] | None:
    """The rank that the others waited for in vain, and how to say it.

    It neither gave up itself nor failed when those who gave up had gone: it was ended from outside.

    Args:
        ends: ``rank.json`` by rank; empty for a rank that wrote none.
        printed: what the ranks printed.

    Returns:
        None when nobody gave up waiting, or when it is not clear for whom.
    """
    watched = {int(rank) for rank in _WATCHDOG.findall(printed)}
    waited = [rank for rank, end in ends.items() if rank in watched or "timed out" in str(end.get("error")).lower()]
    outside = (None, Status.INTERRUPTED.value)
    missing = [rank for rank, end in ends.items() if rank not in waited and end.get("ended") in outside]
    if not waited or len(missing) != 1:
        return None
    who = f"rank {waited[0]}" if len(waited) == 1 else f"{len(waited)} ranks"
    return missing[0], f"hung: {who} waited for it in a collective until the timeout"
