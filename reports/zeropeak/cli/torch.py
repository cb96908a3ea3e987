"""Train under torch.profiler, parse, report: needs no Nsight Systems.

On GPUs the history of PyTorch's caching allocator is recorded too, so every block's life is known.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from zeropeak.cli.capturing import capture_and_report
from zeropeak.cli.model_options import add_model_options, plan_of

if TYPE_CHECKING:
    import argparse

NAME: Final = "torch"
SUMMARY: Final = "train under torch.profiler, parse, report"
EXAMPLE: Final = "zeropeak torch stage3-efficient"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_model_options(parser, NAME)


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    plan = plan_of(args, NAME)
    run_dir = args.out or Path("runs") / f"{NAME}-{plan.config_name}"
    return capture_and_report(args, plan, run_dir, find_nsys=None)
