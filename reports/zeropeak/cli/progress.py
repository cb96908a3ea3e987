"""A progress bar for what takes more than two seconds; none when nobody watches."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S: Final = 2.0


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """Give a callback ``(what is done now, done, of)``; the bar appears on a terminal after :data:`PATIENCE_S`."""
    started = time.monotonic()
    bar: Any = None
    task: Any = None

    def show(name: str, done: int, total: int) -> None:
        nonlocal bar, task
        if not sys.stderr.isatty() or time.monotonic() - started < PATIENCE_S:
            return
        if bar is None:
            from rich.console import Console
            from rich.progress import Progress

            bar = Progress(console=Console(stderr=True), transient=True)
            bar.start()
            task = bar.add_task(what)
        bar.update(task, description=f"{what} {name}", completed=done, total=total)

    try:
        yield show
    finally:
        if bar is not None:
            bar.stop()
