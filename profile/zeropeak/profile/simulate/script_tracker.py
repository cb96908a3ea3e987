"""Follows a user's own script, which asks for ``cuda`` and reads what it has loaded.

What lies in host memory and is known stays real: token ids, masks, lengths, orders of samples. Data loaders and
collators decide by them. On the GPU their values are remembered (:mod:`~zeropeak.profile.simulate.values`); floating
point has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from zeropeak.profile.simulate.answers import needed, where_own
from zeropeak.profile.simulate.device import TYPE
from zeropeak.profile.simulate.tracker import Tracker
from zeropeak.profile.simulate.values import Values, all_real, small

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch._subclasses.fake_tensor import FakeTensor

    from zeropeak.profile.simulate.ledger import Ledger
    from zeropeak.profile.simulate.readings import Readings
    from zeropeak.profile.simulate.workspace import Workspaces

_aten = torch.ops.aten


class ScriptTracker(Tracker):  # type: ignore[no-untyped-call]
    """The tracker of a script.

    Args:
        ledger: takes the storages.
        workspaces: takes the operations.
        readings: takes the lines that read a number that nobody has.
        values: takes what is known of tensors on the GPU.
    """

    def __init__(self, ledger: Ledger, workspaces: Workspaces, readings: Readings, values: Values) -> None:
        super().__init__(ledger, workspaces)
        self._readings = readings
        self._values = values
        self._main = torch.device(TYPE, 0)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation: for real where all of it is known and in host memory, else on fake tensors."""
        kwargs = kwargs or {}
        if self._inside:
            return super().__torch_dispatch__(func, types, args, kwargs)
        device = kwargs.get("device")
        if isinstance(device, torch.device) and device.type == "cuda":
            device = self._main
            kwargs = {**kwargs, "device": device}
        if device is None or device.type == "cpu":
            real = all_real(args, kwargs)
            if real or (real is None and small(func, args, kwargs)):
                return _for_real(func, args, kwargs)
            if func is _aten._to_copy.default and device is not None and self._values.of(args[0]) is not None:
                return self._values.compute(func, args, kwargs)  # back in host memory, and known
        if func is _aten.index.Tensor:
            args = (args[0], self._by_number(args[1]))
        if torch.Tag.dynamic_output_shape in func.tags:
            made = self._of_values(func, args, kwargs)
            if made is not None:
                return made
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self._values.follow(func, args, kwargs, result)
        return result

    def _by_number(self, indices: Sequence[Any]) -> list[Any]:
        """Masks whose values are known as the numbers of what they choose: then the result has a size."""
        found: list[Any] = []
        for index in indices:
            value = self._values.of(index)
            if value is None or value.dtype is not torch.bool:
                found.append(index)
            else:
                found += [self._placed(one, index.device) for one in value.nonzero(as_tuple=True)]
        return found

    def _of_values(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of an operation whose size depends on values that are known; None where they are not."""
        done = self._values.compute(func, args, kwargs)
        if isinstance(done, tuple):
            return tuple(self._placed(one, args[0].device) for one in done)
        return None if done is None else self._placed(done, args[0].device)

    def _placed(self, value: torch.Tensor, device: torch.device) -> Any:
        """A real tensor on a device: itself, or a fake one on the GPU of which its values are known."""
        if device.type == "cpu":
            return value
        return self.__torch_dispatch__(_aten._to_copy.default, (), (value,), {"device": device})

    def _value(self, tensor: FakeTensor) -> Any:
        value = self._values.of(tensor)
        return super()._value(tensor) if value is None else value.item()

    def _unanswered(self, tensor: FakeTensor) -> float:
        if not tensor.dtype.is_floating_point:
            problem = needed("a truth value" if tensor.dtype is torch.bool else "a whole number")
            self._readings.refused = str(problem)
            raise problem
        self._readings.tell_number(where_own())
        return 1.0


def _for_real(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if func is _aten._pin_memory.default:
        return args[0].clone()  # a real pinned one would need CUDA; a batch is no memory to speak of
    return False if func is _aten.is_pinned.default else func(*args, **kwargs)
