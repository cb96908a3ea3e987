"""Allocator counters of the device that a rank trains on."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple, Protocol


class Reading(NamedTuple):
    """Bytes allocated and reserved now; None where the device keeps no such counter."""

    allocated_bytes: int | None
    reserved_bytes: int | None


class Counters(Protocol):
    """What the recorder asks of a device."""

    @property
    def device(self) -> str:
        """Name: cpu, cuda:0, ..."""

    @property
    def device_name(self) -> str | None:
        """Model of the accelerator."""

    @property
    def device_total_bytes(self) -> int | None:
        """Memory of the accelerator."""

    def read(self) -> Reading:
        """Counters now; must not wait for the device."""

    def window_max(self) -> int | None:
        """Highest allocated bytes since the last :meth:`reset_window`."""

    def reset_window(self) -> None:
        """Start a new window for :meth:`window_max`."""

    def stream(self) -> int | None:
        """Handle of the current stream."""

    def device_used(self) -> int | None:
        """Bytes in use on the whole device, by all processes, libraries and contexts; may wait for the driver."""


class CpuCounters:
    """PyTorch's CPU allocator has no counters: the curve comes from torch.profiler's memory events."""

    device = "cpu"
    device_name = None
    device_total_bytes = None

    def read(self) -> Reading:
        """See :class:`Counters`."""
        return _NOTHING

    def window_max(self) -> int | None:
        """See :class:`Counters`."""
        return None

    def reset_window(self) -> None:
        """See :class:`Counters`."""

    def stream(self) -> int | None:
        """See :class:`Counters`."""
        return None

    def device_used(self) -> int | None:
        """See :class:`Counters`."""
        return None


_NOTHING = Reading(None, None)


class CudaCounters:
    """Counters of PyTorch's caching allocator on one CUDA device.

    Args:
        index: device index within the process.
    """

    def __init__(self, index: int) -> None:
        self._cuda: Any = import_module("torch").cuda
        self._index = index
        self.device = f"cuda:{index}"
        properties = self._cuda.get_device_properties(index)
        self.device_name: str | None = properties.name
        self.device_total_bytes: int | None = properties.total_memory
        # torch.cuda.memory_allocated() flattens every statistic into a new dictionary for one number.
        self._stats = self._cuda.memory.memory_stats_as_nested_dict
        self._nvml_missing = not hasattr(self._cuda, "device_memory_used")  # torch before 2.5
        # The handle without a stream object around it: asked for at every event.
        self._raw_stream = import_module("torch._C")._cuda_getCurrentRawStream

    def read(self) -> Reading:
        """See :class:`Counters`."""
        stats = self._stats(self._index)
        return Reading(stats["allocated_bytes"]["all"]["current"], stats["reserved_bytes"]["all"]["current"])

    def window_max(self) -> int | None:
        """See :class:`Counters`."""
        peak: int = self._stats(self._index)["allocated_bytes"]["all"]["peak"]
        return peak

    def reset_window(self) -> None:
        """See :class:`Counters`."""
        self._cuda.reset_peak_memory_stats(self._index)

    def stream(self) -> int | None:
        """See :class:`Counters`."""
        handle: int = self._raw_stream(self._index)
        return handle

    def device_used(self) -> int | None:
        """See :class:`Counters`; from NVML, None where its Python package or its library is missing."""
        if self._nvml_missing:
            return None
        try:
            used: int = self._cuda.device_memory_used(self._index)
        except (ImportError, RuntimeError, OSError):
            self._nvml_missing = True
            return None
        return used
