"""What checkpointing each layer would leave of a peak's activations, from the blocks that were alive at it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from zeropeak.reports.columns import ints
from zeropeak.reports.names import counted
from zeropeak.reports.units import count, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeropeak.reports.run import Run

_LAYER: Final = re.compile(r"^.*?\.\d+(?=\.|$)")
_FEW: Final = 2
"""Layers below which there is nothing to checkpoint one by one."""


@dataclass(frozen=True)
class Layers:
    """Activations alive at a rank's peak.

    Attributes:
        by_module: bytes by module.
        by_layer: bytes by layer: the part of a module's name up to its first number.
        input_bytes: input of one layer, by the model's shape; None when that is not known.
    """

    by_module: Mapping[str, int]
    by_layer: Mapping[str, int]
    input_bytes: int | None

    @property
    def kept_bytes(self) -> int | None:
        """What stays of the layers: the input of each, and all of the largest, which backward recomputes."""
        if self.input_bytes is None or len(self.by_layer) < _FEW:
            return None
        return len(self.by_layer) * self.input_bytes + max(self.by_layer.values())

    @property
    def saved_bytes(self) -> int | None:
        """What goes; None when it cannot be computed or is nothing."""
        kept = self.kept_bytes
        return None if kept is None or kept >= sum(self.by_layer.values()) else sum(self.by_layer.values()) - kept

    @property
    def names(self) -> list[str]:
        """Modules with their number of layers, most bytes first."""
        return counted((name or "the model", bytes_) for name, bytes_ in self.by_module.items())

    def sentence(self) -> str:
        """What stays, for the advice; only where :attr:`saved_bytes` is known."""
        largest, layers = max(self.by_layer.values()), len(self.by_layer)
        inputs = size(layers * (self.input_bytes or 0))
        return (
            f"of the {size(sum(self.by_layer.values()))} of {count(layers, 'layer')} stay the largest one's "
            f"{size(largest)}, as backward recomputes it, and their inputs ({inputs} by the model's shape)"
        )


def layers_at_peak(run: Run, rank: int) -> Layers:
    """Activations at the run's peak on a rank; empty where the blocks were not recorded."""
    blocks = run.arrow("peak_blocks", rank, ["scope", "category", "module", "size_bytes"])
    blocks = blocks.filter(pc.and_(pc.equal(blocks["scope"], "run"), pc.equal(blocks["category"], "activations")))
    by_module: Counter[str] = Counter()
    by_layer: Counter[str] = Counter()
    for name, bytes_ in zip(blocks["module"].to_pylist(), ints(blocks, "size_bytes", 0).tolist(), strict=True):
        by_module[name or ""] += bytes_
        if found := _LAYER.match(name or ""):
            by_layer[found[0]] += bytes_
    return Layers(by_module, by_layer, _input_bytes(run))


def _input_bytes(run: Run) -> int | None:
    """Hidden states of one micro-batch, as they go from layer to layer."""
    model = run.manifest.get("model") or {}
    sizes: list[Any] = [model.get("hidden"), run.manifest.get("seq"), run.manifest.get("micro_batch")]
    if not all(isinstance(one, int) and one > 0 for one in sizes):
        return None
    hidden, seq, batch = sizes
    width = 4 if str(model.get("dtype")).removeprefix("torch.") in {"fp32", "float32"} else 2
    return int(hidden * seq * batch * width)
