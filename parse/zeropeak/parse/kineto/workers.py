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
    from collections.abc import Iterator, Sequence
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


class Process:
    """A light process that scans parts of traces, one after the other.

    Args:
        tasks: traces and which parts of them.
        limits: what the files may be.
        folder: existing folder for what it finds; None: the system's for temporary files.
    """

    def __init__(self, tasks: Sequence[tuple[Path, Part]], limits: Limits, folder: Path | None = None) -> None:
        self.outputs = [tempfile.TemporaryFile(dir=folder) for _ in tasks]  # noqa: SIM115  (closed in close)
        self._done = 0
        files = [output.fileno() for output in self.outputs]
        asked = [(str(path), tuple(part), file) for (path, part), file in zip(tasks, files, strict=True)]
        call = (
            f"import sys; sys.path[:] = {sys.path!r}; from zeropeak.parse.kineto.worker import main; "
            f"main({asked}, {tuple(limits)})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", call], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=files
        )
        self.pid = self._process.pid

    def wait(self, task: int) -> int | None:
        """Wait until a task is done; the process's status if it has ended instead."""
        assert self._process.stdout is not None
        while self._done <= task:
            if not self._process.stdout.read(1):
                return self._process.wait()
            self._done += 1
        return None

    def close(self) -> None:
        """Stop it if it still runs."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        for output in self.outputs:
            output.close()

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None


class Workers:
    """Processes that scan one trace: started at once, then called instead of :func:`zeropeak.parse.kineto.scan.scan`.

    Use as a context manager: leaving it stops what still runs.

    Args:
        path: the trace.
        processes: how many scan, this one included; fewer do for a short file or one that cannot be divided.
        limits: what the file may be.
        folder: for what they find; None: the system's for temporary files.
    """

    def __init__(
        self, path: Path, processes: int | None = None, limits: Limits = DEFAULTS, folder: Path | None = None
    ) -> None:
        others, own = parts(path, processes or os.cpu_count() or 1)
        self.running = [Process([(path, part)], limits, folder) for part in others]
        self._parts = Parts(path, [(process, 0) for process in self.running], own, limits)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the processes that still run."""
        for process in self.running:
            process.close()
        self.running = []

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
        done = self._parts(path, begin, take, limits, progress, part)
        self.close()
        return done


class Parts:
    """The parts of one trace, each scanned by some process, put together again; called instead of ``scan``.

    Args:
        path: the trace.
        others: process and task of each part but the last, in order.
        own: the last part, scanned here; None when the others do it all.
        limits: what the file may be.

    Attributes:
        team: traces that are scanned at the same time, this one included: before it waits for others, this process
            scans what is its own of all of them.
    """

    def __init__(self, path: Path, others: Sequence[tuple[Process, int]], own: Part | None, limits: Limits) -> None:
        self.path, self.limits = path, limits
        self.others, self.own = others, own
        self._waiting: IO[bytes] | None = None
        self._last: Scan | None = None
        self.team: Sequence[Parts] = [self]

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

        if not self.others and self.own is not None:
            return scan(path, begin, take, limits, progress)
        try:
            for one in self.team:
                one.scan_own(progress)
            done = Scan(met=True)
            for process, task in self.others:
                if done.met:
                    _add(done, _replay(path, process, task, begin, take))
            if done.met and self._waiting is not None and self._last is not None:
                self._waiting.seek(0)
                for packet in _pickled(self._waiting):
                    take(packet)
                _add(done, self._last)
        finally:
            self.close()
        return done

    def scan_own(self, progress: Progress | None = None) -> None:
        """Scan this process's part to a file, if that is not done yet and there are others to wait for."""
        from zeropeak.parse.kineto.scan import scan

        if self.own is None or not self.others or self._waiting is not None:
            return
        waiting: Any = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115  (closed in close)
        self._waiting = waiting
        self._last = scan(
            self.path,
            lambda _: None,
            lambda packet: pickle.dump(packet, waiting, pickle.HIGHEST_PROTOCOL),
            self.limits,
            progress,
            self.own,
        )

    def close(self) -> None:
        """Throw away what this process has scanned and not handed over."""
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None


def parts(path: Path, processes: int) -> tuple[list[Part], Part | None]:
    """Parts of a trace for other processes, and the last for this one: None when the others do it all."""
    length = text_bytes(path)
    others = min(processes - 1, length // START_BYTES)
    if others < 1:
        return [], WHOLE
    own = max(0, length - others * HEAD_START_BYTES) // (others + 1)
    cuts = [(length - own) * index // others for index in range(others + bool(own))]
    found = [Part(begin, stop) for begin, stop in zip(cuts, [*cuts[1:], None], strict=True)]
    return (found[:-1], found[-1]) if own else (found, None)


def text_bytes(path: Path) -> int:
    """Length of a trace's text; 0 where it is not known, or the text cannot be divided.

    A gzip file says how long its text is; xz and zstd files are not divided, nor are bare lists of events.
    """
    size = os.path.getsize(path)  # noqa: PTH202  (the module does without pathlib)
    with open(path, "rb") as file:  # noqa: PTH123
        head = file.read(4096)
        if head.startswith(b"\x1f\x8b") and size > 18:
            file.seek(-4, os.SEEK_END)
            text = int.from_bytes(file.read(4), "little")
            return text if size < text < MAX_GZIP_RATIO * size else 0
        return size if head.lstrip().startswith(b"{") else 0


def _replay(path: Path, process: Process, task: int, begin: Begin, take: Take) -> Scan:
    """Hand over what a process found, when it is done."""
    status, output = process.wait(task), process.outputs[task]
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
