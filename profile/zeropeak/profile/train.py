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
from zeropeak.profile.labels import Status
from zeropeak.profile.options import Plan
from zeropeak.profile.privacy import without_folders
from zeropeak.profile.processes import OWNER, UMASK
from zeropeak.profile.version import __version__

if TYPE_CHECKING:
    from zeropeak.profile.counters import Counters
    from zeropeak.profile.ranges import Ranges


def main(run_dir: Path) -> int:
    """Train as planned; returns the exit status of this rank."""
    os.umask(int(os.environ.get(UMASK, "022"), 8))
    plan = Plan.load(run_dir / "raw" / "plan.json")
    rank = 0 if plan.backend == "fake" else int(os.environ["RANK"])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    _stop_when_abandoned()
    device = _prepare_device(plan)
    profiler, history = _start_instruments(plan)
    session = _session(plan, run_dir, rank, device)
    status, error = Status.FAILED, None
    try:
        session.start(_stage(plan))
        _init_process_group(plan)
        _train(plan, session, device, rank)
        status = Status.COMPLETE
    except KeyboardInterrupt:
        status, error = Status.INTERRUPTED, "interrupted"
    except Exception as problem:  # noqa: BLE001 - the run's end is recorded, then the rank fails with it
        status = Status.OUT_OF_MEMORY if _is_out_of_memory(problem) else Status.FAILED
        error = _one_line(problem)
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


def _train(plan: Plan, session: Any, device: Any, rank: int) -> None:
    import deepspeed
    import torch

    from zeropeak.profile.text import batch, read_bytes
    from zeropeak.profile.workload import build_model

    text = read_bytes(plan.data)
    model = build_model(plan, device)
    trainable = [param for param in model.parameters() if param.requires_grad]
    session.note(
        model_class=type(model).__name__,
        trainable_parameters=sum(int(getattr(param, "ds_numel", param.numel())) for param in trainable),
        parameters=sum(int(getattr(param, "ds_numel", param.numel())) for param in model.parameters()),
    )
    own = plan.ds_config.get("optimizer") is None
    if not own and rank == 0:
        print("zeropeak: the config names an optimizer: DeepSpeed may now build kernels, once, for minutes", flush=True)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(trainable, lr=1e-4, weight_decay=0.0) if own else None,
        model_parameters=None if own else trainable,
        config=plan.ds_config,
    )
    engine.train()
    session.attach(engine)
    vocab = int(plan.model["vocab"])  # type: ignore[call-overload]
    for step in range(plan.steps):
        for micro_step in range(plan.grad_accum):
            ids = torch.tensor(
                batch(text, step * plan.grad_accum + micro_step, rank, plan.micro_batch, plan.seq, vocab), device=device
            )
            output = engine(input_ids=ids, labels=ids, use_cache=False)
            loss = output.loss
            engine.backward(loss)
            engine.step()
            shown = float(loss.detach())
            del output, loss, ids
        if rank == 0:
            print(f"zeropeak: step {step} of {plan.steps} done, loss {shown:.3f}", flush=True)


def _prepare_device(plan: Plan) -> Any:
    if plan.device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    import torch

    if plan.device == "cpu":
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", "0")) % plan.gpus
    # DeepSpeed takes the device from LOCAL_RANK, also when several ranks share one GPU.
    os.environ["LOCAL_RANK"] = str(local)
    torch.cuda.set_device(local)
    _keep_deepspeed_off_old_nvtx()
    return torch.device("cuda", local)


def _keep_deepspeed_off_old_nvtx() -> None:
    """DeepSpeed 0.19 on CUDA calls ``Domain.push_range``, which nvtx 0.2.11 lacks: training would die at once.

    Without the package DeepSpeed falls back to ``torch.cuda.nvtx``, whose ranges every nsys records.
    """
    import nvtx
    from deepspeed.accelerator import cuda_accelerator

    if not hasattr(nvtx.get_domain("DeepSpeed"), "push_range") and hasattr(cuda_accelerator, "nvtx"):
        cuda_accelerator.nvtx = None


def _start_instruments(plan: Plan) -> tuple[Any, Any]:
    """torch.profiler and the CUDA allocator's history, where the plan has them."""
    from zeropeak.profile.instruments import MemoryHistory, TorchProfiler, history_entries

    cuda = plan.device == "cuda"
    profiler = TorchProfiler(cuda=cuda) if plan.tool == "torch" or not cuda else None
    history = None
    if plan.tool == "torch" and cuda:
        layers: int = plan.model["layers"]  # type: ignore[assignment]
        history = MemoryHistory(history_entries(layers, plan.steps * plan.grad_accum))
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
    )
    session.note(nvtx="on" if plan.tool == "nsys" and INJECTION_VARIABLE in os.environ else "off", versions=_versions())
    return session


def _init_process_group(plan: Plan) -> None:
    import deepspeed
    import torch.distributed

    if plan.backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        # DeepSpeed reads the world's size from the environment before it looks at the group.
        os.environ.update(RANK="0", LOCAL_RANK=os.environ.get("LOCAL_RANK", "0"), WORLD_SIZE=str(plan.world_size))
        torch.distributed.init_process_group("fake", rank=0, world_size=plan.world_size, store=FakeStore())
    else:
        torch.distributed.init_process_group(plan.backend)
    if plan.device == "cpu":
        # Building DeepSpeed's shared-memory collectives takes minutes at a first start and changes no memory of ours.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=plan.backend, dist_init_required=False)


def _stage(plan: Plan) -> int:
    zero: dict[str, Any] = plan.ds_config["zero_optimization"]  # type: ignore[assignment]
    return int(zero["stage"])


def _versions() -> dict[str, str | None]:
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


def _stop_when_abandoned() -> None:
    """End in order, as by Ctrl-C, when the command or the launcher that started us was killed."""
    owner, parent = os.environ.get(OWNER), os.getppid()

    def watch() -> None:
        while os.getppid() == parent and (owner is None or Path(f"/proc/{owner}").exists()):
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    if Path("/proc/self").exists():
        threading.Thread(target=watch, daemon=True, name="zeropeak-watch").start()


def _one_line(problem: Exception) -> str:
    """The error as one line; a bare assertion says where it stands."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    if lines:
        # A validation error names the key on its second line.
        return without_folders(f"{type(problem).__name__}: {'; '.join(lines[:3])}")
    place = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{type(problem).__name__} in {place.name} ({'/'.join(Path(place.filename).parts[-2:])}:{place.lineno})"


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except ZeropeakError as problem:
        warn(str(problem))
        sys.exit(problem.exit_code)
