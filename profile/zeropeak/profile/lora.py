"""Low-rank adaptation as DeepSpeed-Chat does it: the frozen weight through ``F.linear``, two trainable factors beside.

That ``F.linear`` call is what makes ZeRO-3's ``memory_efficient_linear`` matter: with it off, autograd saves a view of
the gathered weight.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Collection


class LowRankLinear(nn.Module):
    """A frozen linear layer plus a trainable product of rank ``rank``.

    Args:
        linear: layer whose weight (rows x columns) and bias are taken over; it may be partitioned by ZeRO-3.
        rank: inner dimension of the product.
        scaling: the product is multiplied by ``scaling / rank``.
    """

    def __init__(self, linear: nn.Linear, rank: int, scaling: float = 1.0) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        rows, columns = getattr(linear.weight, "ds_shape", linear.weight.shape)
        dtype, device = linear.weight.dtype, linear.weight.device
        self.lora_right_weight = nn.Parameter(torch.empty(columns, rank, dtype=dtype, device=device))
        self.lora_left_weight = nn.Parameter(torch.zeros(rank, rows, dtype=dtype, device=device))
        nn.init.kaiming_uniform_(self.lora_right_weight, a=math.sqrt(5))
        self.scaling = scaling / rank

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., columns) -> (..., rows)."""
        low_rank = inputs @ self.lora_right_weight @ self.lora_left_weight
        return functional.linear(inputs, self.weight, self.bias) + low_rank * self.scaling


def convert(model: nn.Module, rank: int, skip: Collection[str] = ()) -> list[str]:
    """Replace every ``nn.Linear`` by :class:`LowRankLinear` and freeze all else.

    Args:
        model: changed in place.
        rank: rank of each product.
        skip: qualified names left alone (the output head).

    Returns:
        Names of the layers that were replaced.
    """
    replaced = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name not in skip]
    for name in replaced:
        parent, _, leaf = name.rpartition(".")
        owner = model.get_submodule(parent)
        setattr(owner, leaf, LowRankLinear(getattr(owner, leaf), rank))
    for name, param in model.named_parameters():
        param.requires_grad = "lora_" in name
    return replaced
