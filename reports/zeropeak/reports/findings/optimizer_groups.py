"""The groups of parameters that ZeRO-3's optimizer steps one after the other, and what smaller ones would save.

DeepSpeed fills a group with parameters, in their order, until it holds ``sub_group_size`` elements of this rank's
partitions; the optimizer's step then holds the temporaries of one group at a time (single-precision gradients, and what
the optimizer computes with).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from zeropeak.reports import setting
from zeropeak.reports.findings.judging import PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zeropeak.reports.run import Run

KNOB: Final = "zero_optimization.sub_group_size"
_PARTS: Final = 4
"""Groups that the advice makes of one: each more saves less, and each is one more launch of the optimizer."""


@dataclass(frozen=True)
class Smaller:
    """A smaller ``sub_group_size``.

    Attributes:
        value: for the knob, in elements.
        now: elements of this rank in the largest group as it is.
        then: with the value.
        elements: trainable elements of this rank.
    """

    value: int
    now: int
    then: int
    elements: int

    def saved_bytes(self, temporaries_bytes: int) -> int:
        """What of the step's temporaries goes, when they are those of the largest group.

        >>> Smaller(25, 100, 30, 100).saved_bytes(1000)
        700
        """
        return temporaries_bytes - temporaries_bytes * self.then // self.now


def smaller_groups(run: Run, rank: int) -> Smaller | None:
    """A value that makes about four groups of this rank's trainable elements; None where it would change nothing."""
    size = setting.knob(run, rank, "sub_group_size")
    rows = run.arrow("params", rank, ["trainable", "numel", "full_bytes", "shard_bytes"]).to_pylist()
    shards = [
        row["numel"] * row["shard_bytes"] // row["full_bytes"]
        for row in rows
        if row["trainable"] and row["numel"] and row["full_bytes"] and row["shard_bytes"]
    ]
    value = sum(shards) // _PARTS
    if setting.stage(run, rank) != PARTITIONS or size is None or not value:
        return None
    now, then = largest_group(shards, size), largest_group(shards, value)
    return Smaller(value, now, then, sum(shards)) if then < now else None


def largest_group(shards: Iterable[int], size: int) -> int:
    """Elements of the largest group that DeepSpeed makes of partitions of these sizes.

    >>> largest_group([3, 3, 3, 1], 4), largest_group([3, 3], 100)
    (6, 6)
    """
    largest = filled = 0
    for shard in shards:
        filled += shard
        largest = max(largest, filled)
        if filled >= size:
            filled = 0
    return largest
