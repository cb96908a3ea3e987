"""Values that a script's tensors on the GPU have, where they are known: of whole numbers that came from host memory.

Token ids, labels, masks and what is computed of them alone. Beside such a fake tensor lies a real one in host memory,
on which every operation is done again; a view's is a view of its base's, so writing through either is seen in both. A
write of something unknown makes all that shares the memory unknown. Programs decide by such values: lengths, counts,
whether anything is padded.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

MOST: Final = 1 << 24
"""Elements of the largest tensor whose values are kept."""

_aten = torch.ops.aten
_UNKNOWN: Final = object()
_IN_PLACE: Final = frozenset(("c10d::allreduce_", "c10d::broadcast_", "c10d::reduce_"))
"""Collectives that leave a tensor as it is where all ranks have the same (sums apart); others write their first one."""
_GATHERS: Final = frozenset(("c10d::allgather_", "c10d::_allgather_base_"))
_WHOLE_BY_DEFAULT: Final = frozenset(("aten::arange", "aten::full", "aten::scalar_tensor"))
"""Makers whose type is that of the numbers they get; those below always make whole numbers."""
_ALWAYS_WHOLE: Final = frozenset(("aten::randint", "aten::randperm", "aten::tril_indices", "aten::triu_indices"))


class Values:
    """Known values of fake tensors."""

    def __init__(self) -> None:
        self._stale: dict[int, Any] = {}

    def of(self, tensor: Any) -> Tensor | None:
        """The real tensor that has a tensor's values; None where they are unknown."""
        if not isinstance(tensor, FakeTensor):
            return tensor if isinstance(tensor, torch.Tensor) else None
        value: Tensor | None = getattr(tensor, "zeropeak_value", None)
        return None if value is None or value.untyped_storage()._cdata in self._stale else value

    def know(self, tensor: Any, value: Tensor) -> None:
        """A fake tensor has these values."""
        tensor.zeropeak_value = value

    def follow(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """An operation ran on fake tensors: do it on their values, where all are known."""
        if func.namespace == "c10d":
            self._communicate(func._schema.name, args)
        elif func._schema.is_mutable:
            self._write(func, args, kwargs)
        elif any(_is_whole(one) for one in _tensors((result,))) and small(func, args, kwargs):
            done = self.compute(func, args, kwargs)
            for fake, real in zip(_tensors((result,)), _tensors((done,)), strict=False):
                if _is_whole(fake) and fake.shape == real.shape:
                    self.know(fake, real)

    def compute(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result on known values; nothing that holds tensors where one is unknown."""
        known_args, known_kwargs = self._known(args), self._known(kwargs)
        if known_args is _UNKNOWN or known_kwargs is _UNKNOWN:
            return None
        try:
            return func(*known_args, **known_kwargs)
        except (RuntimeError, NotImplementedError):  # the CPU has no such kernel
            return None

    def _write(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        written = [one for one, about in zip(args, func._schema.arguments, strict=False) if _is_written(about)]
        written += [
            kwargs[about.name] for about in func._schema.arguments if _is_written(about) and about.name in kwargs
        ]
        if any(self.of(one) is not None for one in _tensors(written)) and self.compute(func, args, kwargs) is None:
            self._forget(written)

    def _communicate(self, name: str, args: Sequence[Any]) -> None:
        """A collective: all ranks have what rank 0 has."""
        if name in _IN_PLACE:
            return
        self._forget(args[:1])
        if name in _GATHERS:
            outputs, inputs = list(_tensors(args[:1])), list(_tensors(args[1:2]))
            value = self.of(inputs[0]) if len(inputs) == 1 else None
            if value is not None:
                for output in outputs:
                    pieces = output.numel() // max(1, value.numel())
                    self.know(output, value.flatten().repeat(pieces).reshape(output.shape))

    def _forget(self, written: Iterable[Any]) -> None:
        """Nothing is known any more of these, nor of what shares their memory."""
        for one in _tensors(written):
            value = getattr(one, "zeropeak_value", None)
            if value is not None:
                storage = value.untyped_storage()
                self._stale[storage._cdata] = storage  # kept, so that no other one gets its address

    def _known(self, values: Any) -> Any:
        """The same with real tensors in place of fake ones, in host memory; ``_UNKNOWN`` where one is unknown."""
        if isinstance(values, torch.Tensor):
            value = self.of(values)
            return _UNKNOWN if value is None else value
        if isinstance(values, torch.device):
            return torch.device("cpu")
        if isinstance(values, dict):
            found = {key: self._known(one) for key, one in values.items()}
            return _UNKNOWN if any(one is _UNKNOWN for one in found.values()) else found
        if isinstance(values, list | tuple):
            each = [self._known(one) for one in values]
            return _UNKNOWN if any(one is _UNKNOWN for one in each) else type(values)(each)
        return values


def small(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation is on small tensors, or makes a small one of whole numbers from none."""
    sizes = [one.numel() for one in (*_tensors(args), *_tensors(kwargs.values()))]
    if sizes:
        return bool(max(sizes) <= MOST)
    return _makes_whole_numbers(func, args, kwargs) and _elements(args) <= MOST


def all_real(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool | None:
    """Whether an operation's tensors are all real; None when it has none."""
    found = None
    for tensor in (*_tensors(args), *_tensors(kwargs.values())):
        if isinstance(tensor, FakeTensor):
            return False
        found = True
    return found


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _is_whole(tensor: Any) -> bool:
    return not bool(tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def _is_written(argument: Any) -> bool:
    return bool(argument.alias_info is not None and argument.alias_info.is_write)


def _makes_whole_numbers(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    dtype = kwargs.get("dtype")
    if dtype is not None:
        return not (dtype.is_floating_point or dtype.is_complex)
    name = func._schema.name
    if name in _ALWAYS_WHOLE:
        return True
    return name in _WHOLE_BY_DEFAULT and all(isinstance(one, int) for one in args if isinstance(one, int | float))


def _elements(args: Sequence[Any]) -> int:
    """About how many elements a maker makes: its size, else the largest of its numbers."""
    for one in args:
        if isinstance(one, list | tuple):
            return math.prod(one)
    return max((abs(int(one)) for one in args if isinstance(one, int | float)), default=1)
