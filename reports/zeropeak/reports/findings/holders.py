"""Why a released storage is alive: the cause that a holder, the knob and the wrapper of F.linear add up to."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_OF_LINEAR: Final = re.compile(r"(Addmm|Mm|Linear|MkldnnLinear)Backward\d*\._saved_(mat2|weight)")
"""What plain ``torch.nn.functional.linear`` leaves in the graph: with a bias, without, and undecomposed."""


class Cause(StrEnum):
    """Why released weights stay alive."""

    LINEAR_OFF = "memory-efficient-linear-off"
    """The knob is false, so plain F.linear saved a view of the weight."""
    NOT_INSTALLED = "wrapper-not-installed"
    """The knob is true, but F.linear was not wrapped during forward."""
    OTHER_OP = "other-op-saved-weight"
    """F.linear is wrapped (or not concerned): another op saved the weight."""


@dataclass(frozen=True)
class Group:
    """Storages with one cause and one holder.

    Attributes:
        cause: None when knob or wrapper are not known.
        holder: autograd node and attribute; None when not searched or not found.
        rows: rows of the table ``retained``.
        holder_step: step in which the holder was seen.
    """

    cause: Cause | None
    holder: str | None
    rows: Sequence[dict[str, Any]]
    holder_step: int | None

    @property
    def size_bytes(self) -> int:
        """Sum of the storages."""
        return sum(row["size_bytes"] or 0 for row in self.rows)


def is_of_linear(holder: str) -> bool:
    """Whether a holder is one of plain F.linear's.

    >>> is_of_linear("AddmmBackward0._saved_mat2"), is_of_linear("ConvolutionBackward0._saved_weight")
    (True, False)
    """
    return _OF_LINEAR.fullmatch(holder) is not None


def cause_of(holder: str | None, knob: bool | None, wrapped: bool | None) -> Cause | None:
    """Cause for one storage. Without a holder it is the likely one; None when not even that can be said."""
    if wrapped or (holder is not None and not is_of_linear(holder)):
        return Cause.OTHER_OP
    if wrapped is None or knob is None:
        return None
    return Cause.NOT_INSTALLED if knob else Cause.LINEAR_OFF


def group(
    rows: Iterable[dict[str, Any]], everywhere: Iterable[dict[str, Any]], knob: bool | None, wrapped: bool | None
) -> list[Group]:
    """Group the storages of one mark by cause and holder, most bytes first.

    Holders are searched in one step only: a row without one takes that of the same parameter in ``everywhere``.
    """
    known: dict[int, tuple[str, str | None, int | None]] = {}
    for row in everywhere:
        if row["holder"] is not None and row["param_id"] is not None:
            known.setdefault(row["param_id"], (row["holder"], row["holder_module"], row["step"]))
    groups: dict[tuple[Cause | None, str | None, int | None], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        holder, module, step = row["holder"], row["holder_module"], row["step"]
        if holder is None:
            holder, module, step = known.get(row["param_id"], (None, None, None))
        filled = {**row, "holder": holder, "holder_module": module}
        groups[cause_of(holder, knob, wrapped), holder, step].append(filled)
    found = [Group(cause, holder, held, step) for (cause, holder, step), held in groups.items()]
    return sorted(found, key=lambda one: (-one.size_bytes, one.holder or ""))
