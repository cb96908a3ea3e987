"""Predict the memory of a run: rank 0 of N on a simulated GPU, with no GPU and no weights, then parse and report.

The real model and the real DeepSpeed run on tensors that have sizes and no data. The report is that of a capture; every
figure in it is predicted, and its time is the order of what happens, not seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from zeropeak.cli.capturing import capture_and_report
from zeropeak.cli.model_options import add_model_options, options_of

if TYPE_CHECKING:
    import argparse

NAME: Final = "predict"
SUMMARY: Final = "predict a run's memory, with no GPU and no weights"
EXAMPLE: Final = "zeropeak predict stage3 --model 6.9b --ranks 4 --gpu-memory 48GiB"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_model_options(parser, NAME, simulated=True)


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    from zeropeak.profile.planning import make_plan

    plan = make_plan(options_of(args), NAME, [], simulated=True)
    run_dir = args.out or Path("runs") / f"{NAME}-{plan.config_name}"
    return capture_and_report(args, plan, run_dir, find_nsys=None)
