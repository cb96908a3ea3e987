"""The runs that a comparison needs: reused where one is what was asked for, captured where none is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from zeropeak.cli.capturing import capture_run, end_in_order, parse, say
from zeropeak.cli.model_options import describe
from zeropeak.profile.errors import UsageError, ZeropeakError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from zeropeak.profile.nsys_find import Nsys
    from zeropeak.profile.options import Plan

REPORT: Final = "report"


@dataclass(frozen=True)
class Wanted:
    """A run that is to be had.

    Attributes:
        run_dir: where it goes when it is captured.
        elsewhere: a run directory that may hold it already.
    """

    label: str
    plan: Plan
    run_dir: Path
    elsewhere: Path | None = None


@dataclass(frozen=True)
class Gathered:
    """What became of it.

    Attributes:
        run_dir: the run; None when there is none.
        how: "reused ..." or "captured, ...", or why there is none.
        complete: whether the run went through.
    """

    label: str
    run_dir: Path | None
    how: str
    complete: bool


def check_folder(folder: Path, labels: Sequence[str], *, force: bool) -> None:
    """Raise UsageError when a comparison must not be written into ``folder``. Changes nothing."""
    from zeropeak.profile import manifest

    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder}: is a file; choose another --out")
    others = [one.name for one in folder.iterdir() if one.name != REPORT and not manifest.is_run(one)]
    if others or manifest.is_run(folder):
        what = "is a run" if manifest.is_run(folder) else f"holds {others[0]}, which is not of a comparison"
        raise UsageError(f"{folder}: {what}; choose another --out")
    written = folder / REPORT / "comparison.json"
    if (folder / REPORT).exists() and not written.is_file():
        raise UsageError(f"{folder / REPORT}: is not of a comparison; choose another --out")
    before = _labels(written) if written.is_file() else []
    # A report of some of the runs was written when the others could not be captured.
    if written.is_file() and not force and before != [label for label in labels if label in before]:
        raise UsageError(
            f"{folder}: compares {', '.join(before) or 'other runs'}; --force overwrites its report, --out chooses "
            "another folder"
        )


def gather(wanted: Sequence[Wanted], folder: Path, *, nsys: Nsys | None, disk_cap: int, force: bool) -> list[Gathered]:
    """Have every run; a capture that fails does not keep the others from being made.

    Args:
        wanted: runs, in order.
        folder: that holds the captures; all of them together stay below ``disk_cap`` bytes.
        nsys: for plans of the tool nsys.
        disk_cap: bytes.
        force: capture again what is there.

    Raises:
        UsageError: a complete run of something else is in the place of one that is wanted.
        KeyboardInterrupt: a capture was interrupted; the runs after it are not made.
    """
    from zeropeak.profile import capture

    end_in_order()
    have = capture.versions(nsys)
    found = {one.label: _reusable(one, have, force=force) for one in wanted}
    missing = [one for one in wanted if found[one.label] is None]
    room = disk_cap
    for one in missing:
        expected, _ = capture.check_room(one.plan, one.run_dir, room)
        room = max(room - expected, 1)
    gathered = []
    for one in wanted:
        run_dir = found[one.label]
        if run_dir is not None:
            say(f"{one.label}: reusing {run_dir} (complete, same plan, same versions)")
            parse(run_dir)
            name = "" if run_dir == one.run_dir else f" {run_dir.name}"
            gathered.append(Gathered(one.label, run_dir, f"reused{name}, captured before", complete=True))
        else:
            gathered.append(_capture(one, folder, nsys=nsys, disk_cap=disk_cap))
    return gathered


def _reusable(one: Wanted, versions: Mapping[str, str | None], *, force: bool) -> Path | None:
    """The run directory that can stand for the capture; says why one that is there cannot."""
    from zeropeak.profile import capture, manifest, reuse
    from zeropeak.profile.labels import Status

    if force:
        capture.check_target(one.run_dir, force=True)
        return None
    for place in (one.run_dir, one.elsewhere):
        if place is None or not manifest.is_run(place):
            continue
        reason = reuse.why_not(place, one.plan, versions)
        if reason is None:
            return place
        if place == one.run_dir and _status(place) == Status.COMPLETE:
            raise UsageError(
                f"{place}: not what is asked for ({reason}); --force captures all again, --out chooses another folder"
            )
        say(f"{one.label}: not reusing {place}: {reason}")
    if not manifest.is_run(one.run_dir):
        capture.check_target(one.run_dir, force=False)
    return None


def _status(run_dir: Path) -> str:
    return str(json.loads((run_dir / "run.json").read_text(encoding="utf-8")).get("status"))


def _capture(one: Wanted, folder: Path, *, nsys: Nsys | None, disk_cap: int) -> Gathered:
    from zeropeak.profile import capture
    from zeropeak.profile.labels import Status

    say(f"{one.label}: {describe(one.plan)}")
    used = capture.folder_bytes(folder) - capture.folder_bytes(one.run_dir)
    try:
        captured = capture_run(one.plan, one.run_dir, nsys=nsys, disk_cap=max(disk_cap - used, 1))
    except UsageError:
        raise
    except ZeropeakError as problem:  # the others are still worth comparing
        say(f"{one.label}: not captured: {problem}")
        return Gathered(one.label, None, f"not captured: {problem}", complete=False)
    if captured.status is Status.INTERRUPTED:
        say(f"{one.label}: interrupted; the same command goes on from here and reuses the runs that are complete")
        raise KeyboardInterrupt
    parse(one.run_dir)
    complete = captured.status is Status.COMPLETE
    ended = "captured" if complete else f"captured, but ended as {captured.status.value.replace('_', ' ')}"
    return Gathered(one.label, one.run_dir, ended, complete)


def _labels(written: Path) -> list[str]:
    try:
        runs = json.loads(written.read_text(encoding="utf-8"))["runs"]
        return [str(run["label"]) for run in runs]
    except (OSError, ValueError, KeyError, TypeError):
        return []
