"""Whatever a capture starts is ended, daemons included; on plain scripts instead of ranks."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from zeropeak.profile.capture import nsys_lost_its_agent
from zeropeak.profile.processes import MARK, Capture

if TYPE_CHECKING:
    from pathlib import Path

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
print("zeropeak: shown", flush=True)
print("not shown", flush=True)
print("zeropeak: rank is", os.environ.get("RANK"), flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(7)
"""


def marked(mark: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def start(tmp_path: Path, mark: str, seconds: float, lines: list[str]) -> Capture:
    command = [sys.executable, "-c", DAEMON, str(seconds)]
    return Capture(command, {**os.environ, "RANK": "3"}, mark, tmp_path / "log", lines.append)


def test_a_command_that_ends_leaves_no_daemon_and_its_lines_are_shown(tmp_path: Path) -> None:
    lines: list[str] = []
    with start(tmp_path, "mark-ends", 0.5, lines) as capture:
        code, reason = capture.wait(lambda: None)
    assert (code, reason) == (7, None)
    assert lines == ["shown", "rank is None"], "another job's RANK must not reach the ranks"
    assert "not shown" in (tmp_path / "log").read_text()
    assert marked("mark-ends") == []


def test_a_reached_cap_ends_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zeropeak.profile.processes.GRACE_S", 0.5)
    with start(tmp_path, "mark-cap", 600, []) as capture:
        _, reason = capture.wait(lambda: "disk_cap")
    assert reason == "disk_cap"
    assert marked("mark-cap") == []


def test_an_error_of_ours_ends_everything(tmp_path: Path) -> None:
    def fails() -> None:
        raise RuntimeError("ours")

    capture = start(tmp_path, "mark-error", 600, [])
    time.sleep(0.3)
    with pytest.raises(RuntimeError, match="ours"), capture:
        capture.wait(fails)
    assert marked("mark-error") == []


@pytest.mark.parametrize(
    ("code", "has_ranks", "printed", "lost"),
    [
        (1, False, "SystemException ... sem_open", True),
        (1, True, "SystemException ... sem_open", False),
        (0, False, "sem_open", False),
        (1, False, "ValueError: bad config", False),
    ],
)
def test_nsys_is_started_again_only_when_another_nsys_took_its_agent(
    tmp_path: Path, code: int, has_ranks: bool, printed: str, lost: bool
) -> None:
    log = tmp_path / "train.log"
    log.write_text(printed)
    assert nsys_lost_its_agent(log, code, has_ranks) is lost
