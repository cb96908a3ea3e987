"""Scanning a trace in other processes, several parts of it at once, while this one imports numpy and pyarrow.

Light processes are started, not forked: that works whatever threads this process has. Every part but the first goes to
a file until the part before it has arrived at where it began, which proves that it began between two events.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from zeropeak.parse.kineto_part import DEFAULTS, WHOLE, Limits, Part
from zeropeak.profile.errors import TraceError, ZeropeakError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

    from zeropeak.parse.kineto_scan import Begin, Progress, Scan, Take

PART_BYTES: Final = 24 << 20
"""Text for which another process is worth its start."""

MAX_GZIP_RATIO: Final = 100


class Workers:
    """Processes that scan one trace: started at once, then called instead of :func:`zeropeak.parse.kineto_scan.scan`.

    Use as a context manager: leaving it stops what still runs.

    Args:
        path: the trace.
        processes: at most so many; fewer for a short file or one that cannot be divided.
        limits: what the file may be.
    """

    def __init__(self, path: Path, processes: int | None = None, limits: Limits = DEFAULTS) -> None:
        self.path, self.limits = path, limits
        self._running: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        for part in parts(path, processes or os.cpu_count() or 1):
            output = _temporary() if part.begin else None
            call = (f"import sys; sys.path[:] = {sys.path!r}; from zeropeak.parse.kineto_worker import main; "
                    f"main({str(path)!r}, {part.begin}, {part.stop}, {limits.max_bytes}, {limits.max_ratio})")
            process = subprocess.Popen(
                [sys.executable, "-S", "-c", call], stdin=subprocess.DEVNULL, stdout=output or subprocess.PIPE
            )
            self._running.append((process, output or process.stdout))  # type: ignore[arg-type]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the processes that still run."""
        for process, output in self._running:
            process.kill()
            process.wait()
            output.close()
        self._running = []

    def __call__(
        self,
        path: Path,
        begin: Begin,
        take: Take,
        limits: Limits = DEFAULTS,
        progress: Progress | None = None,
        part: Part = WHOLE,
    ) -> Scan:
        """What ``scan`` does; path and limits must be the ones that the processes were started with."""
        if (path, limits, part) != (self.path, self.limits, WHOLE):
            raise ValueError("the processes were started for another file, limit or part")
        from zeropeak.parse.kineto_scan import Scan  # not above: it would delay the start of the processes

        done = Scan(met=True)
        for process, output in self._running:
            if not done.met:
                break  # the part before went on to the end, so this one began within an event
            if process.stdout is None:
                process.wait()
                output.seek(0)
            found: Scan | None = None
            for what, value in _messages(output):
                if what == "packet":
                    take(value)
                elif what == "begin":
                    begin(value)
                elif what == "progress" and progress:
                    progress(*value)
                elif what == "refused":
                    raise TraceError(path, value)
                elif what == "end":
                    found = value
            if found is None:
                raise ZeropeakError(f"{path}: a process that scanned it ended with status {process.wait()}; with "
                                    "little memory, parse files one by one")
            done.metadata.update(found.metadata)
            done.counts.update(found.counts)
            done.pids |= found.pids
            done.partial, done.problem, done.met = found.partial, found.problem, found.met
        self.close()
        return done


def parts(path: Path, processes: int) -> list[Part]:
    """Parts of a trace of about the same length, at most ``processes``.

    A gzip file says how long its text is; xz and zstd files are not divided, nor are bare lists of events.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(4096)
        if head.startswith(b"\x1f\x8b") and size > 18:
            file.seek(-4, os.SEEK_END)
            text = int.from_bytes(file.read(4), "little")
            length = text if size < text < MAX_GZIP_RATIO * size else 0
        else:
            length = size if head.lstrip().startswith(b"{") else 0
    count = max(1, min(processes, length // PART_BYTES))
    cuts: list[int | None] = [length * index // count for index in range(count)]
    return [Part(begin or 0, stop) for begin, stop in zip(cuts, [*cuts[1:], None], strict=True)]


def _temporary() -> IO[bytes]:
    import tempfile  # not above: the first process is at work while this is imported

    return tempfile.TemporaryFile()


def _messages(file: IO[bytes]) -> Iterator[tuple[str, Any]]:
    while True:
        try:
            yield pickle.load(file)
        except EOFError:
            return
