"""What a script decided, read off its engine: the keys of ``run.json`` that a plan has before a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable


def facts(engine: Any, inputs: Iterable[object]) -> dict[str, Any]:
    """Keys of ``run.json``.

    Args:
        engine: DeepSpeed's engine.
        inputs: what the model was first called with; empty before that.
    """
    found = {
        "seq": _sequence(inputs),
        "micro_batch": int(engine.train_micro_batch_size_per_gpu()),
        "grad_accum": int(engine.gradient_accumulation_steps()),
        "ds_config": _config(engine),
        "model": _model(engine),
    }
    return {key: value for key, value in found.items() if value is not None}


def _sequence(inputs: Iterable[object]) -> int | None:
    """Tokens in a sequence: the second side of the first matrix of whole numbers."""
    for one in inputs:
        if isinstance(one, Tensor) and one.dim() == 2 and not one.dtype.is_floating_point:
            return int(one.size(1))
    return None


def _config(engine: Any) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(json.dumps(getattr(engine._config, "_param_dict", None) or {}, default=str))
    return config


def _model(engine: Any) -> dict[str, Any]:
    from zeropeak.profile.presets import shape_of

    model = engine.module
    config: Any = getattr(model, "config", None)
    described: dict[str, Any] = {}
    if hasattr(config, "to_dict"):
        described |= shape_of(config.to_dict())
        described["attention"] = getattr(config, "_attn_implementation", None)
    checkpointing = getattr(model, "is_gradient_checkpointing", None)
    described["gradient_checkpointing"] = checkpointing if isinstance(checkpointing, bool) else None
    described["dtype"] = "fp16" if engine.fp16_enabled() else "bf16" if engine.bfloat16_enabled() else "fp32"
    described["lora"], described["lora_rank"] = _adapters(model)
    return {key: value for key, value in described.items() if value is not None}


def _adapters(model: Any) -> tuple[str | None, int | None]:
    """Low-rank adapters: PEFT says so; others are known by their parameters' names."""
    peft = getattr(model, "peft_config", None)
    if isinstance(peft, dict) and peft:
        ranks = [getattr(one, "r", None) for one in peft.values()]
        return "peft", next((rank for rank in ranks if isinstance(rank, int)), None)
    if any("lora" in name for name, _ in model.named_parameters()):
        return "own", None
    return "none", None
