"""The options that every verb that runs a model takes, and the plan they make."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from zeropeak.profile.options import ATTENTIONS, DTYPES, LORAS, Options
from zeropeak.profile.script_plan import ScriptPlan

if TYPE_CHECKING:
    from zeropeak.profile.options import Plan


def add_model_options(parser: argparse.ArgumentParser, tool: str, *, simulated: bool = False) -> None:
    """Add ``<config>`` and the options.

    Args:
        parser: of the verb.
        tool: names the default output folder.
        simulated: nothing is trained: there is no choice of processes.
    """
    from zeropeak.profile.ds_config import shipped_names

    parser.add_argument(
        "config",
        nargs="?" if simulated else None,
        help=f"{', '.join(shipped_names())}, or a path to a ds_config.json. A shipped config's knobs are scaled down "
        "for the tiny model; your own config is never scaled",
    )
    add_training_options(parser, simulated=simulated)
    add_output_options(parser, f"run directory (runs/{tool}-<config>)", "overwrite an existing run directory")


def add_training_options(parser: argparse.ArgumentParser, *, simulated: bool = False) -> None:
    """Add what is trained, but for the config; see :func:`add_model_options`."""
    from zeropeak.profile.planning import AUTOS
    from zeropeak.profile.presets import PRESETS

    add = parser.add_argument_group("what is trained").add_argument
    more = "; with a script, what its launcher says" if simulated else ""
    add("--ranks", type=int, metavar="N", help=f"ranks ({Options.ranks}{more})")
    if not simulated:
        add("--fake", action="store_true", help="run rank 0 of N alone, on a fake process group")
        add(
            "--timeout",
            type=int,
            metavar="SECONDS",
            help="end the run when a rank keeps the others waiting this long in a collective (PyTorch's: 10 minutes "
            "with NCCL, 30 with gloo)",
        )
    add(
        "--model",
        default="auto",
        metavar="NAME|PATH",
        help=f"{', '.join(PRESETS)}, or a local Hugging Face folder or config.json. auto: {AUTOS['model']}",
    )
    add("--steps", type=int, default=3, metavar="N", help="optimizer steps (3)")
    add("--seq", type=_auto_integer, metavar="N", help=f"tokens in a sequence. auto: {AUTOS['seq']}")
    add(
        "--micro-batch",
        type=_auto_integer,
        metavar="N",
        help=f"sequences in a micro-step. auto: {AUTOS['micro-batch']}",
    )
    add("--grad-accum", type=_auto_integer, metavar="N", help=f"micro-steps in a step. auto: {AUTOS['grad-accum']}")
    add("--dtype", choices=DTYPES, default="auto", help=f"auto: {AUTOS['dtype']}")
    add("--attention", choices=ATTENTIONS, default="eager", help="attention implementation (eager)")
    add("--gradient-checkpointing", action="store_true", help="Hugging Face's, non-reentrant")
    add(
        "--lora",
        choices=LORAS,
        default="dschat",
        help="dschat: as DeepSpeed-Chat does, on every linear layer but the head; none: full fine-tuning (dschat)",
    )
    add("--lora-rank", type=_auto_integer, metavar="N", help=f"auto: {AUTOS['lora-rank']}")
    add("--trust-remote-code", action="store_true", help="run the Python code that comes with a --model folder")
    add("--data", metavar="FILE.jsonl", help='training text, one {"text": ...} a line (a sample that ships)')
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="change the config, e.g. zero_optimization.stage3_max_reuse_distance=0; repeatable",
    )
    add(
        "--gpu-memory",
        type=size_bytes,
        metavar="SIZE",
        help="memory of the GPU: say whether the run fits, and what to turn first, e.g. 48GiB"
        if simulated
        else "let each rank's allocator take this much of its GPU, as if it had no more, e.g. 24GiB",
    )


def add_output_options(parser: argparse.ArgumentParser, out_help: str, force_help: str) -> None:
    """Add where it goes."""
    out = parser.add_argument_group("where it goes").add_argument
    out("--out", type=Path, metavar="DIR", help=out_help)
    out("--force", action="store_true", help=force_help)
    out("--disk-cap", type=size_bytes, metavar="SIZE", help="stop the capture at this size, e.g. 20GiB (50GiB)")


def options_of(args: argparse.Namespace, config: str | None = None) -> Options:
    """The user's options, with ``args.config`` or another config."""
    return Options(
        config=args.config if config is None else config,
        ranks=Options.ranks if args.ranks is None else args.ranks,
        fake=getattr(args, "fake", True),
        model=args.model,
        steps=args.steps,
        seq=args.seq,
        micro_batch=args.micro_batch,
        grad_accum=args.grad_accum,
        dtype=args.dtype,
        attention=args.attention,
        gradient_checkpointing=args.gradient_checkpointing,
        lora=args.lora,
        lora_rank=args.lora_rank,
        data=args.data,
        settings=tuple(args.settings),
        gpu_memory_bytes=args.gpu_memory,
        trust_remote_code=args.trust_remote_code,
        timeout_s=getattr(args, "timeout", None),
    )


def plan_of(args: argparse.Namespace, tool: str, config: str | None = None) -> Plan:
    """The plan on this machine, of ``args.config`` or another config."""
    from zeropeak.profile.gpus import visible
    from zeropeak.profile.planning import make_plan

    return make_plan(options_of(args, config), tool, visible(os.environ))


def describe(plan: Plan | ScriptPlan) -> str:
    """One line on what will be trained."""
    if isinstance(plan, ScriptPlan):
        return (
            f"{plan.tool} {plan.config_name}: {plan.target}, rank 0 of {plan.world_size} on a simulated GPU, until "
            f"{plan.steps} steps are done"
        )
    if plan.device == "simulated":
        return (
            f"{plan.tool} {plan.config_name}: {plan.model['source']} model, rank 0 of {plan.world_size} on a simulated "
            f"GPU, {plan.dtype}, {plan.steps} steps of {plan.micro_batch * plan.grad_accum} x {plan.seq} tokens"
        )
    where = f"{plan.gpus} GPU{'s' if plan.gpus > 1 else ''}" if plan.device == "cuda" else "CPU"
    ranks = (
        f"rank 0 of {plan.world_size} (fake process group)"
        if plan.backend == "fake"
        else f"{plan.world_size} ranks over {plan.backend}"
    )
    return (
        f"{plan.tool} {plan.config_name}: {plan.model['source']} model, {ranks} on {where}, {plan.dtype}, "
        f"{plan.steps} steps of {plan.micro_batch * plan.grad_accum} x {plan.seq} tokens"
    )


def _auto_integer(text: str) -> int | None:
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto") from None


_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def size_bytes(text: str) -> int:
    """A size as people write it, e.g. 20GiB."""
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = text[len(digits) :].strip().upper()
    try:
        size = int(float(digits) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write e.g. 20GiB") from None
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: a size above zero is needed")
    return size
