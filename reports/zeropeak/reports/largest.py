"""The largest part of a peak and the knob that sets it, where one does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zeropeak.reports.figures.style import category_label
from zeropeak.reports.units import size

if TYPE_CHECKING:
    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Story

_KNOBS: Final = {
    "gradient_buckets": ("reduce_bucket_size", "reduce_bucket_size"),
    "kept_for_reuse": ("stage3_max_reuse_distance", "max_reuse_distance"),
    "prefetched_ahead": ("stage3_prefetch_bucket_size", "prefetch_bucket_size"),
    "persistent_parameters": ("stage3_param_persistence_threshold", "param_persistence_threshold"),
}
"""Category to the knob in the config, and the name under which DeepSpeed resolved it."""
_HALF: Final = ("bf16", "fp16", "bfloat16", "float16")


def knob_of_largest(run: Run, story: Story) -> str | None:
    """One line when the peak's largest part has a knob; None when it has none or there is no composition."""
    top = max(story.composition, key=lambda part: part.size_bytes, default=None)
    if top is None or top.category not in _KNOBS:
        return None
    knob, resolved = _KNOBS[top.category]
    value = (run.rank_facts(story.rank).get("zero") or {}).get(resolved)
    elements = ""
    if isinstance(value, (int, float)):
        width = _element_bytes(run)
        elements = f" ({int(value):,} elements{f' x {width} B' if width else ''})"
    return f"{size(top.size_bytes)} {category_label(top.category)}, set by zero_optimization.{knob}{elements}."


def _element_bytes(run: Run) -> int | None:
    """Bytes of one parameter's or gradient's element; None when the run does not say its precision."""
    dtype = str((run.manifest.get("model") or {}).get("dtype") or "").removeprefix("torch.")
    config = run.manifest.get("ds_config") or {}
    enabled = [name for name in ("bf16", "fp16") if (config.get(name) or {}).get("enabled") is True]
    if dtype in _HALF or enabled:
        return 2
    return 4 if dtype in {"fp32", "float32"} else None
