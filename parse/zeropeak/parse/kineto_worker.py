"""The other end of :mod:`zeropeak.parse.kineto_workers`: scans a part of a trace and writes what it finds to stdout."""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING

from zeropeak.parse.kineto_part import Limits, Part
from zeropeak.parse.kineto_scan import scan
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from zeropeak.parse.kineto_packets import Packet


def main(path: str, begin: int, stop: int | None, max_bytes: int, max_ratio: int) -> None:
    """Scan, and write pickled pairs (what, value): begin, packet, progress, then one of end and refused."""
    out = sys.stdout.buffer

    def send(what: str, value: object) -> None:
        pickle.dump((what, value), out, 5)

    def packet(one: Packet) -> None:
        send("packet", one)
        out.flush()

    try:
        done = scan(
            path, lambda metadata: send("begin", metadata), packet, Limits(max_bytes, max_ratio),
            lambda read, size: send("progress", (read, size)), Part(begin, stop),
        )
    except TraceError as error:
        send("refused", error.problem)
    else:
        send("end", done)
    out.flush()
