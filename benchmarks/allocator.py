"""The allocator's model on a million requests and frees: processor seconds and memory.

    PYTHONPATH=profile python benchmarks/allocator.py [--live 20000] [PYTORCH_ALLOC_CONF ...]

Sizes are half those of a transformer layer in fp16, half random; a quarter of the blocks lies on a second stream. Each
configuration is told the same story, in a process of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import time

from zeropeak.profile.allocator import Allocator, Step, read_conf, replay

STEPS = 1_000_000
LAYER = (512, 8192, 9_830_400, 19_660_800, 33_554_432, 134_217_728, 92_160_000, 184_320_000)


def story(live: int) -> list[Step]:
    """Allocations and frees, around ``live`` blocks at a time."""
    dice = random.Random(1)
    odd = [dice.randint(1, 30 << 20) for _ in range(4000)]
    steps: list[Step] = []
    held: list[int] = []
    for key in range(STEPS):
        if dice.random() * 2 * live < 2 * live - len(held):
            held.append(key)
            size = dice.choice(LAYER if dice.random() < 0.5 else odd)
            steps.append(Step("alloc", key, size, dice.choice((0, 0, 0, 7))))
        else:
            place = dice.randrange(len(held))
            held[place], held[-1] = held[-1], held[place]
            steps.append(Step("free", held.pop()))
    return steps


def measure(conf: str, live: int) -> None:
    """Print one line."""
    steps = story(live)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    allocator = Allocator(read_conf(conf))
    begin = time.process_time()
    replay(allocator, steps)
    seconds = time.process_time() - begin
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    free = sum(block.key is None for segment in allocator.segments() for block in segment.blocks)
    print(
        f"{conf or 'default':40} {seconds:5.2f} s, {grown:4.0f} MiB more, {live} alive, {free} free blocks at the end"
    )


def main() -> None:
    """Measure every configuration named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", type=int, default=1000, help="blocks alive at a time (default: 1000)")
    parser.add_argument("conf", nargs="*", default=["", "expandable_segments:True", "max_split_size_mb:128"])
    options = parser.parse_args()
    for conf in options.conf:
        worker = multiprocessing.get_context("spawn").Process(target=measure, args=(conf, options.live))
        worker.start()
        worker.join()


if __name__ == "__main__":
    main()
