"""PyTorch's own recorders, run beside ours: torch.profiler and the CUDA allocator's history."""

from __future__ import annotations

import gzip
import inspect
import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class TorchProfiler:
    """torch.profiler with memory events, from :meth:`start` to :meth:`save`.

    It must start before the model is built: on CPU, blocks born earlier are unknown to it. Input shapes are recorded
    because only then do our ranges carry their event ids.

    Args:
        cuda: record the GPU side too.
    """

    def __init__(self, *, cuda: bool) -> None:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if cuda else [ProfilerActivity.CPU]
        self._profile: Any = profile(activities=activities, profile_memory=True, record_shapes=True)

    def start(self) -> None:
        """Start recording."""
        self._profile.start()

    def save(self, path: Path) -> None:
        """Stop and write a chrome trace (gzip when the name ends so)."""
        self._profile.stop()
        draft = path.with_name(f"part-{path.name}")
        self._profile.export_chrome_trace(str(draft))
        draft.replace(path)


def history_entries(layers: int, micro_steps: int) -> int:
    """Ring size for a run: four times the 560 entries a layer and micro-step that Pythia-6.9B made on H200s, and a base
    for what building the model and the optimizer add."""
    return 200_000 + 4 * 560 * layers * micro_steps


class MemoryHistory:
    """History of PyTorch's CUDA caching allocator.

    Args:
        max_entries: size of the ring; the oldest entries are lost without a mark when it is full.
        stacks: note the Python stack of each allocation; it is most of what recording costs.
    """

    def __init__(self, max_entries: int, *, stacks: bool) -> None:
        import torch

        self._memory: Any = torch.cuda.memory
        self.max_entries = max_entries
        self._context = "alloc" if stacks else None

    def start(self) -> None:
        """Start recording; Python stacks only, since C++ stacks make dumps take minutes.

        Ranges of all threads are noted where torch can (2.8 and newer): ZeRO's backward hooks run on autograd's.
        """
        record = self._memory._record_memory_history
        if self._context is None:
            record(max_entries=self.max_entries, stacks="python", context=None)
            return
        takes_threads = "global_record_annotations" in inspect.signature(record).parameters
        threads = {"global_record_annotations": True} if takes_threads else {}
        record(max_entries=self.max_entries, stacks="python", context=self._context, **threads)

    def save(self, path: Path) -> int:
        """Write the snapshot (gzip pickle) and stop; returns the entries of the fullest device's ring."""
        snapshot = self._memory._snapshot()
        self._memory._record_memory_history(enabled=None)
        draft = path.with_name(f"part-{path.name}")
        with gzip.open(draft, "wb", compresslevel=1) as file:
            pickle.dump(snapshot, file, protocol=4)
        draft.replace(path)
        return max((len(trace) for trace in snapshot["device_traces"]), default=0)
