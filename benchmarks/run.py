"""Run the benchmarks and write docs/benchmarks.md.

    python benchmarks/run.py --work /tmp/bench --captures ../shared/captures --mosaic ~/src/mosaic
    python benchmarks/run.py --work /tmp/bench snapshot      # one part; the page keeps the others

Peers are installed with pip, each into an environment of its own below ``--work``; generated data and results are kept
there, too. The package nvtx and nsys are needed to compare with ``nsys export``.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from job import ROOT, SOURCES
from part import Part

PAGE = ROOT / "docs" / "benchmarks.md"
PARTS = ("kineto", "snapshot", "nsys", "report")
HEAD = """\
# Benchmarks

Written by `python benchmarks/run.py --work DIR --captures CAPTURES --mosaic SOURCE`; do not edit. All on one machine,
side by side with the tools that do the same job best today, each peer in an environment of its own. Memory is resident,
summed over all processes. "goal" in the last column: the goal is reached; "yes": what is required is.

| figure | required | goal | measured | reached |
|---|---|---|---|---|"""


def page(parts: list[Part]) -> str:
    """The page."""
    rows = [claim.row() for part in parts for claim in part.claims]
    return "\n".join([HEAD, *rows, "", *[line for part in parts for line in part.lines()]]).rstrip() + "\n"


def main() -> None:
    """Measure the parts that are asked for; write the page of all that were ever measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    parser.add_argument("--work", type=Path, required=True, help="folder for data, environments and results; kept")
    parser.add_argument("--captures", type=Path, default=ROOT.parent / "shared" / "captures")
    parser.add_argument("--mosaic", type=Path, help="source tree of facebookresearch/mosaic")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--most-others",
        type=float,
        default=float("inf"),
        metavar="CPUS",
        help="repeat a run, up to three times, during which other processes used more than so many CPUs",
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="default: docs/benchmarks.md")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}")
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    options.captures = options.captures.resolve()
    options.mosaic = options.mosaic and options.mosaic.resolve()
    sys.path[:0] = SOURCES.split(os.pathsep)
    for name in options.parts or PARTS:
        __import__(name).measure(options, work).save(work / f"{name}.json")
    found = [work / f"{name}.json" for name in PARTS]
    options.page.write_text(page([Part.load(path) for path in found if path.exists()]))
    print(f"Wrote {options.page}")


if __name__ == "__main__":
    main()
