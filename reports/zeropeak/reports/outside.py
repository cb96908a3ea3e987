"""What a device held beside what PyTorch had reserved: CUDA contexts, NCCL, other libraries and processes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeropeak.reports.units import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeropeak.reports.run import Run


@dataclass(frozen=True)
class Outside:
    """One device at the mark where most of it was in use.

    Attributes:
        ranks: those that share it.
        used_bytes: in use on the whole device.
        reserved_bytes: by the allocators of these ranks, at the same mark.
    """

    device: str
    ranks: Sequence[int]
    used_bytes: int
    reserved_bytes: int

    @property
    def size_bytes(self) -> int:
        """Outside the allocators."""
        return self.used_bytes - self.reserved_bytes


def outside(run: Run) -> list[Outside]:
    """One for each device whose use was read; none on CPU, or where NVML could not be asked."""
    sharing: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for row in run.arrow("ranks", columns=["rank", "node", "device"]).to_pylist():
        if row["device"] is not None:
            sharing[row["node"] or 0, row["device"]].append(row["rank"])
    columns = ["rank", "step", "micro_step", "mark", "reserved_bytes", "device_used_bytes"]
    marks = run.arrow("marks", columns=columns).to_pylist()
    found = [_of_device(device, ranks, marks) for (_, device), ranks in sorted(sharing.items())]
    return [one for one in found if one is not None]


def _of_device(device: str, ranks: Sequence[int], marks: Sequence[dict[str, Any]]) -> Outside | None:
    """At each mark all ranks of the device must have said what they reserved: ranks reach a mark at their own times."""
    at: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in marks:
        if row["rank"] in ranks and None not in (row["device_used_bytes"], row["reserved_bytes"]):
            at[row["step"], row["micro_step"], row["mark"]].append(row)
    whole = [
        Outside(
            device, ranks, max(row["device_used_bytes"] for row in rows), sum(row["reserved_bytes"] for row in rows)
        )
        for rows in at.values()
        if len(rows) == len(ranks)
    ]
    return max(whole, key=lambda one: one.used_bytes, default=None)


def sentence(found: Sequence[Outside]) -> str:
    """What lies outside the allocators, device by device, for page 1."""
    parts = []
    for one in found:
        who = f"rank {one.ranks[0]}" if len(one.ranks) == 1 else f"its {len(one.ranks)} ranks"
        parts.append(
            f"{one.device} had {size(one.used_bytes)} in use when {who} had reserved {size(one.reserved_bytes)}: "
            f"{size(one.size_bytes)} are contexts, NCCL and other libraries or programs"
        )
    return f"{'; '.join(parts)}."
