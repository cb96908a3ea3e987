"""DeepSpeed's view of the simulated GPU: its own CUDA accelerator, with every question to a driver answered here.

DeepSpeed takes the same decisions as on CUDA: separate streams, no synchronised device, pinned host memory.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

from zeropeak.profile.simulate.device import NAME, TYPE
from zeropeak.profile.simulate.streams import SimulatedEvent, SimulatedStream, Use

if TYPE_CHECKING:
    import torch

    from zeropeak.profile.simulate.ledger import Ledger
    from zeropeak.profile.simulate.streams import Streams


class _Generator:
    """A generator of random numbers of the simulated device: it has a state, and gives no numbers."""

    def __init__(self, accelerator: SimulatedAccelerator) -> None:
        self.get_state = accelerator.get_rng_state
        self.set_state = accelerator.set_rng_state
        self.manual_seed = accelerator.manual_seed
        self.initial_seed = accelerator.initial_seed


class SimulatedAccelerator(CUDA_Accelerator):  # type: ignore[misc]
    """One CUDA-like device, without CUDA.

    Args:
        ledger: knows what is allocated.
        streams: the device's streams.
        total_bytes: memory of the device.
    """

    supports_nvtx_domain = False

    def __init__(self, ledger: Ledger, streams: Streams, total_bytes: int) -> None:
        super().__init__()
        self._name = TYPE
        self._communication_backend_name = "fake"
        self._ledger = ledger
        self._streams = streams
        self._total_bytes = total_bytes

    def _init_pynvml(self) -> None:
        """No driver is asked."""

    def device_name(self, device_index: int | None = None) -> str:
        """Its type, or its name with an index."""
        return TYPE if device_index is None else f"{TYPE}:{device_index}"

    def device(self, device_index: int | None = None) -> Any:
        """As a context and as a device."""
        import torch

        return torch.device(TYPE, device_index or 0)

    def set_device(self, device_index: object) -> None:
        """There is no other."""

    def current_device(self) -> int:
        """The only one."""
        return 0

    def current_device_name(self) -> str:
        """The only one."""
        return NAME

    def device_count(self) -> int:
        """One."""
        return 1

    def synchronize(self, device_index: object = None) -> None:
        """Nothing runs behind."""

    def communication_backend_version(self) -> tuple[int, int, int]:
        """No NCCL."""
        return (0, 0, 0)

    # Random numbers: there are no values

    def set_rng_state(self, new_state: object, device_index: object = None) -> None:
        """Nothing to set."""

    def get_rng_state(self, device_index: object = None) -> torch.Tensor:
        """A state of CUDA's size; it lies in host memory."""
        import torch

        return torch.empty(16, dtype=torch.uint8, device="cpu")

    def manual_seed(self, seed: int) -> None:
        """Nothing to seed."""

    def manual_seed_all(self, seed: int) -> None:
        """Nothing to seed."""

    def initial_seed(self) -> int:
        """Some seed."""
        return 0

    def default_generator(self, device_index: int) -> Any:
        """One that makes no numbers."""
        return _Generator(self)

    # Streams

    @property
    def Stream(self) -> Any:
        """Makes a stream."""
        return self._streams.make

    def stream(self, stream: SimulatedStream | None) -> Use:
        """Context in which a stream is current."""
        return self._streams.use(stream)

    def current_stream(self, device_index: object = None) -> SimulatedStream:
        """The current stream."""
        return self._streams.current

    def default_stream(self, device_index: object = None) -> SimulatedStream:
        """The default stream."""
        return self._streams.default

    @property
    def Event(self) -> type[SimulatedEvent]:
        """Class of events."""
        return SimulatedEvent

    # Memory

    def empty_cache(self) -> None:
        """Give back what is reserved and free."""
        self._ledger.empty_cache()

    def memory_allocated(self, device_index: object = None) -> int:
        """Bytes now."""
        return self._ledger.total(NAME).now

    def max_memory_allocated(self, device_index: object = None) -> int:
        """Highest since the program reset it."""
        return self._ledger.total(NAME).programs_max

    def reset_max_memory_allocated(self, device_index: object = None) -> None:
        """Begin anew, for the program; the capture's windows stay as they are."""
        self._ledger.reset_programs_max()

    reset_peak_memory_stats = reset_max_memory_allocated
    reset_max_memory_cached = reset_max_memory_allocated

    def memory_reserved(self, device_index: object = None) -> int:
        """Bytes that the allocator holds now."""
        return self._ledger.reserved_bytes

    memory_cached = memory_reserved

    def max_memory_reserved(self, device_index: object = None) -> int:
        """Highest since the program reset it."""
        return self._ledger.programs_reserved_max

    max_memory_cached = max_memory_reserved

    def memory_stats(self, device_index: object = None) -> dict[str, int]:
        """The counters that programs print."""
        return {
            "allocated_bytes.all.current": self.memory_allocated(),
            "allocated_bytes.all.peak": self.max_memory_allocated(),
            "num_alloc_retries": 0,
        }

    def total_memory(self, device_index: object = None) -> int:
        """Memory of the device."""
        return self._total_bytes

    def available_memory(self, device_index: object = None) -> int:
        """What is left of it."""
        return self._total_bytes - self.memory_allocated()

    # Abilities: those of the GPUs since Ampere

    def is_bf16_supported(self) -> bool:
        """Yes."""
        return True

    def is_fp16_supported(self) -> bool:
        """Yes."""
        return True

    def is_available(self) -> bool:
        """Yes."""
        return True

    def is_triton_supported(self) -> bool:
        """Kernels of Triton cannot run on tensors without data."""
        return False

    def prefer_triton_grouped_mm(self) -> bool:
        """See :meth:`is_triton_supported`."""
        return False

    def range_push(self, msg: str, domain: object = None, category: object = None) -> None:
        """No tool listens."""

    def range_pop(self, domain: object = None) -> None:
        """No tool listens."""

    def lazy_call(self, callback: Any) -> None:
        """The device is always ready."""
        callback()

    def is_current_stream_capturing(self) -> bool:
        """No."""
        return False

    def create_graph(self) -> None:
        """Graphs replay kernels; there are none."""

    def capture_to_graph(self, graph: object, pool: object = None, stream: object = None) -> Any:
        """Runs as it is."""
        return contextlib.nullcontext()

    def replay_graph(self, graph: object) -> None:
        """Nothing to replay."""

    # Tensors

    def _maker(self, dtype: str) -> Any:
        import torch

        return functools.partial(torch.tensor, dtype=getattr(torch, dtype), device=NAME)

    BFloat16Tensor = property(lambda self: self._maker("bfloat16"))
    ByteTensor = property(lambda self: self._maker("uint8"))
    DoubleTensor = property(lambda self: self._maker("float64"))
    FloatTensor = property(lambda self: self._maker("float32"))
    HalfTensor = property(lambda self: self._maker("float16"))
    IntTensor = property(lambda self: self._maker("int32"))
    LongTensor = property(lambda self: self._maker("int64"))

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the device."""
        return tensor.device.type == TYPE

    def register_host_memory(self, address: int, num_bytes: int) -> bool:
        """Host memory is pinned by being counted so."""
        return True

    def unregister_host_memory(self, address: int) -> None:
        """Nothing to undo."""
