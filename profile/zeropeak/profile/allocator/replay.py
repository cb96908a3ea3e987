"""A whole stream of requests at once: addresses and totals after each."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zeropeak.profile.allocator.model import Allocator


class Step(NamedTuple):
    """One request to the allocator."""

    action: Literal["alloc", "free", "record_stream", "complete", "synchronize", "empty_cache"]
    key: int = 0
    """Which block; 0 and meaningless for ``synchronize`` and ``empty_cache``."""
    requested_bytes: int = 0
    """Before rounding; ``alloc`` only."""
    stream: int = 0
    """Of ``alloc``: the block's; of ``record_stream``: the other one that uses it."""


@dataclass(frozen=True)
class Curve:
    """One value a step, int64."""

    address: array[int] = field(default_factory=lambda: array("q"))
    """Of the block that was allocated or freed; else 0."""
    allocated_bytes: array[int] = field(default_factory=lambda: array("q"))
    reserved_bytes: array[int] = field(default_factory=lambda: array("q"))


def replay(allocator: Allocator, steps: Iterable[Step]) -> Curve:
    """Run all steps in order.

    Raises:
        OutOfMemory: the device is full; what was allocated before the step still is.
        ValueError: a key is allocated twice, or an action is unknown.
        KeyError: a block is freed or used that is not allocated.

    >>> from zeropeak.profile.allocator import Allocator
    >>> curve = replay(Allocator(), [Step("alloc", 1, 700), Step("alloc", 2, 1 << 20), Step("free", 1)])
    >>> curve.allocated_bytes.tolist(), curve.reserved_bytes.tolist()
    ([1024, 1049600, 1048576], [2097152, 2097152, 2097152])
    """
    curve = Curve()
    for action, key, requested_bytes, stream in steps:
        address = 0
        if action == "alloc":
            address = allocator.allocate(key, requested_bytes, stream)
        elif action == "free":
            address = allocator.free(key)
        elif action == "record_stream":
            allocator.record_stream(key, stream)
        elif action == "complete":
            allocator.complete(key)
        elif action == "synchronize":
            allocator.synchronize()
        elif action == "empty_cache":
            allocator.empty_cache()
        else:
            raise ValueError(f"unknown action {action}")
        curve.address.append(address)
        curve.allocated_bytes.append(allocator.allocated_bytes)
        curve.reserved_bytes.append(allocator.reserved_bytes)
    return curve
