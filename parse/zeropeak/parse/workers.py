"""One job a rank, in this process or in several."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from zeropeak.parse.lean import start_lean
from zeropeak.parse.writer import TableFiles
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

WORTH_A_PROCESS_BYTES: Final = 4 << 20
"""A rank's traces below this are read in about the time that a process takes to start (0.7 s)."""


class Job(Protocol):
    """What a rank's tables are made of; must pickle."""

    @property
    def folder(self) -> Path:
        """Where the tables go."""

    @property
    def size_bytes(self) -> int:
        """Size of the files to read."""


J = TypeVar("J", bound=Job)
R = TypeVar("R")


def do(
    jobs: Sequence[J], make: Callable[[J, TableFiles], R], workers: int | None = None
) -> Iterator[tuple[J, dict[str, int], R]]:
    """Do jobs, in several processes where that pays; yields each job with rows by table and what ``make`` returned.

    This process does its share: a job in it needs no start and no imports.

    Args:
        jobs: one a rank.
        make: writes a job's tables; a function at the top of a module, whose result must pickle.
        workers: processes; None: as many as there are cores; 1: none beside this one.

    Raises:
        TraceError: that of the first job that failed.
    """
    heavy = sum(job.size_bytes >= WORTH_A_PROCESS_BYTES for job in jobs)
    count = min(workers or os.cpu_count() or 1, heavy)
    if count < 2:
        for job in jobs:
            yield job, *_do_one(job, make)
        return
    import multiprocessing  # not above: a parse in one process does without
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(count - 1, multiprocessing.get_context("spawn"), initializer=start_lean) as pool:
        # Ranks are much alike: every count-th is done here, the others meanwhile.
        futures = {index: pool.submit(_do_one, job, make) for index, job in enumerate(jobs) if index % count}
        for index, job in enumerate(jobs):
            try:
                outcome = futures[index].result() if index in futures else _do_one(job, make)
            except TraceError:
                pool.shutdown(cancel_futures=True)
                raise
            yield job, *outcome


def _do_one(job: J, make: Callable[[J, TableFiles], R]) -> tuple[dict[str, int], R]:
    files = TableFiles(job.folder)
    done = False
    try:
        made = make(job, files)
        done = True
    finally:
        if not done:
            files.abandon()
    return files.close(), made
