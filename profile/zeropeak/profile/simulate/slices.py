"""One view in place of many: DeepSpeed cuts a buffer into a slice for each rank, and each costs a fake operation.

The slices of one loop differ only in where they begin, which nothing here depends on: there are no values. So a slice
like the one just made is that one again, and a job of 512 ranks is predicted as fast as one of four.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from zeropeak.profile.simulate.patches import Patch

if TYPE_CHECKING:
    from torch import Tensor
    from torch._subclasses.fake_tensor import FakeTensor


class Slices:
    """Remembers the last slice of a flat tensor; by weak references, so that it keeps no memory alive."""

    def __init__(self) -> None:
        self._base: weakref.ref[Any] | None = None
        self._length = -1
        self._slice: weakref.ref[Any] | None = None

    def take(self, base: FakeTensor, start: int, length: int) -> Tensor:
        """``base[start : start + length]`` of a flat tensor, or the last slice of ``base`` when it was as long."""
        if self._base is not None and self._base() is base and self._length == length and self._slice is not None:
            last: Tensor | None = self._slice()
            if last is not None:
                return last
        made: Tensor = torch.ops.aten.slice.Tensor(base, 0, start, start + length)
        self._base, self._length, self._slice = weakref.ref(base), length, weakref.ref(made)
        return made


def slice_patches(owner: type[Any]) -> list[Patch]:
    """Patches of the fake tensor's class."""
    slices = Slices()
    narrow: Any = torch._C.TensorBase.narrow
    item: Any = torch._C.TensorBase.__getitem__
    why = "slices of a flat buffer for each rank are one slice: there are no values, so where they begin is the same"

    def fast_narrow(tensor: Any, dim: int, start: Any, length: int) -> Any:
        if _flat(tensor) and dim == 0 and isinstance(start, int) and 0 <= start <= start + length <= tensor.numel():
            return slices.take(tensor, start, length)
        return narrow(tensor, dim, start, length)

    def fast_item(tensor: Any, key: Any) -> Any:
        if isinstance(key, slice) and _flat(tensor):
            start, stop, step = key.indices(tensor.numel())
            if step == 1:
                return slices.take(tensor, start, max(0, stop - start))
        return item(tensor, key)

    return [Patch(owner, "narrow", fast_narrow, why), Patch(owner, "__getitem__", fast_item, why)]


def _flat(tensor: Any) -> bool:
    return tensor.dim() == 1 and not (tensor.requires_grad and torch.is_grad_enabled())
