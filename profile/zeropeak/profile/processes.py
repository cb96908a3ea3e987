"""The processes of a capture: started apart from the terminal, found by a mark in their environment, all ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

UMASK: Final = "ZEROPEAK_UMASK"
"""Environment variable with the user's umask, octal: nsys starts its program with none, and every file of the run
would be writable by everybody."""

MARK: Final = "ZEROPEAK_CAPTURE"
"""Environment variable whose value names the capture that a process belongs to; it survives daemons' double forks."""

GRACE_S: Final = 45.0
"""How long interrupted ranks may take to close their captures before they are killed."""


class Capture:
    """One command and everything it starts.

    The command runs in a session of its own, so Ctrl-C in the terminal reaches us alone; we pass it on to the ranks,
    whose captures then close in order, and nsys finishes by itself.

    Args:
        command: program and arguments.
        environ: environment; the mark is added.
        mark: unique text.
        log: file that gets everything the processes print.
        show: called with each line that starts with ``zeropeak: ``, without that prefix.
    """

    def __init__(
        self, command: list[str], environ: Mapping[str, str], mark: str, log: Path, show: Callable[[str], None]
    ) -> None:
        self._mark = mark
        self._log = log
        self._show = show
        self._process = subprocess.Popen(
            command,
            env={**environ, MARK: mark, UMASK: f"{_umask():o}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            errors="replace",
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait(self, check: Callable[[], str | None]) -> tuple[int, str | None]:
        """Wait for the command; end everything when ``check`` gives a reason or Ctrl-C comes.

        Returns:
            The command's exit status, and why it was interrupted (None when it ended by itself).
        """
        reason: str | None = None
        try:
            while self._process.poll() is None and reason is None:
                time.sleep(0.2)
                reason = check()
        except KeyboardInterrupt:
            reason = "interrupted"
        try:
            if reason is not None:
                self.interrupt()
                deadline = time.monotonic() + GRACE_S
                while self._process.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.2)
        except KeyboardInterrupt:  # a second Ctrl-C: do not wait
            reason = "interrupted"
        self.end()
        self._reader.join(5)
        return self._process.returncode, reason

    def interrupt(self) -> None:
        """Ask every rank to stop."""
        for process in self._marked():
            if "RANK" in _environ(process) and _is_rank(process):
                _signal(process, signal.SIGINT)

    def end(self) -> None:
        """End whatever is left, nsys's agent included."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            left = self._marked()
            if not left:
                break
            for process in left:
                _signal(process, number)
            import_module("psutil").wait_procs(left, timeout=10)
        self._process.wait()

    def _marked(self) -> list[Any]:
        psutil = import_module("psutil")
        return [
            process
            for process in psutil.process_iter()
            if process.pid != os.getpid() and _environ(process).get(MARK) == self._mark and _alive(process)
        ]

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._log.open("w") as log:
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                if line.startswith("zeropeak: "):
                    self._show(line.removeprefix("zeropeak: ").rstrip())


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _is_rank(process: Any) -> bool:
    psutil = import_module("psutil")
    try:
        return "zeropeak.profile.train" in process.cmdline()
    except psutil.Error:
        return False


def _environ(process: Any) -> dict[str, str]:
    psutil = import_module("psutil")
    try:
        environ: dict[str, str] = process.environ()
    except (psutil.Error, OSError):
        return {}
    return environ


def _alive(process: Any) -> bool:
    psutil = import_module("psutil")
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _signal(process: Any, number: int) -> None:
    psutil = import_module("psutil")
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)
