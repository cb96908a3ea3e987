"""Set runs side by side: capture configs and compare them, or compare runs that exist.

Each RUN is a config to capture (stage2, stage3, stage3-efficient, or a path to a ds_config.json) or a run directory. A
capture is reused when its plan and versions are those asked for and it is complete. A folder that is named like a
shipped config is ./stage3.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from zeropeak.cli.model_options import add_output_options, add_training_options, options_of, plan_of
from zeropeak.profile.errors import UsageError, ZeropeakError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from zeropeak.profile.options import Plan

NAME: Final = "compare"
SUMMARY: Final = "capture configs, or take runs, and set them side by side"
EXAMPLE: Final = "zeropeak compare stage2 stage3 stage3-efficient"
_LONGEST: Final = 120
_LONGEST_NAME: Final = 60


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="config to capture, or run directory; two or more")
    parser.add_argument("--tool", choices=("nsys", "torch"), default="nsys", help="what captures the configs (nsys)")
    add_training_options(parser)
    add_output_options(
        parser,
        "folder of the comparison and of what it captures (runs/compare-<runs>)",
        "capture again what could be reused, overwrite another comparison",
    )


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    from zeropeak.cli.gathering import Gathered, Wanted, check_folder, gather
    from zeropeak.cli.setup import need_nsys
    from zeropeak.profile import capture
    from zeropeak.profile.options import Options

    if len(args.runs) < 2:
        raise UsageError(f"one run, {args.runs[0]}: name two or more, e.g. compare stage2 stage3")
    plans = [_plan(args, word) for word in args.runs]
    if not any(plans) and options_of(args, "") != Options(""):
        raise UsageError("the options say what to train, but only runs are named: name a config, or leave them out")
    labels = _labels(
        [plan.config_name if plan else run_name(Path(word)) for word, plan in zip(args.runs, plans, strict=True)]
    )
    folder = args.out or Path("runs") / f"compare-{'-'.join(labels)}"[:_LONGEST]
    check_folder(folder, labels, force=args.force)
    wanted = [
        Wanted(label, plan, folder / label, _elsewhere(args, plan, label))
        for label, plan in zip(labels, plans, strict=True)
        if plan is not None
    ]
    gathered: dict[str, Gathered] = {}
    if wanted:
        nsys = need_nsys(os.environ) if args.tool == "nsys" else None
        cap = args.disk_cap or capture.DISK_CAP
        gathered = {one.label: one for one in gather(wanted, folder, nsys=nsys, disk_cap=cap, force=args.force)}
    places = {
        label: Gathered(label, Path(word), "", complete=True) for label, word in zip(labels, args.runs, strict=True)
    }
    compare_and_tell(list({**places, **gathered}.values()), folder)
    return 0 if all(one.complete for one in gathered.values()) else 1


def compare_and_tell(gathered: Sequence[Any], folder: Path) -> Any:
    """Compare what was gathered, print what is said of it, and last where the PDF is; returns the comparison.

    Raises:
        ZeropeakError: fewer than two of them hold anything.
    """
    from zeropeak.reports.compare import Side, compare, write_comparison
    from zeropeak.reports.run import open_whole_run

    sides, left_out = [], []
    for one in gathered:
        if one.run_dir is None:
            left_out.append(f"{one.label} is left out: {one.how}.")
            continue
        side = Side(open_whole_run(one.run_dir), one.label, one.how)
        if side.ranks:
            sides.append(side)
        else:
            left_out.append(f"{one.label} is left out: it says of no rank what was allocated.")
    if len(sides) < 2:
        raise ZeropeakError(f"fewer than two runs to compare: {' '.join(left_out)}")
    print("comparing", flush=True)
    comparison = compare(sides, left_out)
    written = write_comparison(comparison, folder)
    for line in written.lines:
        print(line)
    print(f"Wrote {written.paths[0]}", flush=True)
    return comparison


def _plan(args: argparse.Namespace, word: str) -> Plan | None:
    """The plan of a config; None for a run directory."""
    from zeropeak.profile.ds_config import shipped_names

    if word in shipped_names() or Path(word).is_file():
        return plan_of(args, args.tool, word)
    if not Path(word).is_dir():
        raise UsageError(
            f"{word}: neither one of {', '.join(shipped_names())} nor a ds_config.json nor a run directory"
        )
    return None


def run_name(run_dir: Path) -> str:
    """A run's name in its manifest, else its folder's; fit for a file's name."""
    from zeropeak.reports import open_run

    return re.sub(r"[^\w.=-]+", "-", open_run(run_dir).name)[:_LONGEST_NAME] or "run"


def _labels(names: Sequence[str]) -> list[str]:
    """Unique labels.

    >>> _labels(["stage3", "stage2", "stage3"])
    ['stage3', 'stage2', 'stage3-2']
    """
    labels: list[str] = []
    for name in names:
        number = 1
        label = name
        while label in labels:
            number += 1
            label = f"{name}-{number}"
        labels.append(label)
    return labels


def _elsewhere(args: argparse.Namespace, plan: Plan, label: str) -> Path | None:
    """Where the capture verb puts such a run; none for a config that is named again, to see what differs by itself."""
    return Path("runs") / f"{args.tool}-{plan.config_name}" if label == plan.config_name else None
