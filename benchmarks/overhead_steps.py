"""One process of ``benchmarks/overhead.py``: trains, switching instruments on and off between blocks of steps.

    python benchmarks/overhead_steps.py PLAN.json OUT.json ROUNDS STEPS VARIANT...

Every variant runs STEPS timed steps in each of ROUNDS rounds, after two that are not timed. The order turns by one from
round to round, so that a drift of the machine falls on all alike. A step is timed from one synchronised moment to the
next; installing and removing instruments lies between.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.profile.counters import CpuCounters, CudaCounters
from zeropeak.profile.instruments import MemoryHistory, TorchProfiler
from zeropeak.profile.job import Job, init_process_group, prepare_device
from zeropeak.profile.labels import Status
from zeropeak.profile.options import Plan
from zeropeak.profile.ranges import NvtxRanges, RecordFunctionRanges
from zeropeak.profile.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeropeak.profile.ranges import Ranges

WARM_UP = 2
"""Steps after a switch that are not timed: DeepSpeed's and the allocator's caches settle."""

INSTRUMENTS = {
    "nothing": frozenset[str](),
    "ranges + event log": frozenset({"log"}),
    "ranges + event log + memory history": frozenset({"log", "history"}),
    "ranges + event log + memory history with stacks": frozenset({"log", "history", "stacks"}),
    "torch.profiler with memory": frozenset({"profiler"}),
    "everything of the torch verb": frozenset({"log", "history", "stacks", "profiler"}),
}
"""What each variant switches on. Under nsys the same names are measured with nsys around them."""


class Bench:
    """A training job whose instruments can be exchanged."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rank = 0 if plan.backend == "fake" else int(os.environ["RANK"])
        self.device = prepare_device(plan)
        init_process_group(plan)
        self.job = Job(plan, self.device, self.rank)
        self.engine: Any = self.job.initialize()
        self.number = 0

    def step(self) -> float:
        """One optimizer step; seconds."""
        import torch

        wait: Callable[[], None] = torch.cuda.synchronize if self.plan.device == "cuda" else lambda: None
        wait()
        begin = time.perf_counter()
        for _ in range(self.plan.grad_accum):
            self.job.micro_step(self.engine, self.number)
            self.number += 1
        wait()
        return time.perf_counter() - begin

    def block(self, variant: str, steps: int, scratch: Path) -> dict[str, Any]:
        """A block of steps under one variant: seconds of each, and the allocator's peak in them."""
        import torch

        wanted = INSTRUMENTS[variant]
        profiler = TorchProfiler(cuda=self.plan.device == "cuda") if "profiler" in wanted else None
        history = None
        if "history" in wanted and self.plan.device == "cuda":
            history = MemoryHistory(1_000_000, stacks="stacks" in wanted)
        for instrument in (profiler, history):
            if instrument is not None:
                instrument.start()
        session = self._session(scratch, recorded=profiler is not None) if "log" in wanted else None
        for _ in range(WARM_UP):
            self.step()
        if self.plan.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = [self.step() for _ in range(steps)]
        peak = torch.cuda.max_memory_allocated() if self.plan.device == "cuda" else None
        if session is not None:
            session.close(Status.COMPLETE)
            peak = _highest(scratch) or peak  # the session begins a new window of the peak at each mark
        if history is not None:
            history.save(scratch / "snapshot.pickle.gz")
        if profiler is not None:
            profiler.save(scratch / "torch.json.gz")
        return {"variant": variant, "seconds": seconds, "peak_bytes": peak}

    def _session(self, scratch: Path, *, recorded: bool) -> Session:
        cuda = self.plan.device == "cuda"
        ranges: list[Ranges] = [NvtxRanges(), RecordFunctionRanges()] if recorded else [NvtxRanges()]
        session = Session(
            scratch,
            rank=self.rank,
            world_size=self.plan.world_size,
            counters=CudaCounters(self.device.index) if cuda else CpuCounters(),
            ranges=ranges,
            holder_step=None,
            sampled=False,
        )
        session.start(self.plan.zero_stage)
        session.attach(self.engine)
        return session


def _highest(run: Path) -> int | None:
    """Highest of the windows that end at the marks, but for the first ones, which the switch may have raised."""
    [path] = run.glob("raw/rank-*/marks.arrows")
    with pa.OSFile(str(path)) as file:
        marks = pa.ipc.open_stream(file).read_all()
    highest: int | None = pc.max(marks["max_allocated_bytes"].slice(1 + 3 * WARM_UP)).as_py()
    return highest


def main(plan_path: str, out: str, rounds: str, steps: str, *variants: str) -> None:
    """Measure and write the blocks as JSON."""
    bench = Bench(Plan.load(Path(plan_path)))
    for _ in range(3):
        bench.step()
    blocks = []
    for number in range(int(rounds)):
        turn = number % len(variants)
        for variant in (*variants[turn:], *variants[:turn]):
            with tempfile.TemporaryDirectory(prefix="zeropeak-overhead-") as scratch:
                blocks.append(bench.block(variant, int(steps), Path(scratch)))
    if bench.rank == 0:
        Path(out).write_text(json.dumps(blocks))


if __name__ == "__main__":
    main(*sys.argv[1:])
