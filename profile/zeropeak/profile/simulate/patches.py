"""What is changed in PyTorch and DeepSpeed while a prediction runs: each with its reason, all undone at the end."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Self

import torch
import torch._dynamo  # compares signatures of what is patched below, so it must be loaded before
from torch._subclasses.fake_tensor import FakeTensor

from zeropeak.profile.errors import ZeropeakError
from zeropeak.profile.simulate.answers import where_own
from zeropeak.profile.simulate.device import TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeropeak.profile.simulate.ledger import Ledger
    from zeropeak.profile.simulate.readings import Readings
    from zeropeak.profile.simulate.streams import SimulatedStream

_ABSENT: Final = object()


@dataclass(frozen=True)
class Patch:
    """One changed attribute.

    Args:
        owner: class or module.
        name: attribute.
        value: what stands there meanwhile.
        why: the reason, for people.
    """

    owner: Any
    name: str
    value: Any
    why: str


class Patches:
    """Context in which patches hold; leaving it puts back exactly what was there, in reverse order."""

    def __init__(self, patches: list[Patch]) -> None:
        self._patches = patches
        self._undo: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Self:
        for patch in self._patches:
            self._undo.append((patch.owner, patch.name, vars(patch.owner).get(patch.name, _ABSENT)))
            setattr(patch.owner, patch.name, patch.value)
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            owner, name, before = self._undo.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def reasons(self) -> list[str]:
        """One line a patch."""
        return [f"{_name(patch.owner)}.{patch.name}: {patch.why}" for patch in self._patches]


def torch_patches(ledger: Ledger, readings: Readings) -> list[Patch]:
    """Patches of PyTorch.

    Args:
        ledger: takes resized storages and uses on streams.
        readings: takes what is not predicted.
    """
    return [
        Patch(
            torch.Tensor,
            "_make_subclass",
            staticmethod(_with_cuda_keys),
            "fake tensors of every device carry CUDA's dispatch keys: autograd treats them as CUDA's, "
            "and .data can move a parameter between devices",
        ),
        Patch(
            FakeTensor,
            "data",
            _data(),
            "setting .data changes a parameter's device, which fake tensors keep beside the storage",
        ),
        Patch(
            torch.nn.Module,
            "_apply",
            _apply,
            "converting a module swaps fake parameters, which weak references forbid; real ones keep their identity "
            "and get new data, and so do these",
        ),
        Patch(FakeTensor, "record_stream", _recording(ledger), "streams of the simulated device are numbers of ours"),
        Patch(
            import_module("torch.optim.optimizer"),
            "_foreach_supported_types",
            [*import_module("torch.optim.optimizer")._foreach_supported_types, FakeTensor],
            "optimizers take their multi-tensor path for CUDA parameters of known types; it allocates otherwise than "
            "one tensor at a time",
        ),
        *_grouped_products(),
        Patch(
            torch.autocast,
            "__enter__",
            _casting(torch.autocast.__enter__, readings),
            "autocast casts tensors that CUDA has, which is not predicted: the report says so",
        ),
        Patch(
            torch.UntypedStorage,
            "resize_",
            _resizing(ledger),
            "resizing a storage is no operation that a dispatch mode sees",
        ),
    ]


def _casting(original: Any, readings: Readings) -> Any:
    def __enter__(context: Any) -> Any:
        if context._enabled and context.device in ("cuda", TYPE):
            readings.tell(where_own(), "casts by autocast, which is not predicted: tensors keep their own types here")
        return original(context)

    return __enter__


def _grouped_products() -> list[Patch]:
    owner, name = import_module("torch._meta_registrations"), "_meta_grouped_mm_common"
    original = getattr(owner, name, None)
    if original is None:
        return []

    def of_any_type(mat_a: Any, mat_b: Any, scale_a: Any, scale_b: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = kwargs.get("out_dtype") or mat_a.dtype
        if (
            scale_a is not None
            or not mat_a.dtype is mat_b.dtype is dtype
            or dtype not in (torch.float16, torch.float32)
        ):
            return original(mat_a, mat_b, scale_a, scale_b, *args, **kwargs)
        pair = [
            torch.empty_strided(one.shape, one.stride(), dtype=torch.bfloat16, device="meta") for one in (mat_a, mat_b)
        ]
        made = original(*pair, scale_a, scale_b, *args, **{**kwargs, "out_dtype": None})
        return torch.empty_strided(made.shape, made.stride(), dtype=dtype, device="meta")

    why = "experts' products of other types than bfloat16 run on CUDA, product by product, and fail on fake tensors"
    return [Patch(owner, name, of_any_type, why)]


def deepspeed_patches() -> list[Patch]:
    """Patches of DeepSpeed; of names that this version has."""
    wanted = (
        (
            ("stage3", "partition_parameters", "partitioned_param_coordinator"),
            "assert_ints_same_as_other_ranks",
            _agreed,
            "compares lists over ranks; here are no other ranks, and no values to compare",
        ),
    )
    found = []
    for modules, name, value, why in wanted:
        for module in modules:
            owner = import_module(f"deepspeed.runtime.zero.{module}")
            if name in vars(owner):
                found.append(Patch(owner, name, value, why))
    found.append(
        Patch(
            import_module("deepspeed.ops.op_builder.builder").OpBuilder,
            "load",
            _load,
            "optimizers of DeepSpeed's own call compiled kernels, which need data and compilers; their states are made "
            "in Python, and the kernels change them in place",
        )
    )
    return found


def transformers_patches() -> list[Patch]:
    """Patches of transformers; of names that this version has."""
    name = "transformers.masking_utils"  # transformers 4.45, the oldest that is taken, has no such module
    owner = import_module(name) if find_spec(name) is not None else None
    original = getattr(owner, "is_tracing", None)
    if original is None:
        return []
    return [
        Patch(
            owner,
            "is_tracing",
            lambda tensor=None: original(),
            "tensors without data are taken for a graph that is being traced, for which masks are always made; a run "
            "makes none when nothing is padded",
        )
    ]


class InPlace:
    """Compiled kernels of an optimizer: they change tensors in place and allocate nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


