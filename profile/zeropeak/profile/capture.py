"""A capture from start to end: run directory, command, watching, status, Nsight's export."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from zeropeak.profile import manifest
from zeropeak.profile.errors import UsageError, ZeropeakError
from zeropeak.profile.hangs import hung_rank
from zeropeak.profile.labels import Status
from zeropeak.profile.processes import Capture
from zeropeak.profile.version import PACKAGES, installed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zeropeak.profile.nsys_find import Nsys
    from zeropeak.profile.options import Plan
    from zeropeak.profile.script_plan import ScriptPlan

DISK_CAP: Final = 50 * 2**30
"""Default cap on a run directory; less when the disk has less."""


@dataclass(frozen=True)
class Captured:
    """How a capture ended."""

    run_dir: Path
    status: Status
    failure: dict[str, Any] | None
    seconds: float
    size_bytes: int


def check_target(run_dir: Path, *, force: bool) -> None:
    """Raise UsageError when ``run_dir`` is something that must not be overwritten. Changes nothing."""
    if not run_dir.exists() or (run_dir.is_dir() and not any(run_dir.iterdir())):
        return
    if not manifest.is_run(run_dir):
        raise UsageError(f"{run_dir}: exists and is not a run directory; choose another --out")
    if not force:
        raise UsageError(f"{run_dir}: exists; --force overwrites it, --out chooses another folder")


def check_room(plan: Plan | ScriptPlan, run_dir: Path, disk_cap: int) -> tuple[int, int]:
    """Expected size of the capture, and the size at which it is stopped, in bytes.

    Raises:
        ZeropeakError: the one is more than the other.
    """
    place = next(folder for folder in (run_dir.absolute(), *run_dir.absolute().parents) if folder.exists())
    cap = min(disk_cap, int(shutil.disk_usage(place).free * 0.9))
    expected = plan.expected_bytes
    if expected > cap:
        raise ZeropeakError(
            f"{run_dir}: the capture needs about {_mib(expected)} and may take {_mib(cap)}; fewer --steps, another "
            "--out, or a larger --disk-cap"
        )
    return expected, cap


def prepare(run_dir: Path) -> None:
    """Make an empty run directory in place of what is there (see :func:`check_target`).

    Raises:
        ZeropeakError: it cannot be made.
    """
    try:
        if run_dir.exists():
            shutil.rmtree(run_dir)
        (run_dir / "raw").mkdir(parents=True)
    except OSError as problem:
        raise ZeropeakError(f"{run_dir}: cannot be made: {problem.strerror}; choose another --out") from None


def run(
    plan: Plan | ScriptPlan,
    run_dir: Path,
    *,
    command: list[str],
    nsys: Nsys | None,
    say: Callable[[str], None],
    environ: Mapping[str, str],
    disk_cap: int = DISK_CAP,
) -> Captured:
    """Train under the plan's tool; the run directory is readable whatever happens.

    Args:
        plan: resolved plan.
        run_dir: empty run directory from :func:`prepare`.
        command: what the user typed, for the manifest.
        nsys: for tool ``nsys``.
        say: shows a line to the user.
        environ: environment of the processes.
        disk_cap: bytes at which the capture is stopped.
    """
    raw = run_dir / "raw"
    plan.save(raw / plan.FILE)
    values = manifest.new(run_dir.name, time.time_ns(), command, plan, versions(nsys))
    expected, cap = check_room(plan, run_dir, disk_cap)
    values["disk"] = {"expected_bytes": expected, "actual_bytes": None, "cap_bytes": cap}
    manifest.write(run_dir, values)
    started = time.monotonic()
    status: Status = Status.INTERRUPTED
    failure: dict[str, Any] | None = _failure(None, "interrupt", "interrupted", 130)
    try:
        say(f"expecting about {_mib(expected)} in {run_dir}, stopping at {_mib(cap)}")
        code, reason = _train(plan, run_dir, nsys, say, environ, values["notes"], cap)
        status, failure = _verdict(raw, plan, code, reason)
    finally:
        size = folder_bytes(run_dir)
        values["disk"]["actual_bytes"] = size
        manifest.update(
            run_dir,
            status=status.value,
            failure=failure,
            disk=values["disk"],
            notes=values["notes"],
            **_built(raw, values["model"]),
            **({"simulation": _rank_info(raw, 0).get("simulation")} if plan.device == "simulated" else {}),
        )
    return Captured(run_dir, status, failure, time.monotonic() - started, size)


def _train(
    plan: Plan | ScriptPlan,
    run_dir: Path,
    nsys: Nsys | None,
    say: Callable[[str], None],
    environ: Mapping[str, str],
    notes: list[str],
    cap: int,
) -> tuple[int, str | None]:
    def over_cap() -> str | None:
        return "disk_cap" if folder_bytes(run_dir) > cap else None

    # nsys leaves recordings, program output and world-writable folders in the temporary folder: it gets its own.
    with tempfile.TemporaryDirectory(prefix="zeropeak-", ignore_cleanup_errors=True) as temporary:
        log = run_dir / "raw" / "train.log"
        for again in (True, False):
            with Capture(
                _command(plan, run_dir, nsys),
                {**environ, **_threads(plan, environ), "TMPDIR": temporary},
                mark=uuid.uuid4().hex,
                log=log,
                show=say,
            ) as capture:
                code, reason = capture.wait(over_cap)
            if not (again and reason is None and nsys_lost_its_agent(log, code, _has_ranks(run_dir))):
                break
            say("nsys could not start beside another nsys that was just ending; starting it once more")
        if nsys is not None:
            say("exporting the Nsight Systems report")
            notes += _export(nsys, run_dir / "raw", Path(temporary))
    for note in notes:
        say(note)
    return code, reason


def nsys_lost_its_agent(log: Path, code: int, has_ranks: bool) -> bool:
    """Whether nsys failed before any rank began, since another nsys of this user ended and took their agent with it.

    Args:
        log: what was printed.
        code: exit status.
        has_ranks: a rank has written something.
    """
    return code != 0 and not has_ranks and "sem_open" in log.read_text(errors="replace")


def _has_ranks(run_dir: Path) -> bool:
    return any((run_dir / "raw").glob("rank-*"))


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder; files that vanish meanwhile count as none."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.lstat().st_size
    return total


def _command(plan: Plan | ScriptPlan, run_dir: Path, nsys: Nsys | None) -> list[str]:
    if plan.device == "simulated":
        return [sys.executable, "-m", "zeropeak.profile.simulate", str(run_dir)]
    train = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={plan.processes}",
        "-m",
        "zeropeak.profile.train",
        str(run_dir),
    ]
    if nsys is None:
        return train
    from zeropeak.profile.nsys_find import profile_args

    return [*profile_args(nsys, run_dir / "raw" / "node-0", cuda=plan.device == "cuda"), *train]


def _threads(plan: Plan | ScriptPlan, environ: Mapping[str, str]) -> dict[str, str]:
    """One rank's share of the cores, unless the user has decided; PyTorch else takes all cores in every rank."""
    if "OMP_NUM_THREADS" in environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // plan.processes))}


