"""DeepSpeed configs: loading, ``--set``, Hugging Face's ``auto``, scaling to the tiny model. Every change is listed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from zeropeak.profile.errors import UsageError
from zeropeak.profile.guard import warn
from zeropeak.profile.presets import SEED, Shape

SHIPPED: Final = Path(__file__).parent / "configs"

_BY_PARAMETERS: Final = {
    "stage3_max_live_parameters": 1e9,
    "stage3_prefetch_bucket_size": 5e7,
    "stage3_max_reuse_distance": 1e9,
    "reduce_bucket_size": 5e8,
    "allgather_bucket_size": 5e8,
}
"""Knobs that count elements of the model, with DeepSpeed's defaults: scaled by the ratio of the models' parameters."""

_BY_WIDTH: Final = {"stage3_param_persistence_threshold": 1e5}
"""Compared with single tensors, and the ones near it are vectors: scaled by the ratio of the models' widths, so that
the same norms and biases stay persistent as in the large model."""


KEYS: Final = frozenset(
    (
        "activation_checkpointing", "aio", "amp", "autotuning", "bf16", "bfloat16", "checkpoint", "comet",
        "communication_data_type", "comms_logger", "compile", "compression_training", "csv_monitor",
        "curriculum_learning", "data_efficiency", "data_types", "dataloader_drop_last", "disable_allgather",
        "disable_python_gc", "dump_state", "eigenvalue", "elasticity", "expert_parallel", "flops_profiler", "fp16",
        "gradient_accumulation_steps", "gradient_allreduce_op", "gradient_clipping", "gradient_predivide_factor",
        "graph_harvesting", "hybrid_engine", "load_universal_checkpoint", "log_level", "managed_gradient_accumulation",
        "memory_breakdown", "nebula", "optimizer", "pipeline", "prescale_gradients", "progressive_layer_drop",
        "quantize_training", "scheduler", "seq_parallel_communication_data_type", "sequence_parallel_size",
        "sparse_attention", "sparse_gradients", "steps_per_print", "tensor_parallel", "tensorboard", "timers",
        "torch_autocast", "train_batch_size", "train_micro_batch_size_per_gpu", "use_data_before_expert_parallelism",
        "use_node_local_storage", "vocabulary_size", "wall_clock_breakdown", "wandb", "weight_quantization",
        "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "zero_optimization",
    )
)  # fmt: skip
"""Keys at the top of a DeepSpeed config, of any release from 0.15 on: it takes no notice of others."""

_WITHIN_ZERO: Final = (
    "stage", *_BY_PARAMETERS, *_BY_WIDTH, "overlap_comm", "contiguous_gradients", "reduce_scatter", "offload_param",
    "offload_optimizer", "memory_efficient_linear", "sub_group_size", "round_robin_gradients",
)  # fmt: skip
"""Keys that people write without their section."""


@dataclass
class DsConfig:
    """A DeepSpeed config on its way to DeepSpeed, and what was changed on the way."""

    name: str
    shipped: bool
    values: dict[str, Any]
    changes: list[dict[str, object]] = field(default_factory=list)

    def set(self, key: str, value: object, why: str) -> None:
        """Set a dotted key and list the change, unless it already has that value."""
        section = self.values
        *parents, leaf = key.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise UsageError(f"{key}: {parent} is not a section of {self.name}")
        before = section.get(leaf)
        if before != value or type(before) is not type(value):
            section[leaf] = value
            self.changes.append({"key": key, "from": before, "to": value, "why": why})

    def get(self, key: str) -> Any:
        """Value at a dotted key, or None."""
        section: Any = self.values
        for part in key.split("."):
            section = section.get(part) if isinstance(section, dict) else None
        return section


def shipped_names() -> list[str]:
    """Names of the configs that ship with zeropeak."""
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


def load(config: str) -> DsConfig:
    """Load a shipped config by name, or any ds_config.json by path.

    Raises:
        UsageError: unknown, not JSON (with line and column), or without ZeRO stages 1 to 3.
    """
    shipped = config in shipped_names()
    path = SHIPPED / f"{config}.json" if shipped else Path(config)
    if not path.is_file():
        raise UsageError(f"config {config}: neither one of {', '.join(shipped_names())} nor a file")
    try:
        values = json.loads(path.read_text())
    except json.JSONDecodeError as problem:
        raise UsageError(f"{config}:{problem.lineno}:{problem.colno}: not JSON: {problem.msg}") from None
    except UnicodeDecodeError as problem:
        raise UsageError(f"{config}: not UTF-8 text (byte {problem.start})") from None
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"{config}: no usable JSON: {problem}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{config}: a DeepSpeed config is a JSON object, this is a {type(values).__name__}")
    _check_stage(values, config)
    for key in values:
        if key not in KEYS and not key.startswith("_"):
            warn(f"{config}: {_unread(key)}")
    return DsConfig(config if shipped else path.stem, shipped, values)


def _check_stage(values: dict[str, Any], whose: str) -> None:
    zero = values.get("zero_optimization")
    if not isinstance(zero, dict):
        raise UsageError(f"{whose}: no zero_optimization section; zeropeak looks at ZeRO stages 1, 2 and 3")
    stage = zero.get("stage", 0)
    if stage not in (1, 2, 3) or isinstance(stage, bool):
        raise UsageError(f"{whose}: zero_optimization.stage is {stage!r}; zeropeak looks at ZeRO stages 1, 2 and 3")


def apply_settings(config: DsConfig, settings: tuple[str, ...]) -> None:
    """Apply ``--set KEY=VALUE`` texts; a VALUE is read as JSON, else taken as text.

    Raises:
        UsageError: no ``=``, a key of which DeepSpeed would take no notice, or the stage would leave 1 to 3.
    """
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {setting}: write it as zero_optimization.KEY=VALUE")
        _check_known(key, config)
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        except (ValueError, RecursionError) as problem:
            raise UsageError(f"--set {key}: no usable value: {problem}") from None
        config.set(key, value, "--set")
    _check_stage(config.values, "--set")


def _check_known(key: str, config: DsConfig) -> None:
    """Raise for a key outside every section that DeepSpeed reads: it would change nothing, and not be refused."""
    section = key.partition(".")[0]
    if section in KEYS or section in config.values:
        return
    raise UsageError(f"--set {key}: {_unread(section)} (a config file of your own may hold any key)")


def _unread(key: str) -> str:
    """What is said of a key at the top of a config that DeepSpeed does not read."""
    near = get_close_matches(key, [*KEYS, *_WITHIN_ZERO], 1)
    if not near:
        return f"DeepSpeed reads no {key!r} there"
    return f"DeepSpeed reads no {key!r} there; {'zero_optimization.' if near[0] in _WITHIN_ZERO else ''}{near[0]}?"


def scale(config: DsConfig, shape: Shape) -> None:
    """Scale the knobs of a shipped config from the model they were set for to ``shape``.

    With a knob of 1e9 elements a model of 7 million parameters never releases anything, and the effect hides.
    """
    by_parameters = shape.parameters / SEED.parameters
    by_width = shape.hidden / SEED.hidden
    why = f"scaled from the {SEED.source} model to {shape.source}"
    zero = config.values["zero_optimization"]
    for knobs, ratio in ((_BY_PARAMETERS, by_parameters), (_BY_WIDTH, by_width)):
        for knob, default in knobs.items():
            value = zero.get(knob, default)
            config.set(f"zero_optimization.{knob}", max(1, round(value * ratio)), why)


def fill(
    config: DsConfig, shape: Shape, *, world_size: int, micro_batch: int, grad_accum: int, dtype: str, lr: float = 1e-4
) -> None:
    """Fill in batch sizes, precision and Hugging Face ``auto`` values, the latter as its Trainer would.

    Raises:
        UsageError: an ``auto`` that has no known meaning.
    """
    config.set("train_micro_batch_size_per_gpu", micro_batch, "batch size of this run")
    config.set("gradient_accumulation_steps", grad_accum, "batch size of this run")
    config.set("train_batch_size", micro_batch * grad_accum * world_size, "batch size of this run")
    for section in ("fp16", "bf16"):
        wanted = dtype == section
        if wanted or config.get(section) is not None:
            config.set(f"{section}.enabled", wanted, f"dtype {dtype}")
    if config.get("optimizer") is None:
        config.set("zero_allow_untested_optimizer", True, "the workload brings torch.optim.AdamW")
        if config.get("zero_optimization.offload_optimizer.device") not in (None, "none"):
            config.set("zero_force_ds_cpu_optimizer", False, "the workload brings torch.optim.AdamW")
    if config.get("steps_per_print") is None:
        config.set("steps_per_print", 1_000_000, "keeps DeepSpeed's log short")
    known = {
        "zero_optimization.reduce_bucket_size": shape.hidden * shape.hidden,
        "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * shape.hidden * shape.hidden),
        "zero_optimization.stage3_param_persistence_threshold": 10 * shape.hidden,
        "gradient_clipping": 1.0,
        "optimizer.params.lr": lr,
        "optimizer.params.betas": [0.9, 0.999],
        "optimizer.params.eps": 1e-8,
        "optimizer.params.weight_decay": 0.0,
        "scheduler.params.warmup_min_lr": 0.0,
        "scheduler.params.warmup_max_lr": lr,
        "scheduler.params.warmup_num_steps": 1,  # DeepSpeed takes no 0
        "scheduler.params.total_num_steps": 1000,
        "zero_optimization.stage3_gather_16bit_weights_on_model_save": False,
    }
    for key in _autos(config.values, ""):
        if key not in known:
            raise UsageError(
                f'{config.name}: {key} is "auto", which zeropeak cannot fill in; set it with --set {key}=VALUE'
            )
        config.set(key, known[key], "filled in for auto")


def _autos(section: dict[str, Any], prefix: str) -> list[str]:
    found = []
    for key, value in section.items():
        if isinstance(value, dict):
            found += _autos(value, f"{prefix}{key}.")
        elif value == "auto":
            found.append(prefix + key)
    return found