_IN_PLACE: Final = frozenset(("fused_adam", "cpu_adam", "fused_lion", "cpu_lion", "cpu_adagrad"))


def _load(builder: Any, *_: object, **__: object) -> InPlace:
    if builder.name in _IN_PLACE:
        return InPlace()
    raise ZeropeakError(f"the config needs DeepSpeed's compiled op {builder.name}, which a prediction cannot run")


def _agreed(ints: object) -> None:
    """All ranks agree."""


def _with_cuda_keys(cls: type[Any], data: torch.Tensor, requires_grad: bool = False, **kwargs: Any) -> Any:
    if kwargs.get("device_for_backend_keys") is not None:
        kwargs["device_for_backend_keys"] = _KEYS
    return torch._C.TensorBase._make_subclass(cls, data, requires_grad, **kwargs)


_KEYS: Final = torch.device("cuda", 0)


def _data() -> Any:
    base: Any = torch._C.TensorBase.data

    def set_data(tensor: FakeTensor, value: torch.Tensor) -> None:
        base.__set__(tensor, value)
        if isinstance(value, FakeTensor):
            tensor._fake_device = value._fake_device

    return property(lambda tensor: base.__get__(tensor), set_data)


def _apply(module: torch.nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
    if recurse:
        for child in module.children():
            child._apply(fn)  # type: ignore[no-untyped-call]
    for param in module._parameters.values():
        if param is not None:
            with torch.no_grad():
                param.data = fn(param)
                if param.grad is not None:
                    param.grad.data = fn(param.grad)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)
    return module


def _recording(ledger: Ledger) -> Any:
    def record_stream(tensor: FakeTensor, stream: SimulatedStream) -> None:
        ledger.record_stream(tensor.untyped_storage(), stream.stream_id)

    return record_stream


def _resizing(ledger: Ledger) -> Any:
    original = torch._C.StorageBase.resize_  # type: ignore[attr-defined]

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        ledger.resized(storage)
        return result

    return resize_


def _name(owner: Any) -> str:
    return f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else str(owner.__name__)
