"""Capture, parse and report in one go: what the verbs that run a model do."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from zeropeak.cli.model_options import describe
from zeropeak.cli.progress import progress_bar
from zeropeak.cli.report import write_and_tell

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

    from zeropeak.profile.capture import Captured
    from zeropeak.profile.nsys_find import Nsys
    from zeropeak.profile.options import Plan
    from zeropeak.profile.script_plan import ScriptPlan


def capture_and_report(
    args: argparse.Namespace, plan: Plan | ScriptPlan, run_dir: Path, *, find_nsys: Callable[[], Nsys] | None
) -> int:
    """Run the plan into ``run_dir``, then parse and report whatever it left; returns the exit code."""
    from zeropeak.profile import capture
    from zeropeak.profile.labels import Status

    end_in_order()
    cap = args.disk_cap or capture.DISK_CAP
    capture.check_target(run_dir, force=args.force)
    capture.check_room(plan, run_dir, cap)
    say(describe(plan))
    captured = capture_run(plan, run_dir, nsys=find_nsys() if find_nsys is not None else None, disk_cap=cap)
    parse(run_dir)
    say("writing the report")
    write_and_tell(run_dir)
    if captured.status is Status.INTERRUPTED:
        return 130
    return 0 if captured.status is Status.COMPLETE else 1


def capture_run(plan: Plan | ScriptPlan, run_dir: Path, *, nsys: Nsys | None, disk_cap: int) -> Captured:
    """Run the plan into ``run_dir``, in place of what is there, and say how it ended."""
    from zeropeak.profile import capture

    capture.prepare(run_dir)
    captured = capture.run(
        plan,
        run_dir,
        command=["zeropeak", *sys.argv[1:]],
        nsys=nsys,
        say=say,
        environ=os.environ,
        disk_cap=disk_cap,
    )
    say(f"{captured.status} after {captured.seconds:.0f} s, {captured.size_bytes / 2**20:,.1f} MiB on disk")
    if captured.failure is not None:
        rank = "" if captured.failure["rank"] is None else f"rank {captured.failure['rank']}: "
        say(f"{rank}{captured.failure['message']} (see {run_dir / 'raw' / 'train.log'})")
    return captured


def parse(run_dir: Path) -> None:
    """Make a run's tables, and show that."""
    from zeropeak.parse.pipeline import parse_run

    say("parsing")
    with progress_bar("parsing") as show:
        parse_run(run_dir, progress=show)


def end_in_order() -> None:
    """A scheduler's SIGTERM and a closed terminal's SIGHUP end a capture as Ctrl-C does, unless they are ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def say(message: str) -> None:
    """A line of progress."""
    print(message, flush=True)
