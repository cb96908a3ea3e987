"""Questions about values, which fake tensors do not have: answered where the answer is known not to change memory.

``tensor.item()``, ``bool(tensor)`` and their like end in one operation. Who asked is read from the Python stack; the
callers below get an answer, any other one is told which line asked.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from zeropeak.profile.errors import ZeropeakError
from zeropeak.profile.places import line_of, own_frame

if TYPE_CHECKING:
    from types import FrameType


class DataNeeded(ZeropeakError):
    """The program asked for a value; a prediction has none."""


@dataclass(frozen=True)
class Answer:
    """What a caller is told.

    Args:
        module: module of the function that asks.
        function: its name; None for any in the module.
        value: the answer.
        why: why memory does not depend on it, or what is assumed.
    """

    module: str
    function: str | None
    value: float
    why: str


ASSUMPTIONS: Final = (
    "Assumed: no gradient overflows (a step that does makes no optimizer states).",
    "Assumed: the other ranks do what rank 0 does.",
    "Assumed: a Hopper GPU (H100, H200), for which cuBLAS takes 32 MiB a thread; PyTorch gives it less on most others.",
)
"""What every prediction takes for granted, a sentence each."""

NO_PADDING: Final = "Assumed: no sequence of a batch is padded or packed, which would make attention masks."
"""Where nobody knows the batches."""

_NO_OVERFLOW: Final = "assumed not to happen; a step with an overflow makes no optimizer states"
_NUMBER: Final = "a number on the host: no tensor's size depends on it"
_UTILS: Final = "deepspeed.runtime.utils"
_STAGE3: Final = "deepspeed.runtime.zero.stage3"
_STAGE12: Final = "deepspeed.runtime.zero.stage_1_and_2"

ANSWERS: Final = (
    Answer(_STAGE3, "has_overflow", 0.0, _NO_OVERFLOW),
    Answer(_STAGE12, "has_overflow", 0.0, _NO_OVERFLOW),
    Answer(_STAGE3, "has_overflow_serial", 0.0, _NO_OVERFLOW),
    Answer(_STAGE12, "has_overflow_serial", 0.0, _NO_OVERFLOW),
    Answer(_STAGE3, "has_overflow_partitioned_grads_serial", 0.0, _NO_OVERFLOW),
    Answer(_STAGE12, "has_overflow_partitioned_grads_serial", 0.0, _NO_OVERFLOW),
    Answer(_UTILS, "has_overflow", 0.0, _NO_OVERFLOW),
    Answer(_UTILS, "has_overflow_serial", 0.0, _NO_OVERFLOW),
    Answer(_UTILS, "is_invalid_grad_norm", 0.0, _NO_OVERFLOW),
    Answer(_UTILS, "check_using_norm", 0.0, _NO_OVERFLOW),
    Answer(_UTILS, None, 1.0, _NUMBER),
    Answer(_STAGE12, None, 1.0, _NUMBER),
    Answer(_STAGE3, None, 1.0, _NUMBER),
    Answer("deepspeed.runtime.fp16.loss_scaler", None, 1.0, _NUMBER),
    Answer("transformers.masking_utils", None, 1.0, "assumed: nothing is padded or packed, so a mask is causal alone"),
)
"""Callers whose question has an answer, more specific ones first."""

_INFRASTRUCTURE: Final = ("torch._", "torch.utils.", "zeropeak.profile.simulate")


def known_answer() -> float | None:
    """What the caller of an operation that reads a tensor's value is told; None where no answer is known."""
    asker, caller = _askers()
    for place in (asker, caller):
        if place is None:
            continue
        for known in ANSWERS:
            if _module(place) == known.module and known.function in (None, place.f_code.co_name):
                return known.value
    return None


def needed(what: str) -> DataNeeded:
    """The error for a program that asks for what a prediction has not."""
    return DataNeeded(f"{where()} asks for {what}, and a prediction computes none")


def where() -> str:
    """The line of the program, or of the library it uses, that runs an operation now; then the line that used it."""
    asker, caller = _askers()
    frame = caller or asker
    if frame is None:
        return "some code"
    own = own_frame(frame)
    led = "" if own is None or own is frame else f", called from {line_of(own)},"
    return line_of(frame) + led


def where_own() -> str:
    """The user's own line that led to what runs now; the library's, where there is none."""
    asker, caller = _askers()
    own = own_frame(caller or asker)
    return where() if own is None else line_of(own)


def _askers() -> tuple[FrameType | None, FrameType | None]:
    """The innermost frame past PyTorch's machinery, and the first one outside PyTorch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _module(frame).startswith(_INFRASTRUCTURE):
        frame = frame.f_back
    asker = frame
    while frame is not None and (_module(frame) == "torch" or _module(frame).startswith("torch.")):
        frame = frame.f_back
    return asker, frame


def _module(frame: FrameType) -> str:
    name: Any = frame.f_globals.get("__name__", "")
    return str(name)
