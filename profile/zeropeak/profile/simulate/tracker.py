"""Sees every operation on fake tensors: tells the ledger of new storages, and answers questions about values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from zeropeak.profile.errors import ZeropeakError
from zeropeak.profile.simulate.answers import known_answer, needed, where
from zeropeak.profile.simulate.kernels import check_types

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from zeropeak.profile.simulate.ledger import Ledger
    from zeropeak.profile.simulate.workspace import Workspaces

_aten = torch.ops.aten


class Tracker(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Fake tensors whose storages are followed.

    An operation that PyTorch fakes by smaller ones is one kernel on a GPU: what those allocate is not counted.

    Args:
        ledger: takes the storages.
        workspaces: takes the operations, for what their kernels allocate besides.
    """

    def __init__(self, ledger: Ledger, workspaces: Workspaces) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._ledger = ledger
        self._workspaces = workspaces
        self._inside = False
        self._special: Mapping[Any, Callable[..., Any]] = {
            torch.ops.prim.device.default: _device,
            _aten._local_scalar_dense.default: self._value,
            _aten._pin_memory.default: self._pin,
            _aten.is_pinned.default: self._is_pinned,
        }
        self._cat = _aten.cat.default

    @property
    def avoid_device_init(self) -> bool:
        """PyTorch takes the simulated device for one that works; no constant can be copied to it."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; the guard against it costs microseconds an operation

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation."""
        if self._inside:
            return self.dispatch(func, types, args, kwargs or {})
        special = self._special.get(func)
        if special is not None:
            return special(*args, **(kwargs or {}))
        check_types(func, args)
        self._workspaces.before(func, args)
        if func is self._cat and len(args) == 1 and _flat_alike(args[0]):
            # A piece for each rank: the operation's cost would grow with the ranks.
            length = sum(piece.numel() for piece in args[0])
            func, args = _aten.new_empty.default, (args[0][0], (length,))
        self._inside = True
        try:
            result = self.dispatch(func, types, args, kwargs or {})
        except (DataDependentOutputException, DynamicOutputShapeException) as problem:
            raise needed(f"the values of a tensor ({func})") from problem
        except UnsupportedOperatorException as problem:
            raise ZeropeakError(f"{where()} uses {func}, which PyTorch cannot run without data") from problem
        finally:
            self._inside = False
        if type(result) is FakeTensor:
            self._ledger.see(result.untyped_storage(), str(result._fake_device))
        elif isinstance(result, list | tuple):
            self._see_all(result)
        self._workspaces.after(func, args)
        return result

    def _see_all(self, results: Sequence[Any]) -> None:
        for one in results:
            if isinstance(one, FakeTensor):
                self._ledger.see(one.untyped_storage(), str(one._fake_device))
            elif isinstance(one, list | tuple):
                self._see_all(one)

    def _value(self, tensor: FakeTensor) -> Any:
        if tensor.constant is not None:
            return tensor.constant.item()
        value = known_answer()
        if value is None:
            value = self._unanswered(tensor)
        if tensor.dtype is torch.bool:
            return bool(value)
        return value if tensor.dtype.is_floating_point else int(value)

    def _unanswered(self, tensor: FakeTensor) -> float:
        """The value of a tensor, for a caller of whom nothing is known."""
        raise needed("the value of a tensor")

    def _pin(self, tensor: FakeTensor, device: object = None) -> Any:
        """Pinning copies into host memory that cannot be paged out."""
        with self:
            copy = torch.empty_like(tensor, device="cpu")
        self._ledger.pin(copy.untyped_storage())
        return copy

    def _is_pinned(self, tensor: FakeTensor, device: object = None) -> bool:
        return self._ledger.is_pinned(tensor.untyped_storage())


def _device(tensor: FakeTensor) -> torch.device:
    return tensor._fake_device


def _flat_alike(pieces: Sequence[Any]) -> bool:
    """Whether these are many flat tensors of one type on one device."""
    if len(pieces) < _MANY:
        return False
    first = pieces[0]
    return all(
        isinstance(piece, FakeTensor)
        and piece.dim() == 1
        and piece.dtype is first.dtype
        and piece._fake_device == first._fake_device
        for piece in pieces
    )


_MANY = 8
