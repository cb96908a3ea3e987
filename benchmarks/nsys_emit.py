"""A program with very many NVTX ranges, for nsys to record: ``python benchmarks/nsys_emit.py 10000000``.

Like a training run under zeropeak: four processes with ranges of our domain, the same few hundred names again and
again, event ids as payload. Needs the package nvtx.
"""

from __future__ import annotations

import subprocess
import sys

from zeropeak.profile.ranges import NvtxRanges

PROCESSES = 4
KINDS = ("fetch", "prefetch", "wait", "release", "free")
PARAMETERS = [
    f"layers.{layer}.{part}"
    for layer in range(32)
    for part in ("attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
]


def names() -> list[tuple[str, str]]:
    """Name and kind of every range, in the order in which a process goes through them."""
    return [(f"{kind} {parameter}", kind) for parameter in PARAMETERS for kind in KINDS]


def emit(count: int, process: int) -> None:
    """Record so many ranges, with ids that differ between processes."""
    ranges = NvtxRanges()
    known = [ranges.handle(name, kind) for name, kind in names()]
    for number in range(count):
        ranges.pop(ranges.push(known[number % len(known)], (process << 40) | (number + 1)))


def main() -> None:
    """Start the processes, or be one of them."""
    if len(sys.argv) > 2:
        emit(int(sys.argv[1]), int(sys.argv[2]))
        return
    share = str(int(sys.argv[1]) // PROCESSES)
    running = [subprocess.Popen([sys.executable, __file__, share, str(process)]) for process in range(PROCESSES)]
    if [process for process in running if process.wait()]:
        raise SystemExit("a process of the program failed")


if __name__ == "__main__":
    main()
