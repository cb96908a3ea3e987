"""Follows a user's own script, which asks for ``cuda`` and reads what it has loaded.

Whole numbers and truth values in host memory - token ids, masks, lengths, orders of samples - stay real tensors: data
loaders and collators decide by them. Whatever reaches the GPU, and all floating point, has no values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

from zeropeak.profile.simulate.answers import needed, where_own
from zeropeak.profile.simulate.device import TYPE
from zeropeak.profile.simulate.tracker import Tracker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from zeropeak.profile.simulate.ledger import Ledger
    from zeropeak.profile.simulate.readings import Readings
    from zeropeak.profile.simulate.workspace import Workspaces

_aten = torch.ops.aten

MOST_REAL: Final = 1 << 24
"""Elements of the largest tensor that is made for real."""

_WHOLE_BY_DEFAULT: Final = frozenset(("aten::arange", "aten::full", "aten::scalar_tensor"))
"""Makers whose type is that of the numbers they get; ``randint`` and ``randperm`` always make whole numbers."""
_ALWAYS_WHOLE: Final = frozenset(("aten::randint", "aten::randperm", "aten::tril_indices", "aten::triu_indices"))


class ScriptTracker(Tracker):  # type: ignore[no-untyped-call]
    """The tracker of a script.

    Args:
        ledger: takes the storages.
        workspaces: takes the operations.
        readings: takes the lines that read a number that nobody has.
    """

    def __init__(self, ledger: Ledger, workspaces: Workspaces, readings: Readings) -> None:
        super().__init__(ledger, workspaces)
        self._readings = readings
        self._main = torch.device(TYPE, 0)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation: for real where all of it is known, else on fake tensors."""
        kwargs = kwargs or {}
        if not self._inside:
            device = kwargs.get("device")
            if isinstance(device, torch.device) and device.type == "cuda":
                kwargs = {**kwargs, "device": self._main}
            if _stays_real(func, args, kwargs):
                return func(*args, **kwargs)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if type(result) is FakeTensor and result.dtype is torch.bool and result.numel() == 1 and not self._inside:
            _follow(func, args, kwargs, result)
        return result

    def _value(self, tensor: FakeTensor) -> Any:
        known = _known(tensor)
        return super()._value(tensor) if known is None else known.item()

    def _unanswered(self, tensor: FakeTensor) -> float:
        if not tensor.dtype.is_floating_point:
            problem = needed("a truth value" if tensor.dtype is torch.bool else "a whole number that lies on the GPU")
            self._readings.refused = str(problem)
            raise problem
        self._readings.tell(where_own(), "reads a number, and is told 1.0; should it decide by it, training may differ")
        return 1.0


def know(tensor: FakeTensor, value: torch.Tensor) -> None:
    """A tensor on the GPU whose one value is known. (Its own ``constant`` would make it one in host memory.)"""
    tensor.zeropeak_known = value  # type: ignore[attr-defined]


def _known(tensor: Any) -> torch.Tensor | None:
    return getattr(tensor, "zeropeak_known", None)


def _follow(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: FakeTensor) -> None:
    """Where all that one truth value is made of is known, so is it: ``isnan(loss) | isinf(loss)``."""
    known = [_known(one) if isinstance(one, FakeTensor) else one for one in args]
    if not kwargs and known and all(isinstance(one, torch.Tensor) for one in known):
        know(result, func(*known))


def _stays_real(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation runs for real: its tensors are, or it makes a small one of whole numbers in host memory."""
    device = kwargs.get("device")
    if device is not None and device.type != "cpu":
        return False
    found = False
    for tensor in (*_tensors(args), *_tensors(kwargs.values())):
        if isinstance(tensor, FakeTensor):
            return False
        found = True
    if found:
        return True
    return _makes_whole_numbers(func, args, kwargs) and _elements(args) <= MOST_REAL


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


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
