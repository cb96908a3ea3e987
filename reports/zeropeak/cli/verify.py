"""Turn the knob that a run's report advises, run again, and say whether the saving came.

Takes the surest finding that names a knob and its value. All else stays as it was: plan, tool, machine, versions.
Exits 0 when the saving came, 3 when it did not, 1 when that cannot be told.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from zeropeak.cli.model_options import add_output_options
from zeropeak.profile.errors import UsageError, ZeropeakError

if TYPE_CHECKING:
    import argparse

    from zeropeak.profile.options import Plan
    from zeropeak.reports import Run
    from zeropeak.reports.findings import Finding

NAME: Final = "verify"
SUMMARY: Final = "turn the knob that a run's report advises, run again, say whether the saving came"
EXAMPLE: Final = "zeropeak verify runs/nsys-stage3"
NOT_COME: Final = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory that zeropeak captured on this machine")
    parser.add_argument("--finding", metavar="ID", help="finding to verify (the surest one with a knob)")
    add_output_options(
        parser,
        "folder of the new run and of the comparison (runs/verify-<run>)",
        "capture again, overwrite what is there",
    )


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    from zeropeak.cli.compare import compare_and_tell, run_name
    from zeropeak.cli.gathering import Gathered, Wanted, check_folder, gather
    from zeropeak.cli.setup import need_nsys
    from zeropeak.cli.turning import check_here, check_versions, turn
    from zeropeak.profile import capture
    from zeropeak.reports.run import open_whole_run

    before = open_whole_run(args.run)
    plan = _plan(before)
    finding = _choose(before, args.finding)
    knob, value = finding.knob or "", json.dumps(finding.value)
    turned = turn(plan, knob, finding.value)
    check_here(args.run, turned)
    nsys = need_nsys(os.environ) if turned.tool == "nsys" else None
    check_versions(args.run, before.manifest.get("versions") or {}, capture.versions(nsys))
    name, setting = run_name(args.run), f"{knob.rpartition('.')[2]}={value}"
    folder = args.out or Path("runs") / f"verify-{name}"
    check_folder(folder, [name, setting], force=args.force)
    print(f"{finding.id}: running {args.run} again with {knob} {value}", flush=True)
    [after] = gather(
        [Wanted(setting, turned, folder / "after")],
        folder,
        nsys=nsys,
        disk_cap=args.disk_cap or capture.DISK_CAP,
        force=args.force,
    )
    return _tell(compare_and_tell([Gathered(name, args.run, "", complete=True), after], folder), finding)


def _plan(before: Run) -> Plan:
    """The run's own plan.

    Raises:
        ZeropeakError: it has none, or nothing of it was measured; says the way out.
    """
    from zeropeak.profile.reuse import read_plan

    measured = before.basis == "measured"
    plan = read_plan(before.path) if measured else None
    if plan is not None:
        return plan
    why = "was simulated, so there is no measurement to compare with" if not measured else (
        "no raw/plan.json (zeropeak did not capture it, or its raw files are not here), so it cannot be run again"
    )  # fmt: skip
    raise ZeropeakError(
        f"{before.path}: {why}; turn the knob in your own config, capture it before and after with `zeropeak nsys "
        "your.json`, then `zeropeak compare BEFORE AFTER`"
    )


def _choose(before: Run, wanted: str | None) -> Finding:
    """The finding whose knob is turned, surest first.

    Raises:
        UsageError: there is no such finding.
        ZeropeakError: it names no knob with a value and what it saves.
    """
    from zeropeak.reports.findings import IDS, find_all

    if wanted is not None and wanted not in IDS:
        raise UsageError(f"--finding {wanted}: no such finding; one of {', '.join(IDS)}")
    found = [one for one in find_all(before) if wanted in {None, one.id}]
    usable = [one for one in found if one.knob and one.value is not None and one.expected]
    if usable:
        return usable[0]
    what = "no finding names a knob with a value and what it saves"
    if wanted is not None:
        verdict = f" ({found[0].verdict.value.replace('_', ' ')})" if found else ""
        what = f"{wanted}{verdict} names no knob with a value and what it saves"
    raise ZeropeakError(f"{before.path}: {what}, so there is nothing to turn; `zeropeak report` says what can be done")


def _tell(comparison: Any, finding: Finding) -> int:
    from zeropeak.reports.compare.trial import Outcome

    before = comparison.sides[0]
    trial = next((one for one in comparison.trials if one.finding == finding.id and one.before is before), None)
    if trial is None or trial.outcome is Outcome.UNKNOWN:
        print(f"Whether the saving came cannot be told{f': {trial.reason}' if trial else ''}.")
        return 1
    if trial.outcome is Outcome.REFUTED:
        print("The saving did not come.")
        return NOT_COME
    print("The saving came, and more." if trial.outcome is Outcome.SUSPECTED else "The saving came.")
    return 0
