"""Write a run's report: report.pdf, a PNG for each figure, findings.json.

With --fail-on, exits 3 when that finding is confirmed or predicted, and 1 when some rank's run could not tell, for your
CI.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

from zeropeak.profile.errors import UsageError

NAME: Final = "report"
SUMMARY: Final = "write a run's report: PDF, PNGs, findings.json"
EXAMPLE: Final = "zeropeak report runs/nsys-stage3 --fail-on retained-after-release"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directory")
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="ID",
        help="exit 3 when this finding is confirmed or predicted; repeatable",
    )

    parser.add_argument(
        "--at",
        type=_seconds,
        metavar="TIME",
        help="also say what was alive at this time since the first forward began, e.g. 12.5s; --at=-0.5s lies in init",
    )


def _seconds(text: str) -> float:
    try:
        return float(text.removesuffix("s"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write e.g. 12.5s") from None


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    from zeropeak.reports.findings import IDS

    for wanted in args.fail_on:
        if wanted not in IDS:
            raise UsageError(f"--fail-on {wanted}: no such finding; one of {', '.join(IDS)}")
    verdicts: set[str] = set()
    for run_dir in args.runs:
        found = write_and_tell(run_dir, args.at)
        for wanted in dict.fromkeys(args.fail_on):
            asked = [one for one in found if one.id == wanted]
            verdicts |= {str(one.verdict) for one in asked} or {"unknown"}
            if unknown := [str(one.rank) for one in asked if one.verdict == "unknown"]:
                print(f"zeropeak: {run_dir}: {wanted} is unknown on rank {', '.join(unknown)}", file=sys.stderr)
            elif not asked:
                print(f"zeropeak: {run_dir}: {wanted} is unknown, no rank has tables", file=sys.stderr)
    if verdicts & {"confirmed", "predicted"}:
        return 3
    return 1 if "unknown" in verdicts else 0


def write_and_tell(run_dir: Path, at_s: float | None = None) -> list[Any]:
    """Write the report, print its answer, and last where the PDF is; returns the findings."""
    from zeropeak.reports import write_report

    result = write_report(run_dir, at_s=at_s)
    for line in result.answer:
        print(line)
    print(f"Wrote {run_dir / 'report' / 'report.pdf'}", flush=True)
    return list(result.findings)
