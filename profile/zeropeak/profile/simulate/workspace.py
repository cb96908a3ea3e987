"""Memory that CUDA libraries take for themselves, which fake execution cannot see: measured, and kept apart.

Each constant says what it is, when it is taken, and where it was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from zeropeak.profile.labels import Phase, Stored

if TYPE_CHECKING:
    from zeropeak.profile.session import Session
    from zeropeak.profile.simulate.ledger import Ledger

MIB: Final = 1 << 20


@dataclass(frozen=True)
class Constant:
    """One thing that a library allocates.

    Args:
        name: for people and for ``memory_blocks.owner``.
        size_bytes: bytes.
        inside: True when PyTorch's allocator counts it (it is part of ``memory_allocated``), False when it is outside.
        when: what makes it appear.
        measured: where the size comes from.
    """

    name: str
    size_bytes: int
    inside: bool
    when: str
    measured: str


CUBLAS: Final = Constant(
    "cuBLAS workspace",
    32 * MIB,
    True,
    "first matrix product on each thread: the program's, and autograd's in backward",
    "allocator snapshot of a Pythia-6.9B run on an H200, torch 2.11",
)
CUBLASLT: Final = Constant(
    "cuBLASLt workspace",
    1 * MIB,
    True,
    "first product with a bias in its epilogue (addmm)",
    "allocator snapshot of a Pythia-6.9B run on an H200, torch 2.11",
)
CONTEXT: Final = Constant(
    "CUDA context and kernels",
    767 * MIB,
    False,
    "first use of the device; kernels are loaded when they first run",
    "in use on an H200 beside what PyTorch reserved, after steps of a small transformer; torch 2.11, CUDA 13.0",
)
NCCL: Final = Constant(
    "NCCL",
    1_339 * MIB,
    False,
    "first collectives of a job of several ranks",
    "the same beside the context, on each of two H200s over NVLink after DeepSpeed's init, torch 2.11, NCCL 2.28; "
    "1.9 GiB later in that run",
)
"""``tests/data/captures/two-ranks-nccl.cut.xz`` has that run's mark; docs/case-study-stage3.md its 2.66 GiB in all."""


def constants(world_size: int) -> list[Constant]:
    """Those that a job of so many ranks has."""
    return [CUBLAS, CUBLASLT, CONTEXT, *([NCCL] if world_size > 1 else [])]


_aten = torch.ops.aten
_PRODUCTS: Final = frozenset(
    (
        _aten.mm.default, _aten.bmm.default, _aten.addmm.default, _aten.baddbmm.default, _aten.mv.default,
        _aten.addmv.default, _aten.dot.default,
    )
)  # fmt: skip


def _softmax_backward(args: Any) -> int:
    """``grad * output``, before the kernel runs."""
    grad, output = args[0], args[1]
    return int(grad.numel()) * max(int(grad.element_size()), int(output.element_size()))


def _flash_backward(args: Any) -> int:
    """Query gradients accumulated in single precision, and one float a row, over sequences rounded up to 128."""
    query = args[1]
    batch, heads, rows, head = (int(side) for side in query.shape)
    rows = -(-rows // 128) * 128
    head = -(-head // (32 if head <= 128 else 64)) * (32 if head <= 128 else 64)
    return 4 * batch * heads * rows * (head + 1)


INSIDE: Final = {
    _aten._softmax_backward_data.default: _softmax_backward,
    _aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
}
"""Bytes that a CUDA kernel's wrapper allocates while it runs, by operation and its arguments. From PyTorch's source
(``softmax_backward_cuda_out``, ``mha_bwd``); the first was also seen in an allocator snapshot on an H200."""


class Workspaces:
    """Takes workspaces when the operation that needs them first runs.

    Args:
        ledger: where they are allocated.
        session: gives them their names, and knows the phase.
        main: type of the simulated device.
    """

    def __init__(self, ledger: Ledger, session: Session, main: str) -> None:
        self._ledger = ledger
        self._session = session
        self._main = main
        self._taken: set[str] = set()

    def before(self, func: Any, args: Any) -> None:
        """An operation is about to run."""
        if func in _PRODUCTS and args[0].device.type == self._main:
            # Autograd runs backward on a thread of its own, which has a handle of its own.
            backward = self._session.recorder.position.phase is Phase.BACKWARD
            self._take(CUBLAS, f"{CUBLAS.name}, {'backward' if backward else 'forward'} thread")
            if func is _aten.addmm.default:
                self._take(CUBLASLT, CUBLASLT.name)

    def after(self, func: Any, args: Any) -> None:
        """An operation ran: what its kernel had beside its result is allocated and freed."""
        inside = INSIDE.get(func)
        if inside is not None and args[0].device.type == self._main:
            self._ledger.flash(inside(args))

    def _take(self, constant: Constant, purpose: str) -> None:
        if purpose not in self._taken:
            self._taken.add(purpose)
            address = self._ledger.hold(constant.size_bytes)
            self._session.storages.note(address, constant.size_bytes, Stored.WORKSPACE, purpose)
