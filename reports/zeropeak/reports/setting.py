"""The ZeRO setting of a run: stage and knobs as DeepSpeed resolved them, else as the config gave them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from zeropeak.reports.run import Run

LINEAR_KNOB: Final = "zero_optimization.memory_efficient_linear"
_LINEAR_DEFAULT: Final = True
"""DeepSpeed's default of memory_efficient_linear (``DeepSpeedZeroConfig``)."""

DEFAULTS: Final = {
    "max_reuse_distance": 1_000_000_000,
    "prefetch_bucket_size": 50_000_000,
    "max_live_parameters": 1_000_000_000,
    "param_persistence_threshold": 100_000,
    "reduce_bucket_size": 500_000_000,
    "allgather_bucket_size": 500_000_000,
}
"""What DeepSpeed takes for a knob that a config does not name, in elements (``DeepSpeedZeroConfig``)."""
_UNPREFIXED: Final = frozenset(
    {"reduce_bucket_size", "allgather_bucket_size", "overlap_comm", "memory_efficient_linear"}
)


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


def knob(run: Run, rank: int, name: str) -> int | None:
    """A knob that counts elements, as DeepSpeed resolved it, else as the config gives it, else DeepSpeed's default.

    Args:
        name: without ``stage3_``: ``max_reuse_distance``, ``prefetch_bucket_size``, ...

    Returns:
        None when nothing is known of the run's config, or the value is no number (``auto``).
    """
    config = _config(run)
    found = (run.rank_facts(rank).get("zero") or {}).get(name)
    if found is None:
        default = DEFAULTS.get(name) if config else None
        found = config.get(f"stage3_{name}", config.get(name, default))
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found):
        return None
    return int(found)


def flag(run: Run, rank: int, name: str) -> bool | None:
    """A knob that is true or false, as :func:`knob`; None also when the config leaves it to DeepSpeed."""
    config = _config(run)
    found = (run.rank_facts(rank).get("zero") or {}).get(name)
    if found is None:
        found = config.get(f"stage3_{name}", config.get(name))
    return found if isinstance(found, bool) else None


def config_key(run: Run, name: str) -> str:
    """Where a knob stands in the config: as this run's config spells it, else with the prefix that it has by now.

    Example: ``zero_optimization.stage3_max_reuse_distance``.
    """
    spelled = name if name in _config(run) or name in _UNPREFIXED else f"stage3_{name}"
    return f"zero_optimization.{spelled}"


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
