"""What the process of a rank does beside training: begins as planned, ends in order, says how it ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

from zeropeak.profile.errors import ZeropeakError
from zeropeak.profile.guard import warn
from zeropeak.profile.labels import Status
from zeropeak.profile.privacy import without_folders
from zeropeak.profile.processes import OWNER, UMASK

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def begin() -> None:
    """Take the user's umask; from here on SIGTERM, SIGINT and an abandoned process end this one in order."""
    os.umask(int(os.environ.get(UMASK, "022"), 8))
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    _stop_when_abandoned()


class Ending:
    """How the work in its ``with`` block ended: nothing that ends it in order is raised again.

    Attributes:
        status: ``failed`` until the block is done.
        error: one line; None when there was none.
    """

    def __init__(self) -> None:
        self.status = Status.FAILED
        self.error: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool:
        # Whoever ends us has decided: a second signal must not cut what is being written.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if problem is None:
            self.status = Status.COMPLETE
        elif isinstance(problem, KeyboardInterrupt):
            self.status, self.error = Status.INTERRUPTED, "interrupted"
        elif isinstance(problem, Exception):
            # The run's end is recorded, then the rank fails with it.
            self.status = Status.OUT_OF_MEMORY if _is_out_of_memory(problem) else Status.FAILED
            self.error = _one_line(problem)
            traceback.print_exception(problem)
        else:
            return False
        return True

    @property
    def exit_code(self) -> int:
        """Exit status of the process."""
        return 0 if self.status is Status.COMPLETE else 1


def end_with(main: Callable[[Path], int]) -> NoReturn:
    """Run a rank's ``main`` on the folder that the command line names, and exit as it says."""
    try:
        # What is trained may change the current folder.
        sys.exit(main(Path(sys.argv[1]).resolve()))
    except ZeropeakError as problem:
        warn(str(problem))
        sys.exit(problem.exit_code)


def _is_out_of_memory(problem: Exception) -> bool:
    import torch

    return isinstance(problem, torch.OutOfMemoryError)


def _stop_when_abandoned() -> None:
    """End in order, as by Ctrl-C, when the command or the launcher that started us was killed."""
    owner, parent = os.environ.get(OWNER), os.getppid()

    def watch() -> None:
        while os.getppid() == parent and (owner is None or Path(f"/proc/{owner}").exists()):
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    if Path("/proc/self").exists():
        threading.Thread(target=watch, daemon=True, name="zeropeak-watch").start()


def _one_line(problem: Exception) -> str:
    """The error as one line; a bare assertion says where it stands."""
    if isinstance(problem, ZeropeakError):
        return without_folders(str(problem))
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    if lines:
        # A validation error names the key on its second line.
        return without_folders(f"{type(problem).__name__}: {'; '.join(lines[:3])}")
    place = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{type(problem).__name__} in {place.name} ({'/'.join(Path(place.filename).parts[-2:])}:{place.lineno})"


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
