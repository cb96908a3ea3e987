"""The processes of a capture: started apart from the terminal, found by a mark in their environment, all ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

UMASK: Final = "ZEROPEAK_UMASK"
"""Environment variable with the user's umask, octal: nsys starts its program with none, and every file of the run
would be writable by everybody."""

OWNER: Final = "ZEROPEAK_OWNER"
"""Environment variable with the process id of the command that started the capture: ranks stop when it is gone."""

MARK: Final = "ZEROPEAK_CAPTURE"
"""Environment variable whose value names the capture that a process belongs to; it survives daemons' double forks."""

GRACE_S: Final = 45.0
"""How long interrupted ranks may take to close their captures before they are killed."""


class Capture:
    """One command and everything it starts.

    The command runs in a session of its own, so Ctrl-C in the terminal reaches us alone; we pass it on to the ranks,
    whose captures then close in order, and nsys finishes by itself. Leaving the context ends whatever is left.

    Args:
        command: program and arguments.
        environ: environment; the mark is added, and what names a rank of another job is left out.
        mark: unique text.
        log: file that gets everything the processes print, straight from them: nothing waits for us to read it.
        show: called with each line that starts with ``zeropeak: ``, without that prefix.
    """

    def __init__(
        self, command: list[str], environ: Mapping[str, str], mark: str, log: Path, show: Callable[[str], None]
    ) -> None:
        self._mark = mark
        self._show = show
        own = {name: value for name, value in environ.items() if name not in _OTHER_JOBS}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env={**own, MARK: mark, UMASK: f"{_umask():o}", OWNER: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._log = log.open(errors="replace")
        self._line = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while True:
            try:
                self.end()
                break
            except KeyboardInterrupt:  # nobody's impatience leaves a process behind
                continue
        self._log.close()

    def wait(self, check: Callable[[], str | None]) -> tuple[int, str | None]:
        """Wait for the command; end everything when ``check`` gives a reason or Ctrl-C comes.

        Returns:
            The command's exit status, and why it was interrupted (None when it ended by itself).
        """
        reason: str | None = None
        try:
            while self._process.poll() is None and reason is None:
                time.sleep(0.2)
                self._show_new()
                reason = check()
        except KeyboardInterrupt:
            reason = "interrupted"
        try:
            if reason is not None:
                deadline = time.monotonic() + GRACE_S
                asked: set[int] = set()
                while self._process.poll() is None and time.monotonic() < deadline:
                    self._interrupt(asked)  # again and again: a rank may only be about to start
                    time.sleep(0.5)
            self.end()
        except KeyboardInterrupt:  # a second Ctrl-C: do not wait
            reason = "interrupted"
            self.end()
        self._show_new()
        return self._process.returncode, reason

    def _interrupt(self, asked: set[int]) -> None:
        """Ask every rank that was not asked yet to stop."""
        for process in self._marked():
            if process.pid not in asked and _is_rank(process):
                asked.add(process.pid)
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

    def _show_new(self) -> None:
        """Show what the ranks said to the user since the last call; a line that is not whole yet waits."""
        for piece in self._log.read().splitlines(keepends=True):
            self._line += piece
            if self._line.endswith("\n"):
                line, self._line = self._line.rstrip(), ""
                if line.startswith("zeropeak: "):
                    self._show(line.removeprefix("zeropeak: "))


_OTHER_JOBS: Final = frozenset(
    ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
)
"""A scheduler may have set these for us; RANK is how we tell a rank from its launcher."""


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _is_rank(process: Any) -> bool:
    psutil = import_module("psutil")
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    if "zeropeak.profile.simulate" in command:
        return True
    # The launcher has the same words on its command line; only a rank has a number.
    return "zeropeak.profile.train" in command and "RANK" in _environ(process)


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