def _export(nsys: Nsys, raw: Path, temporary: Path) -> list[str]:
    """Export Nsight's report; when that fails the rest of the run is still read, and a note says so."""
    from zeropeak.profile.nsys_export import to_sqlite

    try:
        to_sqlite(nsys, raw / "node-0", temporary=temporary)
        (raw / "node-0.nsys-rep").chmod(0o600)  # it holds the environment of the ranks, tokens included
    except ZeropeakError as problem:
        return [f"no Nsight Systems data: {problem}"]
    return []


def _verdict(raw: Path, plan: Plan | ScriptPlan, code: int, reason: str | None) -> tuple[Status, dict[str, Any] | None]:
    ends = {rank: _rank_info(raw, rank) for rank in range(plan.processes)}
    if reason == "interrupted":
        return Status.INTERRUPTED, _failure(None, "interrupt", "interrupted", code)
    if reason is not None:
        return Status.FAILED, _failure(None, reason, "stopped: the disk cap was reached", code)
    if code == 0 and all(end.get("ended") == Status.COMPLETE.value for end in ends.values()):
        return Status.COMPLETE, None
    for rank, end in ends.items():
        if end.get("ended") == Status.OUT_OF_MEMORY.value:
            return Status.OUT_OF_MEMORY, _failure(rank, "out_of_memory", end.get("error"), code)
    log = raw / "train.log"
    printed = log.read_text(errors="replace") if log.is_file() else ""
    if (hung := hung_rank(ends, printed)) is not None:
        return Status.FAILED, _failure(hung[0], "hang", hung[1], code)
    first = _first_failure(printed)
    exit_code = first[1] if first is not None else code
    unfinished = [one for one, end in ends.items() if end.get("ended") != Status.COMPLETE.value]
    culprit = first[0] if first is not None else unfinished[0] if unfinished else None
    error = ends[culprit].get("error") if culprit is not None else None
    if exit_code < 0 and plan.device == "simulated":
        why = f"the prediction was killed by signal {-exit_code}"
        if exit_code == -9:
            why += ": this machine has too little memory for it, even without weights; predict on a larger one"
        return Status.FAILED, _failure(0, "signal", why, exit_code)
    if first is None and exit_code < 0:
        return Status.FAILED, _failure(None, "signal", f"the launcher was killed by signal {-exit_code}", exit_code)
    if exit_code < 0:
        return Status.FAILED, _failure(culprit, "signal", f"killed by signal {-exit_code}", exit_code)
    return Status.FAILED, _failure(culprit, "exception", error or _last_error(printed) or _silent(exit_code), exit_code)


