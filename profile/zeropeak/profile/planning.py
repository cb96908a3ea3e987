"""From the user's options to a plan with every ``auto`` resolved."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Final

from zeropeak.profile import ds_config
from zeropeak.profile.errors import UsageError
from zeropeak.profile.options import Options, Plan, check_predicted_ranks
from zeropeak.profile.presets import PRESETS, SEED, choose, read_shape
from zeropeak.profile.text import read_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeropeak.profile.gpus import Gpu

SEQ_GPU: Final = 1200
SEQ_CPU: Final = 128
SEED_LORA_RANK: Final = 128

AUTOS: Final = {
    "model": "the largest of tiny, 70m, 410m, 1.4b, 6.9b that fits the GPUs; tiny on CPU; 6.9b for predict",
    "seq": f"{SEQ_GPU} tokens on GPUs and for predict, {SEQ_CPU} on CPU",
    "dtype": "what the config says where the device can; for a shipped config fp16 on GPUs, bf16 on CPU",
    "lora-rank": f"{SEED_LORA_RANK} scaled by the model's width to the 6.9b model's, at least 4",
    "micro-batch": "what the config says, else 1",
    "grad-accum": "what the config says, or means by its train_batch_size, else 1",
}
"""What each ``auto`` means, as ``--help`` says it."""


def make_plan(options: Options, tool: str, gpus: Sequence[Gpu], *, simulated: bool = False) -> Plan:
    """Resolve options on a machine with these GPUs.

    Args:
        options: as the user gave them.
        tool: verb.
        gpus: GPUs to train on; empty: the CPU.
        simulated: predict rank 0 on a GPU that need not exist; ``auto`` then means what it means on GPUs.

    Raises:
        UsageError: an option or the config is wrong.
    """
    options.check()
    if simulated:
        check_predicted_ranks(options.ranks)
    read_bytes(options.data)  # whatever is wrong with it is said before any rank starts
    config = ds_config.load(options.config)
    # What the config says once --set has had its way: read here, applied below, after what is scaled.
    said = deepcopy(config)
    ds_config.apply_settings(said, options.settings)
    device = "simulated" if simulated else "cuda" if gpus else "cpu"
    if options.gpu_memory_bytes is not None and device == "cpu":
        raise UsageError("--gpu-memory limits the allocator of a GPU; there is no GPU here")
    processes = 1 if options.fake or simulated else options.ranks
    seq = options.seq or (SEQ_CPU if device == "cpu" else SEQ_GPU)
    micro_batch = options.micro_batch or _integer(said, "train_micro_batch_size_per_gpu", 1)
    grad_accum = options.grad_accum or _grad_accum(said, micro_batch, options.ranks)
    if micro_batch < 1 or grad_accum < 1:
        raise UsageError(
            f"{options.config}: batch sizes below 1 (micro-batch {micro_batch}, accumulation {grad_accum})"
        )
    batch = _integer(said, "train_batch_size", 0)
    if simulated and batch % (micro_batch * grad_accum * options.ranks):
        raise UsageError(
            f"{options.config}: train_batch_size {batch} does not divide into {options.ranks} ranks of {micro_batch} x "
            f"{grad_accum} (micro-batch x accumulation); change --ranks, --micro-batch or --grad-accum"
        )
    if options.model != "auto":
        shape = read_shape(options.model)
    elif simulated:
        shape = SEED
    elif gpus:
        per_gpu = -(-processes // len(gpus))
        shape = choose(min(gpu.free_bytes for gpu in gpus), per_gpu, seq, micro_batch)
    else:
        shape = PRESETS["tiny"]
    dtype = _dtype(options.dtype, said, device)
    if config.shipped and shape.source == "tiny":
        ds_config.scale(config, shape)
    ds_config.apply_settings(config, options.settings)
    ds_config.fill(config, shape, world_size=options.ranks, micro_batch=micro_batch, grad_accum=grad_accum, dtype=dtype)
    real_backend = "nccl" if gpus and processes <= len(gpus) else "gloo"
    return Plan(
        tool=tool,
        config_name=config.name,
        world_size=options.ranks,
        processes=processes,
        device=device,
        gpus=len(gpus),
        backend="fake" if options.fake or simulated else real_backend,
        model=shape.describe(),
        steps=options.steps,
        seq=seq,
        micro_batch=micro_batch,
        grad_accum=grad_accum,
        dtype=dtype,
        attention=options.attention,
        gradient_checkpointing=options.gradient_checkpointing,
        lora=options.lora,
        lora_rank=0
        if options.lora == "none"
        else options.lora_rank or max(4, round(SEED_LORA_RANK * shape.hidden / SEED.hidden)),
        data=options.data,
        ds_config=config.values,
        config_changes=config.changes,
        gpu_memory_bytes=options.gpu_memory_bytes,
        trust_remote_code=options.trust_remote_code,
        timeout_s=options.timeout_s,
    )


def _grad_accum(config: ds_config.DsConfig, micro_batch: int, ranks: int) -> int:
    """What the config says, or what its train_batch_size means for this micro-batch and world, as DeepSpeed has it."""
    said = _integer(config, "gradient_accumulation_steps", 0)
    batch = _integer(config, "train_batch_size", 0)
    return said or max(1, batch // max(1, micro_batch * ranks))


def _integer(config: ds_config.DsConfig, key: str, default: int) -> int:
    """A batch size of the config; ``default`` where it says none, or auto."""
    value = config.get(key)
    if value is None or value == "auto":
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{config.name}: {key} is {value!r}; a whole number, or leave it out")
    return value


def _dtype(asked: str, config: ds_config.DsConfig, device: str) -> str:
    if asked != "auto":
        return asked
    enabled = {section: config.get(f"{section}.enabled") for section in ("bf16", "fp16")}
    for section, value in enabled.items():
        if value not in (True, False, None):
            raise UsageError(f"{config.name}: {section}.enabled is {value!r}; say which with --dtype")
    if all(enabled.values()):
        raise UsageError(f"{config.name}: fp16 and bf16 are both enabled, which DeepSpeed refuses; disable one")
    for section, value in enabled.items():
        if value:
            # Half precision on CPU is bf16: DeepSpeed's CPU accelerator trains no fp16 everywhere.
            return section if device != "cpu" else "bf16"
    return "fp32" if not config.shipped else "bf16"
