"""Train under Nsight Systems, parse, report.

Nsight Systems is looked for on PATH, in the CUDA toolkit, /opt/nvidia and Nsight Compute's folder; NSYS=/path
overrides. On a Debian-like system it is fetched into your cache when it is nowhere.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from zeropeak.cli.capturing import capture_and_report
from zeropeak.cli.model_options import add_model_options, plan_of
from zeropeak.cli.setup import need_nsys

if TYPE_CHECKING:
    import argparse

NAME: Final = "nsys"
SUMMARY: Final = "train under Nsight Systems, parse, report"
EXAMPLE: Final = "zeropeak nsys stage3"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_model_options(parser, NAME)


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    plan = plan_of(args, NAME)
    run_dir = args.out or Path("runs") / f"{NAME}-{plan.config_name}"
    return capture_and_report(args, plan, run_dir, find_nsys=lambda: need_nsys(os.environ))
