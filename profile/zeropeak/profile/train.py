"""What each rank runs: ``python -m zeropeak.profile.train RUN_DIR``, started by :mod:`zeropeak.profile.capture`.

Reads ``raw/plan.json``, trains, and leaves ``raw/rank-<r>`` behind whatever happens: an exception, SIGTERM and SIGINT
end the capture in order; after SIGKILL the event log holds all but its last moments.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from zeropeak.profile.errors import ZeropeakError
from zeropeak.profile.guard import warn
from zeropeak.profile.job import Job, init_process_group, prepare_device
from zeropeak.profile.labels import Status
from zeropeak.profile.options import Plan
from zeropeak.profile.privacy import without_folders
from zeropeak.profile.processes import OWNER, UMASK
from zeropeak.profile.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zeropeak.profile.counters import Counters
    from zeropeak.profile.ranges import Ranges


def main(run_dir: Path) -> int:
    """Train as planned; returns the exit status of this rank."""
    os.umask(int(os.environ.get(UMASK, "022"), 8))
    plan = Plan.load(run_dir / "raw" / "plan.json")
    rank = 0 if plan.backend == "fake" else int(os.environ["RANK"])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupt)
    stop_when_abandoned()
    device = prepare_device(plan)
    profiler, history = _start_instruments(plan)
    session = _session(plan, run_dir, rank, device)
    status, error = Status.FAILED, None
    try:
        session.start(stage(plan))
        init_process_group(plan)
        train(plan, session, device, rank)
        status = Status.COMPLETE
    except KeyboardInterrupt:
        status, error = Status.INTERRUPTED, "interrupted"
    except Exception as problem:  # noqa: BLE001 - the run's end is recorded, then the rank fails with it
        status = Status.OUT_OF_MEMORY if _is_out_of_memory(problem) else Status.FAILED
        error = one_line(problem)
        traceback.print_exc()
    finally:
        # Whoever ends us has decided: a second signal must not cut what is being written.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        try:
            if history is not None:
                entries = history.save(session.folder / "snapshot.pickle.gz")
                session.note(history_entries=entries, history_max_entries=history.max_entries)
                if entries >= history.max_entries:
                    warn(f"rank {rank}: the allocator's history was full, its oldest entries are lost; fewer --steps")
        finally:
            session.close(status, error)
            if profiler is not None:
                profiler.save(session.folder / "torch.json.gz")
    return 0 if status is Status.COMPLETE else 1


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
    session.note(nvtx="on" if plan.tool == "nsys" and INJECTION_VARIABLE in os.environ else "off", versions=versions())
    return session


def stage(plan: Plan) -> int:
    """ZeRO stage of the plan."""
    zero: dict[str, Any] = plan.ds_config["zero_optimization"]  # type: ignore[assignment]
    return int(zero["stage"])


def versions() -> dict[str, str | None]:
    """Versions of what matters to memory, by package."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {
        "zeropeak": __version__,
        "python": ".".join(str(part) for part in sys.version_info[:3]),
    }
    for name in ("torch", "deepspeed", "transformers", "peft", "nvtx", "pyarrow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _is_out_of_memory(problem: Exception) -> bool:
    import torch

    return isinstance(problem, torch.OutOfMemoryError)


def stop_when_abandoned() -> None:
    """End in order, as by Ctrl-C, when the command or the launcher that started us was killed."""
    owner, parent = os.environ.get(OWNER), os.getppid()

    def watch() -> None:
        while os.getppid() == parent and (owner is None or Path(f"/proc/{owner}").exists()):
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    if Path("/proc/self").exists():
        threading.Thread(target=watch, daemon=True, name="zeropeak-watch").start()


def one_line(problem: Exception) -> str:
    """The error as one line; a bare assertion says where it stands."""
    if isinstance(problem, ZeropeakError):
        return without_folders(str(problem))
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    if lines:
        # A validation error names the key on its second line.
        return without_folders(f"{type(problem).__name__}: {'; '.join(lines[:3])}")
    place = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{type(problem).__name__} in {place.name} ({'/'.join(Path(place.filename).parts[-2:])}:{place.lineno})"


def interrupt(number: int, frame: object) -> NoReturn:
    """A signal that ends the rank in order."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except ZeropeakError as problem:
        warn(str(problem))
        sys.exit(problem.exit_code)
