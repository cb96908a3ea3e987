"""What is changed for a script beside what every prediction changes: it starts, loads and saves as elsewhere."""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader

from zeropeak.profile.places import is_own
from zeropeak.profile.simulate.answers import needed, where_own
from zeropeak.profile.simulate.patches import Patch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeropeak.profile.simulate.readings import Readings
    from zeropeak.profile.simulate.values import Values


def script_patches(readings: Readings, values: Values, world_size: int) -> list[Patch]:
    """Patches of PyTorch; see :func:`~zeropeak.profile.simulate.pretrained.pretrained_patches` for transformers'."""
    return [
        *group_patches(world_size),
        Patch(DataLoader, "__init__", _alone(DataLoader.__init__), "workers cannot hand over tensors without data"),
        Patch(torch, "save", _nothing, "there are no values to write"),
        *_safetensors_patches(),
        Patch(torch, "compile", _not_compiled(readings), "compiling needs data and a GPU"),
        Patch(torch.nn.Module, "compile", _not_compiled(readings), "compiling needs data and a GPU"),
        Patch(FakeTensor, "__format__", _formatted, "a loss is printed as the number that it is told to be"),
        *(
            Patch(FakeTensor, name, _as_array(values, readings), "numpy gets what is known, and 1.0 for other numbers")
            for name in ("numpy", "__array__")
        ),
        *_finite_patches(values),
    ]


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _safetensors_patches() -> list[Patch]:
    if find_spec("safetensors") is None:
        return []
    owner = import_module("safetensors.torch")
    return [Patch(owner, name, _nothing, "there are no values to write") for name in ("_flatten", "serialize_file")]


def group_patches(world_size: int) -> list[Patch]:
    """Patches of process groups, where one process stands for all."""
    begun = "the fake process group is there before the script starts, and is ended after it"
    alone = "objects travel between processes, and there is one: all ranks are taken to have the same"
    group = torch.distributed
    return [
        Patch(group, "init_process_group", _nothing, begun),
        Patch(group, "destroy_process_group", _nothing, begun),
        Patch(
            group, "new_group", _any_backend(group.new_group), "groups of the script are fake, whatever their backend"
        ),
        Patch(group, "monitored_barrier", _nothing, "there is nobody to wait for"),
        Patch(group, "all_gather_object", _gathers(world_size), alone),
        Patch(group, "gather_object", _collects(world_size), alone),
        Patch(group, "broadcast_object_list", _nothing, alone),
        Patch(group, "scatter_object_list", _scatters, alone),
    ]


def _any_backend(original: Any) -> Any:
    signature = inspect.signature(original)

    def new_group(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments.pop("backend", None)
        bound.arguments.pop("pg_options", None)
        return original(*bound.args, **bound.kwargs)

    return new_group


def _gathers(world_size: int) -> Any:
    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        object_list[:] = [obj] * len(object_list or range(world_size))

    return all_gather_object


def _collects(world_size: int) -> Any:
    def gather_object(obj: Any, object_gather_list: list[Any] | None = None, *_: Any, **__: Any) -> None:
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list or range(world_size))

    return gather_object


def _scatters(
    scatter_object_output_list: list[Any], scatter_object_input_list: Sequence[Any] | None = None, *_: Any, **__: Any
) -> None:
    if scatter_object_input_list:
        scatter_object_output_list[0] = scatter_object_input_list[0]


def _alone(original: Any) -> Any:
    signature = inspect.signature(original)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.arguments.update(num_workers=0, pin_memory=False)
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout", "worker_init_fn"):
            bound.arguments.pop(name, None)
        original(*bound.args, **bound.kwargs)

    return __init__


def _not_compiled(readings: Readings) -> Any:
    def as_it_is(model: Any = None, **_: Any) -> Any:
        code = getattr(model, "__code__", None)
        if isinstance(model, torch.nn.Module) or (code is not None and is_own(code.co_filename)):
            readings.tell(where_own(), "compiles; it is predicted as written, not compiled")
        return (lambda function: function) if model is None else model

    return as_it_is


def _formatted(tensor: FakeTensor, wanted: str) -> str:
    return format(tensor.item(), wanted) if tensor.dim() == 0 and wanted else object.__format__(tensor, "")


def _as_array(values: Values, readings: Readings) -> Any:
    def numpy(tensor: FakeTensor, *_: Any, **__: Any) -> Any:
        value = values.of(tensor)
        if value is None:
            if not tensor.dtype.is_floating_point:
                raise needed("the values of a tensor, for numpy")
            readings.tell_number(where_own())
            with _disable_current_modes():
                value = torch.ones((), dtype=tensor.dtype).expand(tensor.shape)  # one number in memory
        return value.numpy()

    return numpy


def _finite_patches(values: Values) -> list[Patch]:
    def answering(original: Any, answer: bool) -> Any:
        def ask(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            asked = original(tensor, *args, **kwargs)
            if isinstance(asked, FakeTensor) and asked.numel() == 1:
                values.know(asked, torch.full(asked.shape, answer, dtype=torch.bool, device="cpu"))
            return asked

        return ask

    return [
        Patch(owner, name, answering(getattr(owner, name), answer), "a loss is taken to be finite, where a script asks")
        for name, answer in (("isnan", False), ("isinf", False), ("isfinite", True))
        for owner in (torch, FakeTensor)
    ]
