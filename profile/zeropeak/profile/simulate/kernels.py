"""Operations that PyTorch composes otherwise on CUDA than elsewhere: the simulated device takes CUDA's way.

These are composite operations: their C++ code asks whether a tensor is on CUDA, which a simulated one is not. Each is
registered for the dispatch keys that simulated tensors carry, and taken back at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from zeropeak.profile.simulate.device import TYPE

if TYPE_CHECKING:
    from torch import Tensor

_aten = torch.ops.aten


_PAIRS = {
    _aten.mm.default: (0, 1),
    _aten.bmm.default: (0, 1),
    _aten.addmm.default: (1, 2),
    _aten.baddbmm.default: (1, 2),
}
"""Matrix products, and which of their arguments are multiplied."""


def check_types(func: Any, args: Any) -> None:
    """Raise what CUDA's kernels raise for matrices of two types, which fake tensors multiply.

    Raises:
        RuntimeError: as PyTorch says it.
    """
    pair = _PAIRS.get(func)
    if pair is not None and args[pair[0]].dtype is not args[pair[1]].dtype:
        one, other = (str(args[place].dtype).removeprefix("torch.") for place in pair)
        raise RuntimeError(f"expected mat1 and mat2 to have the same dtype, but got: {one} != {other}")


class Kernels:
    """Context in which the operations below are CUDA's."""

    def __init__(self) -> None:
        self._library: Any = None

    def __enter__(self) -> Self:
        self._library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        for name, kernel in (
            ("softmax.int", _softmax),
            ("log_softmax.int", _log_softmax),
            ("scaled_dot_product_attention", _attention),
        ):
            for key in ("AutogradCUDA", "CUDA"):
                self._library.impl(name, kernel, key)
        return self

    def __exit__(self, *_: object) -> None:
        self._library._destroy()


def _softmax(inputs: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    return _normalised(_aten._softmax, inputs, dim, dtype)


def _log_softmax(inputs: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    return _normalised(_aten._log_softmax, inputs, dim, dtype)


def _normalised(operation: Any, inputs: Tensor, dim: int, dtype: torch.dtype | None) -> Any:
    """On CUDA a half-precision input is converted inside the kernel, so no single-precision copy of it is made."""
    if inputs.device.type == TYPE and inputs.dtype is torch.float16 and dtype is torch.float32:
        return operation(inputs, dim, True)
    return operation(inputs if dtype is None else inputs.to(dtype), dim, False)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Scaled dot product attention by the kernel that CUDA would choose.

    Flash attention takes half precision without a mask and saves the output and one float a row; the memory-efficient
    one takes a mask; what neither takes is computed step by step. (PyTorch's order of preference on GPUs since Ampere.)
    Of fewer heads of keys than of queries only flash attention makes no copies: the memory-efficient one takes none.
    """
    half = query.dtype in (torch.float16, torch.bfloat16)
    fits = query.dim() == 4 and query.device.type == TYPE and query.size(-1) == value.size(-1)
    if fits and half and attn_mask is None and query.size(-1) <= _FLASH_HEAD:
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if enable_gqa and query.size(-3) != key.size(-3):
        fits = False
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    if fits and query.size(-1) % 8 == 0:
        return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return _aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[0]


_FLASH_HEAD = 256
"""Largest head that flash attention takes."""


def _flash(query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool, scale: float | None) -> Any:
    head = query.size(-1)
    scale = head**-0.5 if scale is None else scale
    if over := head % 8:
        query, key, value = (torch.nn.functional.pad(one, (0, 8 - over)) for one in (query, key, value))
    outputs = _aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale)
    return outputs[0][..., :head] if over else outputs[0]


def _efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> Any:
    if mask is not None:
        if mask.dtype is torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
        mask = _aligned(mask).expand(query.size(0), query.size(1), query.size(2), key.size(2))
    needs = any(one.requires_grad for one in (query, key, value))
    return _aten._scaled_dot_product_efficient_attention(query, key, value, mask, needs, dropout, causal, scale=scale)[
        0
    ]


def _aligned(mask: Tensor) -> Tensor:
    """The kernel reads a mask in rows of a multiple of 16 elements: PyTorch pads one that is not."""
    over = mask.size(-1) % 16
    return torch.nn.functional.pad(mask, (0, 16 - over))[..., : mask.size(-1)] if over else mask
