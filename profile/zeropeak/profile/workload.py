"""The model that is trained: a causal language model under ZeRO, with low-rank adapters."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from zeropeak.profile.errors import ZeropeakError
from zeropeak.profile.lora import convert

if TYPE_CHECKING:
    from zeropeak.profile.options import Plan

DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


def build_model(plan: Plan, device: Any) -> Any:
    """Build the model of a plan, partitioned while it is built in stage 3; weights are random.

    Args:
        plan: resolved plan.
        device: torch device that parameters are made on.
    """
    import deepspeed
    import torch

    # Now: where it is first imported inside zero.Init, it finds tensor constructors replaced and raises.
    import torch._dynamo

    dtype = getattr(torch, DTYPES[plan.dtype])
    zero: dict[str, Any] = plan.ds_config["zero_optimization"]  # type: ignore[assignment]
    partitioned = (
        deepspeed.zero.Init(config_dict_or_path=plan.ds_config, dtype=dtype)
        if plan.zero_stage == 3
        else contextlib.nullcontext()
    )
    # Offloaded parameters are made where zero.Init says.
    offloaded = (zero.get("offload_param") or {}).get("device") not in (None, "none")
    torch.set_default_dtype(dtype)
    try:
        with contextlib.nullcontext() if offloaded else device, partitioned:
            model = _causal_model(plan)
            model = _adapt(plan, model)
    finally:
        torch.set_default_dtype(torch.float32)
    if plan.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if plan.lora != "none":
        # As DeepSpeed-Chat does: the frozen embedding's output must require a gradient for what follows.
        model.get_input_embeddings().register_forward_hook(_require_grad)
    return model


def _causal_model(plan: Plan) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

    shape: dict[str, Any] = plan.model
    source = shape["source"]
    from zeropeak.profile.presets import PRESETS

    if source not in PRESETS:
        if not plan.trust_remote_code:
            _need_no_code(source)
        config = AutoConfig.from_pretrained(source, local_files_only=True, trust_remote_code=plan.trust_remote_code)
        # transformers zeroes the embedding's row of the padding token, which a partitioned weight has not.
        config.get_text_config().pad_token_id = None
        return AutoModelForCausalLM.from_config(
            config, attn_implementation=plan.attention, trust_remote_code=plan.trust_remote_code
        )
    config = GPTNeoXConfig(
        hidden_size=shape["hidden"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        intermediate_size=shape["intermediate"],
        vocab_size=shape["vocab"],
        max_position_embeddings=2048,
        rotary_pct=0.25,
    )
    config._attn_implementation = plan.attention
    return GPTNeoXForCausalLM(config)


def _need_no_code(source: str) -> None:
    """Raise ZeropeakError for a model that transformers does not know and that brings its own Python code."""
    from pathlib import Path

    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    path = Path(source)
    described = json.loads((path / "config.json" if path.is_dir() else path).read_text())
    if described.get("auto_map") and described.get("model_type") not in CONFIG_MAPPING_NAMES:
        raise ZeropeakError(
            f"--model {source}: its code comes with the model, and is not run unless you ask: --trust-remote-code"
        )


def _adapt(plan: Plan, model: Any) -> Any:
    if plan.lora == "dschat":
        head = model.get_output_embeddings()
        skip = [name for name, module in model.named_modules() if module is head]
        convert(model, plan.lora_rank, skip)
    elif plan.lora == "peft":
        from peft import LoraConfig, get_peft_model

        adapters = LoraConfig(r=plan.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM")
        # PEFT makes adapters fp32 by default; ZeRO-3 partitions trainable parameters of one dtype.
        model = get_peft_model(model, adapters, autocast_adapter_dtype=False)
    return model


def _require_grad(module: object, inputs: object, output: Any) -> None:
    output.requires_grad_(True)
