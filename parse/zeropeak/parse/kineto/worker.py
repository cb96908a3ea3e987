"""The other end of :mod:`zeropeak.parse.kineto.workers`: scans parts of traces and writes what it finds to files."""

from __future__ import annotations

import os
import pickle
import sys
from typing import TYPE_CHECKING

from zeropeak.parse.kineto.part import Limits, Part
from zeropeak.parse.kineto.scan import scan
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO


def main(tasks: Sequence[tuple[str, tuple[int, int | None], int]], limits: tuple[int, int]) -> None:
    """Scan one after the other, and say on stdout, by a byte, when each is done.

    Args:
        tasks: path, part and the open file that takes what is found in it.
        limits: what the files may be.
    """
    for path, part, file in tasks:
        with os.fdopen(file, "wb") as out:
            _scan(path, Part(*part), Limits(*limits), out)
        sys.stdout.buffer.write(b".")
        sys.stdout.buffer.flush()


def _scan(path: str, part: Part, limits: Limits, out: IO[bytes]) -> None:
    """Write pickled pairs (what, value): begin, packet, then one of end and refused."""

    def send(what: str, value: object) -> None:
        pickle.dump((what, value), out, pickle.HIGHEST_PROTOCOL)

    try:
        done = scan(
            path,
            lambda metadata: send("begin", metadata),
            lambda packet: send("packet", packet),
            limits,
            None,
            part,
        )
    except TraceError as error:
        send("refused", error.problem)
    else:
        send("end", done)
