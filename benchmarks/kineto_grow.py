"""Grow a real trace to any number of events: the same names, arguments and categories in the same proportions.

    python benchmarks/kineto_grow.py kineto_r0.json grown.json 4000000

The events are repeated in their order; in each round times go on, and ids (correlation, External id, flow ids, Ev Idx)
are new, as in a longer run. Names stay: a trace with a new name for every event is what no run writes.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

SEPARATOR = b"\n  },\n  {\n"
_NUMBER = re.compile(rb'"(ts|correlation|External id|id|Ev Idx)": (\d+)')


def grow(source: Path, target: Path, count: int) -> None:
    """Write a trace of ``count`` events.

    Args:
        source: a trace as kineto prints it.
        target: file to write, plain JSON.
        count: events.
    """
    text = source.read_bytes()
    start = text.index(b'"traceEvents": [\n  {\n') + len(b'"traceEvents": [\n  {\n')
    stop = text.rindex(b"\n  }\n  ]")
    head, tail = text[:start], text[stop:]
    events = text[start:stop].split(SEPARATOR)
    numbers = [int(found) for found in re.findall(rb'"ts": (\d+)', text)]
    # The profiler's own spans are years away from the rest in no trace of ours; still, a round is as long as all.
    length = max(numbers) - min(numbers) + 1000
    ids = 1 + max(int(found[1]) for found in _NUMBER.findall(text) if found[0] != b"ts")
    del text
    written = 0
    with target.open("wb") as out:
        out.write(head)
        while written < count:
            step = {b"ts": length * (written // len(events))}
            other = ids * (written // len(events))

            def later(found: re.Match[bytes], step: dict[bytes, int] = step, other: int = other) -> bytes:
                return b'"%s": %d' % (found[1], int(found[2]) + step.get(found[1], other))

            some = events[: count - written]
            out.write(SEPARATOR if written else b"")
            out.write(SEPARATOR.join(_NUMBER.sub(later, event) for event in some))
            written += len(some)
        out.write(tail)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("events", type=int)
    arguments = parser.parse_args()
    grow(arguments.source, arguments.target, arguments.events)


if __name__ == "__main__":
    main()
