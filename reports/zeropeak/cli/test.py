"""Run what CI runs: linters, type checks, generated docs, tests. Needs the source checkout.

Arguments are passed to pytest, which then runs alone.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from typing import Final

from zeropeak.profile.errors import ZeropeakError

NAME: Final = "test"
SUMMARY: Final = "run what CI runs (in the source checkout)"
EXAMPLE: Final = "zeropeak test -k clocks"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("pytest", nargs=argparse.REMAINDER, help="arguments for pytest")


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    launch = Path(__file__).parents[3] / "launch.sh"
    if not launch.is_file():
        raise ZeropeakError("the tests are in the source checkout: clone it and run ./launch.sh test")
    return subprocess.run([str(launch), "test", *args.pytest], check=False).returncode
