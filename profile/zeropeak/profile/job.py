"""The training job of a plan, piece by piece: its device, its process group, its engine, and its micro-steps."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from zeropeak.profile.text import batch, read_bytes
from zeropeak.profile.workload import build_model

if TYPE_CHECKING:
    from zeropeak.profile.options import Plan


def prepare_device(plan: Plan) -> Any:
    """The torch device that this process trains on, made current; before anything else of torch is used."""
    if plan.device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    import torch

    if plan.device == "cpu":
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", "0")) % plan.gpus
    # DeepSpeed takes the device from LOCAL_RANK, also when several ranks share one GPU.
    os.environ["LOCAL_RANK"] = str(local)
    torch.cuda.set_device(local)
    if plan.gpu_memory_bytes is not None:
        total = torch.cuda.get_device_properties(local).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, plan.gpu_memory_bytes / total), local)
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


def init_process_group(plan: Plan) -> None:
    """Join the ranks, or on a fake group pretend to be rank 0 of ``world_size``."""
    import deepspeed
    import torch.distributed

    if plan.backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        # DeepSpeed reads the world's size from the environment before it looks at the group.
        os.environ.update(RANK="0", LOCAL_RANK=os.environ.get("LOCAL_RANK", "0"), WORLD_SIZE=str(plan.world_size))
        torch.distributed.init_process_group("fake", rank=0, world_size=plan.world_size, store=FakeStore())
    else:
        if plan.timeout_s is not None:
            _set_timeout(timedelta(seconds=plan.timeout_s))
        torch.distributed.init_process_group(plan.backend)
    if plan.device == "cpu":
        # Building DeepSpeed's shared-memory collectives takes minutes at a first start and changes no memory of ours.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=plan.backend, dist_init_required=False)


def _set_timeout(timeout: timedelta) -> None:
    """How long collectives of any group wait. DeepSpeed makes groups of its own, and gives them no timeout."""
    from torch.distributed import distributed_c10d

    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        if hasattr(distributed_c10d, name):
            setattr(distributed_c10d, name, timeout)


class Job:
    """A model under DeepSpeed's engine, and the text it trains on.

    Args:
        plan: what to train.
        device: from :func:`prepare_device`.
        rank: which part of the text.
    """

    def __init__(self, plan: Plan, device: Any, rank: int) -> None:
        self._plan, self._device, self._rank = plan, device, rank
        self._text = read_bytes(plan.data)
        self._vocab = int(plan.model["vocab"])  # type: ignore[call-overload]
        self.model: Any = build_model(plan, device)
        self.trainable = [param for param in self.model.parameters() if param.requires_grad]

    def initialize(self) -> Any:
        """``deepspeed.initialize``: the engine, in training mode. The config's optimizer, else torch's AdamW."""
        import deepspeed
        import torch

        own = self._plan.ds_config.get("optimizer") is None
        if not own and self._rank == 0:
            print(
                "zeropeak: the config names an optimizer: DeepSpeed may now build kernels, once, for minutes",
                flush=True,
            )
        engine, *_ = deepspeed.initialize(
            model=self.model,
            optimizer=torch.optim.AdamW(self.trainable, lr=1e-4, weight_decay=0.0) if own else None,
            model_parameters=None if own else self.trainable,
            config=self._plan.ds_config,
        )
        engine.train()
        return engine

    def micro_step(self, engine: Any, number: int) -> Any:
        """Forward, backward and ``engine.step`` of the ``number``-th batch of the run; returns the loss, detached."""
        import torch

        plan = self._plan
        ids = torch.tensor(
            batch(self._text, number, self._rank, plan.micro_batch, plan.seq, self._vocab), device=self._device
        )
        # The whole output, logits included, lives through backward, as in DeepSpeed-Chat's loop and most others.
        output = engine(input_ids=ids, labels=ids, use_cache=False)
        engine.backward(output.loss)
        engine.step()
        return output.loss.detach()
