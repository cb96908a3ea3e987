"""Turn a run's raw files into tables: parquet that pandas reads.

The tables of a run are rewritten; its raw files are not touched.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

NAME: Final = "parse"
SUMMARY: Final = "turn a run's raw files into tables"
EXAMPLE: Final = "zeropeak parse runs/nsys-stage3"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    from zeropeak.parse.pipeline import parse_run

    parse_run(args.run)
    print(f"Wrote {args.run / 'tables'}")
    return 0