def _failure(rank: int | None, kind: str, message: str | None, code: int) -> dict[str, Any]:
    return {"rank": rank, "kind": kind, "message": message, "exit_code": code}


def _rank_info(raw: Path, rank: int) -> dict[str, Any]:
    path = raw / f"rank-{rank}" / "rank.json"
    info: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return info


_ROOT_CAUSE: Final = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)


def _first_failure(printed: str) -> tuple[int, int] | None:
    """(rank, exit status) of the first rank that failed, as torch.distributed.run prints it."""
    found = _ROOT_CAUSE.search(printed)
    return (int(found[1]), int(found[2])) if found else None


def _last_error(printed: str) -> str | None:
    """Last printed line that names an error, when no rank came far enough to say it itself."""
    named = [
        line.strip()
        for line in printed.splitlines()
        if re.search(r"^(\w+\.)*\w*(Error|Exception)\b|^zeropeak: (?!step |the script )", line.strip())
    ]
    return named[-1] if named else None


def _silent(exit_code: int) -> str:
    return f"it ended with exit status {exit_code} and no message, without closing its capture"


def _built(raw: Path, planned: dict[str, Any]) -> dict[str, Any]:
    """Keys of ``run.json`` that only rank 0 knew: what was built, and all that a script decided."""
    info = _rank_info(raw, 0)
    decided: dict[str, Any] = info.get("script") or {}
    model = {
        **planned,
        **(decided.get("model") or {}),
        "class": info.get("model_class"),
        "parameters": info.get("parameters"),
        "trainable_parameters": info.get("trainable_parameters"),
    }
    return {**decided, "model": model}


def versions(nsys: Nsys | None) -> dict[str, str | None]:
    """Versions that a capture has here, by package, and of nsys; None for what is not there."""
    return {**installed(*PACKAGES), "nsys": nsys.version if nsys is not None else None}


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB" if size < 10 * 2**30 else f"{size / 2**30:,.0f} GiB"
