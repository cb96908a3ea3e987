"""Scanning a trace in several processes, the others at work while this one still imports numpy and pyarrow.

Light processes are started, not forked: that works whatever threads this process has. Each scans a part of the file to
a temporary file, the last part is scanned here. The rows of a part count once the part before has arrived at where it
began, which proves that it began between two events; else the part before has gone on to the end of the file.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Final

from zeropeak.parse.kineto.part import DEFAULTS, WHOLE, Limits, Part
from zeropeak.profile.errors import TraceError, ZeropeakError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

    from zeropeak.parse.kineto.scan import Begin, Progress, Scan, Take

START_BYTES: Final = 12 << 20
"""Text that is scanned in the time that a process takes to start: a shorter file is not worth one."""

HEAD_START_BYTES: Final = 48 << 20
"""Text that another process has scanned when this one has imported what it needs to write tables."""

MEMORY_BYTES: Final = 32 << 20
"""Rows of this process's own part that wait in memory, not in a file, for those of the parts before."""

MAX_GZIP_RATIO: Final = 100


class Workers:
    """Processes that scan one trace: started at once, then called instead of :func:`zeropeak.parse.kineto.scan.scan`.

    Use as a context manager: leaving it stops what still runs.

    Args:
        path: the trace.
        processes: how many scan, this one included; fewer do for a short file or one that cannot be divided.
        limits: what the file may be.
    """

    def __init__(self, path: Path, processes: int | None = None, limits: Limits = DEFAULTS) -> None:
        self.path, self.limits = path, limits
        others, self._own = parts(path, processes or os.cpu_count() or 1)
        self._running: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        for part in others:
            output = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
            call = (
                f"import sys; sys.path[:] = {sys.path!r}; from zeropeak.parse.kineto.worker import main; "
                f"main({str(path)!r}, {tuple(part)}, {tuple(limits)})"
            )
            process = subprocess.Popen([sys.executable, "-S", "-c", call], stdin=subprocess.DEVNULL, stdout=output)
            self._running.append((process, output))

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
        from zeropeak.parse.kineto.scan import Scan, scan  # not above: it would delay the start of the processes

        if not self._running and self._own is not None:
            return scan(path, begin, take, limits, progress)
        with tempfile.SpooledTemporaryFile(MEMORY_BYTES) as own:
            last = self._scan_own(own, progress)
            done = Scan(met=True)
            for process, output in self._running:
                if done.met:
                    _add(done, _replay(path, process, output, begin, take))
            if done.met and last is not None:
                own.seek(0)
                for packet in _pickled(own):
                    take(packet)
                _add(done, last)
        self.close()
        return done

    def _scan_own(self, waiting: Any, progress: Progress | None) -> Scan | None:
        """Scan this process's part to a file."""
        from zeropeak.parse.kineto.scan import scan

        if self._own is None:
            return None
        return scan(
            self.path,
            lambda _: None,
            lambda packet: pickle.dump(packet, waiting, pickle.HIGHEST_PROTOCOL),
            self.limits,
            progress,
            self._own,
        )


def parts(path: Path, processes: int) -> tuple[list[Part], Part | None]:
    """Parts of a trace for other processes, and the last for this one: None when the others do it all.

    A gzip file says how long its text is; xz and zstd files are not divided, nor are bare lists of events.
    """
    size = os.path.getsize(path)  # noqa: PTH202  (the module does without pathlib)
    with open(path, "rb") as file:  # noqa: PTH123
        head = file.read(4096)
        if head.startswith(b"\x1f\x8b") and size > 18:
            file.seek(-4, os.SEEK_END)
            text = int.from_bytes(file.read(4), "little")
            length = text if size < text < MAX_GZIP_RATIO * size else 0
        else:
            length = size if head.lstrip().startswith(b"{") else 0
    others = min(processes - 1, length // START_BYTES)
    if others < 1:
        return [], WHOLE
    own = max(0, length - others * HEAD_START_BYTES) // (others + 1)
    cuts = [(length - own) * index // others for index in range(others + bool(own))]
    found = [Part(begin, stop) for begin, stop in zip(cuts, [*cuts[1:], None], strict=True)]
    return (found[:-1], found[-1]) if own else (found, None)


def _replay(path: Path, process: subprocess.Popen[bytes], output: IO[bytes], begin: Begin, take: Take) -> Scan:
    """Hand over what a process found, when it is done."""
    status = process.wait()
    output.seek(0)
    for what, value in _pickled(output):
        if what == "packet":
            take(value)
        elif what == "begin":
            begin(value)
        elif what == "refused":
            raise TraceError(path, value)
        else:
            found: Scan = value
            return found
    raise ZeropeakError(
        f"{path}: a process that scanned it ended with status {status}; with little memory, parse files one by one"
    )


def _add(done: Scan, part: Scan) -> None:
    done.metadata.update(part.metadata)
    done.counts.update(part.counts)
    done.pids |= part.pids
    done.partial, done.problem, done.met = part.partial, part.problem, part.met


def _pickled(file: Any) -> Iterator[Any]:
    while True:
        try:
            yield pickle.load(file)
        except EOFError:
            return
