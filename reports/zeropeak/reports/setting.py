"""The ZeRO setting of a run: stage and knobs as DeepSpeed resolved them, else as the config gave them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from zeropeak.reports.run import Run

LINEAR_KNOB: Final = "zero_optimization.memory_efficient_linear"
_LINEAR_DEFAULT: Final = True
"""DeepSpeed's default of memory_efficient_linear (``DeepSpeedZeroConfig``)."""


def stage(run: Run, rank: int) -> int | None:
    """ZeRO stage; None when neither the capture nor the manifest says."""
    found = (run.rank_facts(rank).get("zero") or {}).get("stage", _config(run).get("stage"))
    return found if isinstance(found, int) else None


def memory_efficient_linear(run: Run, rank: int) -> bool | None:
    """The knob; DeepSpeed's default when a config without it is known; None when nothing is known."""
    config = _config(run)
    found = (run.rank_facts(rank).get("zero") or {}).get("memory_efficient_linear")
    if found is None:
        found = config.get("memory_efficient_linear", _LINEAR_DEFAULT if config else None)
    return found if isinstance(found, bool) else None


def linear_wrapped(run: Run, rank: int) -> bool | None:
    """Whether torch.nn.functional.linear was DeepSpeed's version during forward."""
    column = run.arrow("ranks", rank, ["linear_wrapped"])["linear_wrapped"]
    return column[0].as_py() if len(column) else None


def hooks_missing(run: Run, rank: int) -> dict[str, str]:
    """Hook points that saw nothing, or not all: name, and why (this DeepSpeed has none, or ours stepped aside)."""
    hooks = run.rank_facts(rank).get("hooks_missing") or []
    return {str(hook.get("name")): str(hook.get("why") or "") for hook in hooks if isinstance(hook, dict)}


def module_granularity_threshold(run: Run, rank: int) -> int:
    """Above 0, DeepSpeed fetches and releases small modules as one, by a path of its own ("fast sharding")."""
    found = (run.rank_facts(rank).get("zero") or {}).get("module_granularity_threshold")
    if found is None:
        config = _config(run)
        found = config.get("stage3_module_granularity_threshold", config.get("module_granularity_threshold"))
    return int(found) if isinstance(found, (int, float)) and math.isfinite(found) else 0


def _config(run: Run) -> dict[str, Any]:
    section = (run.manifest.get("ds_config") or {}).get("zero_optimization")
    return section if isinstance(section, dict) else {}
