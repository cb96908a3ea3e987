"""The trace files of a parse, and light processes that scan them while this one still imports what tables need.

Nothing here imports numpy or pyarrow. Half of a short parse is starting up, of each further process that makes tables,
too: so a few traces are better scanned by processes that can do nothing else, and made into tables by one.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from zeropeak.parse.files import Chosen, choose
from zeropeak.parse.kineto.part import DEFAULTS, WHOLE, Part
from zeropeak.parse.kineto.workers import START_BYTES, Parts, Process, Workers, text_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from zeropeak.parse.kineto.reader import Scanner

MOST_BYTES: Final = 600 << 20
"""Text of several traces up to which one process makes all tables; of more, each of several makes some ranks'."""

IMPORT_BYTES: Final = 60 << 20
"""Text that another process scans while this one imports what it needs to make all tables."""

TABLES_COST: Final = 0.45
"""Making a trace's tables takes this much of the time of scanning it."""


@dataclass
class Ahead:
    """Files to parse.

    Attributes:
        chosen: the files.
        scanners: those that are being scanned, to be called instead of the reader's own scan.
        first: files that wait for no other process.
    """

    chosen: Chosen
    scanners: dict[Path, Scanner] = field(default_factory=dict)
    first: frozenset[Path] = frozenset()


@contextmanager
def chosen_ahead(
    paths: Sequence[Path],
    ranks: Mapping[Path, int],
    export: Callable[[Path], Path] | None,
    out: Path,
    processes: int | None = None,
) -> Iterator[Ahead]:
    """Choose the files, and start to scan them where that pays; leaving the context stops what still runs.

    Args:
        paths: files, and folders to search.
        ranks: ranks by file, where the user knows better.
        export: makes a sqlite file of an .nsys-rep.
        out: the run directory, where intermediate files go.
        processes: how many may work; None: as many as there are cores.

    Raises:
        UsageError: no traces, or ranks that are unknown or not unique.
        TraceError: a file cannot be read.
    """
    ahead = Ahead(choose(paths, ranks, export))
    files = [file.path for file in ahead.chosen.files]
    processes = processes or os.cpu_count() or 1
    with ExitStack() as stack:
        if processes > 1 and all(file.kind == "kineto" for file in ahead.chosen.files):
            lengths = [text_bytes(path) for path in files]
            if len(files) == 1 and lengths[0] >= START_BYTES:
                out.mkdir(parents=True, exist_ok=True)
                ahead.scanners[files[0]] = stack.enter_context(Workers(files[0], processes, folder=out))
            elif all(lengths) and START_BYTES <= sum(lengths) <= MOST_BYTES:
                out.mkdir(parents=True, exist_ok=True)
                _start(ahead, files, lengths, processes, out, stack)
        yield ahead


def _start(
    ahead: Ahead, files: Sequence[Path], lengths: Sequence[int], processes: int, out: Path, stack: ExitStack
) -> None:
    """Start processes for several files."""
    lanes, own = shares(lengths, processes)
    others: list[list[tuple[Process, int]]] = [[] for _ in files]
    for lane in lanes:
        process = Process([(files[index], part) for index, part in lane], DEFAULTS, out)
        stack.callback(process.close)
        for task, (index, _) in enumerate(lane):
            others[index].append((process, task))
    team = [Parts(path, some, mine, DEFAULTS) for path, some, mine in zip(files, others, own, strict=True)]
    for parts in team:
        parts.team = team
        stack.callback(parts.close)
    ahead.scanners = {parts.path: parts for parts in team}
    ahead.first = frozenset(parts.path for parts in team if not parts.others)


def shares(lengths: Sequence[int], processes: int) -> tuple[list[list[tuple[int, Part]]], list[Part | None]]:
    """Divide traces among processes.

    This process takes the end: less than the others, as it has to import what tables need, and makes the tables of one
    trace while the next is being scanned.

    Args:
        lengths: bytes of text of each trace.
        processes: how many scan, this one included; at least 2.

    Returns:
        For each other process, trace and part of what it scans, in order; and this process's part of each trace, None
        when others do all of it.
    """
    total, others = sum(lengths), processes - 1
    busy = IMPORT_BYTES + int(TABLES_COST * (total - lengths[-1]))
    own_from = total - max(0, total - others * busy) // processes
    lanes: list[list[tuple[int, Part]]] = [[] for _ in range(others)]
    own: list[Part | None] = []
    begin = 0
    for index, length in enumerate(lengths):
        cuts = [0]
        for cut in (own_from * lane // others - begin for lane in range(1, processes)):
            # No part is so short that looking for where it begins is not worth it.
            if cut - cuts[-1] >= START_BYTES // 4 and cut + START_BYTES // 4 <= length:
                cuts.append(cut)
        mine: Part | None = None
        for place, stop in zip(cuts, [*cuts[1:], None], strict=True):
            middle = begin + (place + (length if stop is None else stop)) // 2
            part = Part(place, stop)
            if middle < own_from:
                lanes[min(middle * others // own_from, others - 1)].append((index, part))
            else:
                mine = part
        own.append(WHOLE if mine == Part(0, None) else mine)
        begin += length
    return [lane for lane in lanes if lane], own
