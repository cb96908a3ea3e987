"""A model of PyTorch's caching allocator for CUDA: from allocations and frees to addresses and reserved bytes.

No torch and no device is needed. The rules are those of torch 2.9 to 2.13 (``c10/cuda/CUDACachingAllocator.cpp``,
``c10/core/AllocatorConfig.cpp``); ``docs/decisions/allocator-model.md`` lists them, what is left out, and the error
measured against real histories.

>>> allocator = Allocator()
>>> first = allocator.allocate(1, 3 << 20)
>>> allocator.allocated_bytes, allocator.reserved_bytes
(3145728, 20971520)
>>> address = allocator.free(1)
>>> allocator.allocated_bytes, allocator.reserved_bytes
(0, 20971520)
"""

from zeropeak.profile.allocator.conf import read_conf, read_environment
from zeropeak.profile.allocator.device import OutOfMemory, SegmentChange
from zeropeak.profile.allocator.held import HeldBlock, HeldSegment
from zeropeak.profile.allocator.model import Allocator
from zeropeak.profile.allocator.replay import Curve, Step, replay
from zeropeak.profile.allocator.settings import Settings

__all__ = [
    "Allocator",
    "Curve",
    "HeldBlock",
    "HeldSegment",
    "OutOfMemory",
    "SegmentChange",
    "Settings",
    "Step",
    "read_conf",
    "read_environment",
    "replay",
]
