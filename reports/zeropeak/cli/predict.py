"""Predict the memory of a run: rank 0 of N on a simulated GPU, with no GPU and no weights, then parse and report.

The real model and the real DeepSpeed run on tensors that have sizes and no data. The report is that of a capture; every
figure in it is predicted, and its time is the order of what happens, not seconds.

With -- and the command that starts your training (python, torchrun or deepspeed), your own script runs so, until its
first --steps optimizer steps are done. It decides the model, the config and the batches, with its own options.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from zeropeak.cli.capturing import capture_and_report, say
from zeropeak.cli.model_options import add_model_options, options_of
from zeropeak.profile.errors import UsageError
from zeropeak.profile.options import Options

if TYPE_CHECKING:
    import argparse

    from zeropeak.profile.options import Plan
    from zeropeak.profile.script_plan import ScriptPlan

NAME: Final = "predict"
SUMMARY: Final = "predict a run's memory, with no GPU and no weights"
EXAMPLE: Final = "zeropeak predict stage3 --model 6.9b --ranks 4 --gpu-memory 48GiB"

_THE_SCRIPTS: Final = {
    "model": "--model", "seq": "--seq", "micro_batch": "--micro-batch", "grad_accum": "--grad-accum",
    "dtype": "--dtype", "attention": "--attention", "gradient_checkpointing": "--gradient-checkpointing",
    "lora": "--lora", "lora_rank": "--lora-rank", "trust_remote_code": "--trust-remote-code", "data": "--data",
    "settings": "--set",
}  # fmt: skip
"""Options that say what a script says itself."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_model_options(parser, NAME, simulated=True)
    parser.usage = (
        "%(prog)s CONFIG [options]\n"
        "       %(prog)s [--ranks N] [--steps N] [--gpu-memory SIZE] [--out DIR] -- python train.py ..."
    )
    parser.set_defaults(command=None)


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    plan = _plan(args) if args.command is None else _script_plan(args)
    run_dir = args.out or Path("runs") / f"{NAME}-{plan.config_name}"
    return capture_and_report(args, plan, run_dir, find_nsys=None)


def _plan(args: argparse.Namespace) -> Plan:
    from zeropeak.profile.command import EXAMPLE as COMMAND
    from zeropeak.profile.planning import make_plan

    if args.config is None:
        raise UsageError(f"predict what? a config (stage3, or a path), or your own script: {COMMAND}")
    return make_plan(options_of(args), NAME, [], simulated=True)


def _script_plan(args: argparse.Namespace) -> ScriptPlan:
    from zeropeak.profile.command import read_command
    from zeropeak.profile.script_plan import plan_script

    given, ours = options_of(args, ""), Options(config="")
    said = [option for name, option in _THE_SCRIPTS.items() if getattr(given, name) != getattr(ours, name)]
    if args.config is not None:
        said.insert(0, args.config)
    if said:
        raise UsageError(f"{', '.join(said)}: with a script of your own, the script says it; give it after the script")
    command = read_command(args.command)
    _tell_environment(args.command[0])
    return plan_script(command, ranks=args.ranks, steps=args.steps, gpu_memory_bytes=args.gpu_memory)


def _tell_environment(program: str) -> None:
    """The script runs in the Python that runs zeropeak: say so where the command names another one."""
    found = shutil.which(program)
    if found is not None and Path(found).parent.resolve() != Path(sys.executable).parent.resolve():
        say(f"the script runs in this Python: {sys.executable} (not in that of {found})")
