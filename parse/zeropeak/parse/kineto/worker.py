"""The other end of :mod:`zeropeak.parse.kineto.workers`: scans a part of a trace and writes what it finds to stdout."""

from __future__ import annotations

import pickle
import sys

from zeropeak.parse.kineto.part import Limits, Part
from zeropeak.parse.kineto.scan import scan
from zeropeak.profile.errors import TraceError


def main(path: str, part: tuple[int, int | None], limits: tuple[int, int]) -> None:
    """Scan, and write pickled pairs (what, value): begin, packet, then one of end and refused."""
    out = sys.stdout.buffer

    def send(what: str, value: object) -> None:
        pickle.dump((what, value), out, pickle.HIGHEST_PROTOCOL)

    try:
        done = scan(
            path,
            lambda metadata: send("begin", metadata),
            lambda packet: send("packet", packet),
            Limits(*limits),
            None,
            Part(*part),
        )
    except TraceError as error:
        send("refused", error.problem)
    else:
        send("end", done)
    out.flush()
