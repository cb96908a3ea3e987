"""What a script asks of ``torch.cuda``, answered for the simulated device, also where PyTorch has no CUDA."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only

from zeropeak.profile.simulate.device import NAME, TYPE
from zeropeak.profile.simulate.patches import Patch

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeropeak.profile.simulate.accelerator import SimulatedAccelerator

_WHY = "the script asks for the GPU that it will run on; the simulated one answers"
_CAPABILITY = (9, 0)


def cuda_patches(accelerator: SimulatedAccelerator, devices: int) -> list[Patch]:
    """Patches of ``torch.cuda`` and of moves to it.

    Args:
        accelerator: answers for the device.
        devices: GPUs that the script sees.
    """
    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    total = accelerator.total_memory()
    properties = SimpleNamespace(
        name="simulated GPU", total_memory=total, major=_CAPABILITY[0], minor=_CAPABILITY[1], multi_processor_count=132
    )
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": nothing,
        "_lazy_init": nothing,
        "_lazy_call": lambda call, **_: call(),
        "_exchange_device": lambda _: 0,
        "_maybe_exchange_device": lambda _: 0,
        "device_count": lambda: devices,
        "current_device": lambda: 0,
        "set_device": nothing,
        "synchronize": nothing,
        "ipc_collect": nothing,
        "get_device_name": lambda *_: properties.name,
        "get_device_capability": lambda *_: _CAPABILITY,
        "get_device_properties": lambda *_: properties,
        "get_arch_list": lambda: ["sm_90"],
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
        "mem_get_info": lambda *_: (total - accelerator.memory_reserved(), total),
        "manual_seed": nothing,
        "manual_seed_all": nothing,
        "seed": nothing,
        "seed_all": nothing,
        "initial_seed": lambda: 0,
        "get_rng_state": lambda *_: accelerator.get_rng_state(),
        "get_rng_state_all": lambda: [accelerator.get_rng_state()],
        "set_rng_state": nothing,
        "set_rng_state_all": nothing,
        "memory_summary": lambda *_, **__: "",
        "memory_snapshot": lambda *_, **__: [],
        "memory_stats": accelerator.memory_stats,
        "memory_allocated": accelerator.memory_allocated,
        "memory_reserved": accelerator.memory_reserved,
        "max_memory_allocated": accelerator.max_memory_allocated,
        "max_memory_reserved": accelerator.max_memory_reserved,
        "reset_peak_memory_stats": accelerator.reset_peak_memory_stats,
        "reset_max_memory_allocated": accelerator.reset_max_memory_allocated,
        "reset_accumulated_memory_stats": nothing,
        "set_per_process_memory_fraction": nothing,
        "empty_cache": accelerator.empty_cache,
        "current_stream": accelerator.current_stream,
        "default_stream": accelerator.default_stream,
        "stream": accelerator.stream,
        "set_stream": nothing,
        "Stream": accelerator.Stream,
        "Event": accelerator.Event,
        "device": lambda *_: contextlib.nullcontext(),
    }
    patches = [Patch(torch.cuda, name, value, _WHY) for name, value in answers.items() if hasattr(torch.cuda, name)]
    patches += [
        Patch(torch.cuda.nvtx, name, value, "no tool listens for the script's ranges")
        for name, value in (("range_push", lambda *_: 0), ("range_pop", lambda: 0), ("mark", nothing))
    ]
    moved = "a move to cuda is one to the simulated GPU; PyTorch asks CUDA itself before any mode sees the move"
    patches += [
        Patch(torch.Tensor, "to", _moving(torch._C.TensorBase.to), moved),
        Patch(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor.to(NAME), moved),
        Patch(torch, "load", _loading(torch.load), moved),
        Patch(FakeTensor, "is_cuda", property(lambda tensor: tensor.device.type == TYPE), _WHY),
    ]
    return patches


def _loading(original: Any) -> Any:
    """Into host memory, then to the GPU where that was asked for."""

    def load(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        wanted = here(map_location)
        loaded = original(file, "cpu", *args, **kwargs)
        if isinstance(wanted, torch.device) and wanted.type == TYPE:
            return tree_map_only(torch.Tensor, lambda tensor: tensor.to(wanted), loaded)
        return loaded

    return load


def here(device: Any) -> Any:
    """A device with the simulated one in CUDA's place; anything else as it is."""
    if isinstance(device, str) and device.partition(":")[0] == "cuda":
        return torch.device(TYPE, 0)
    if isinstance(device, torch.device) and device.type == "cuda":
        return torch.device(TYPE, 0)
    return device


def _moving(original: Any) -> Any:
    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        # A bare number is an index of the current kind of device.
        first = torch.device(TYPE, 0) if args and type(args[0]) is int else None
        args = (first, *args[1:]) if first is not None else tuple(here(one) for one in args)
        if "device" in kwargs:
            kwargs["device"] = here(kwargs["device"])
        moved: torch.Tensor = original(tensor, *args, **kwargs)
        return moved

    return to
