"""What each rank runs: ``python -m zeropeak.profile.train RUN_DIR``, started by :mod:`zeropeak.profile.capture`.

Reads ``raw/plan.json``, trains, and leaves ``raw/rank-<r>`` behind whatever happens: an exception, SIGTERM and SIGINT
end the capture in order; after SIGKILL the event log holds all but its last moments.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from zeropeak.profile.guard import warn
from zeropeak.profile.job import Job, init_process_group, prepare_device
from zeropeak.profile.options import Plan
from zeropeak.profile.rank_process import Ending, begin, end_with
from zeropeak.profile.version import PACKAGES, installed

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from zeropeak.profile.counters import Counters
    from zeropeak.profile.ranges import Ranges


def main(run_dir: Path) -> int:
    """Train as planned; returns the exit status of this rank."""
    begin()
    plan = Plan.load(run_dir / "raw" / Plan.FILE)
    rank = 0 if plan.backend == "fake" else int(os.environ["RANK"])
    device = prepare_device(plan)
    profiler, history = _start_instruments(plan)
    session = _session(plan, run_dir, rank, device)
    ending = Ending()
    try:
        with ending:
            session.start(plan.zero_stage)
            init_process_group(plan)
            train(plan, session, device, rank)
    finally:
        try:
            if history is not None:
                entries = history.save(session.folder / "snapshot.pickle.gz")
                session.note(history_entries=entries, history_max_entries=history.max_entries)
                if entries >= history.max_entries:
                    warn(f"rank {rank}: the allocator's history was full, its oldest entries are lost; fewer --steps")
        finally:
            session.close(ending.status, ending.error)
            if profiler is not None:
                profiler.save(session.folder / "torch.json.gz")
    return ending.exit_code


def train(plan: Plan, session: Any, device: Any, rank: int, *, losses: bool = True) -> None:
    """Build the model, initialize DeepSpeed, train the planned steps.

    Args:
        plan: resolved plan.
        session: the rank's capture; started.
        device: torch device.
        rank: global rank.
        losses: read and show each step's loss; a prediction has none.
    """
    job = Job(plan, device, rank)
    session.note(
        model_class=type(job.model).__name__,
        trainable_parameters=_elements(job.trainable),
        parameters=_elements(job.model.parameters()),
    )
    engine = job.initialize()
    session.attach(engine)
    shown = ""
    for step in range(plan.steps):
        for micro_step in range(plan.grad_accum):
            loss = job.micro_step(engine, step * plan.grad_accum + micro_step)
            shown = f", loss {float(loss):.3f}" if losses else ""
            del loss
        if rank == 0:
            print(f"zeropeak: step {step} of {plan.steps} done{shown}", flush=True)


def _elements(params: Iterable[Any]) -> int:
    return sum(int(getattr(param, "ds_numel", param.numel())) for param in params)


def _start_instruments(plan: Plan) -> tuple[Any, Any]:
    """torch.profiler and the CUDA allocator's history, where the plan has them."""
    from zeropeak.profile.instruments import MemoryHistory, TorchProfiler, history_entries

    cuda = plan.device == "cuda"
    profiler = TorchProfiler(cuda=cuda) if plan.tool == "torch" or not cuda else None
    history = None
    if cuda:
        layers: int = plan.model["layers"]  # type: ignore[assignment]
        entries = history_entries(layers, plan.steps * plan.grad_accum)
        history = MemoryHistory(entries, stacks=plan.tool == "torch")
    for instrument in (profiler, history):
        if instrument is not None:
            instrument.start()
    return profiler, history


def _session(plan: Plan, run_dir: Path, rank: int, device: Any) -> Any:
    from zeropeak.profile.counters import CpuCounters, CudaCounters
    from zeropeak.profile.ranges import INJECTION_VARIABLE, NvtxRanges, RecordFunctionRanges
    from zeropeak.profile.session import Session

    counters: Counters = CpuCounters() if plan.device == "cpu" else CudaCounters(device.index)
    ranges: list[Ranges] = []
    if plan.tool == "nsys":
        ranges.append(NvtxRanges())
    if plan.tool == "torch" or plan.device == "cpu":
        ranges.append(RecordFunctionRanges())
    session = Session(
        run_dir,
        rank=rank,
        world_size=plan.world_size,
        counters=counters,
        ranges=ranges,
        node=int(os.environ.get("GROUP_RANK", "0")),
        # The allocator's history has every block, from which the bytes at each event follow.
        sampled=False,
    )
    session.note(
        nvtx="on" if plan.tool == "nsys" and INJECTION_VARIABLE in os.environ else "off",
        versions=installed(*PACKAGES, "pyarrow"),
    )
    return session


if __name__ == "__main__":
    end_with(main)
