"""One simulated rank: the device, the fake process group, modes and patches, and the session that records it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed
from torch._subclasses.fake_tensor import FakeTensor

from zeropeak.profile.allocator import Allocator, read_environment
from zeropeak.profile.session import Session
from zeropeak.profile.simulate.allocations import Allocations
from zeropeak.profile.simulate.answers import ASSUMPTIONS, NO_PADDING
from zeropeak.profile.simulate.counters import SimulatedCounters
from zeropeak.profile.simulate.device import NAME, TYPE, register
from zeropeak.profile.simulate.kernels import Kernels
from zeropeak.profile.simulate.ledger import Ledger
from zeropeak.profile.simulate.order import Order
from zeropeak.profile.simulate.patches import Patches, deepspeed_patches, torch_patches, transformers_patches
from zeropeak.profile.simulate.readings import Readings
from zeropeak.profile.simulate.slices import slice_patches
from zeropeak.profile.simulate.streams import Streams
from zeropeak.profile.simulate.tracker import Tracker
from zeropeak.profile.simulate.workspace import Workspaces, constants

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.profile.labels import Status
    from zeropeak.profile.simulate.accelerator import SimulatedAccelerator
    from zeropeak.profile.simulate.patches import Patch

LARGE_BYTES = 1 << 50
"""Memory of a device whose size nobody gave: more than anything needs."""


class Simulation:
    """Context in which PyTorch and DeepSpeed run on the simulated device as rank 0.

    Args:
        run_dir: run directory.
        world_size: ranks of the job.
        total_bytes: memory of the device; None when it does not matter.
    """

    def __init__(self, run_dir: Path, *, world_size: int, total_bytes: int | None) -> None:
        self.device = register()
        self.readings = Readings()
        self._world_size = world_size
        self._total_bytes = total_bytes
        clock = Order()
        folder = run_dir / "raw" / "rank-0"
        folder.mkdir(parents=True, exist_ok=True)
        self.allocations = Allocations(folder)
        self._settings = read_environment(os.environ)
        self.ledger = Ledger(clock, self.allocations.append, NAME, Allocator(self._settings))
        self.streams = Streams(self.ledger)
        self.session = Session(
            run_dir,
            rank=0,
            world_size=world_size,
            counters=SimulatedCounters(self.ledger, total_bytes),
            clock=clock,
            address=self.ledger.address,
        )
        self.workspaces = Workspaces(self.ledger, self.session, TYPE)
        self._patches: Patches | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        enter = self._stack.enter_context
        self._stack.callback(_restore_environment, dict(os.environ))
        # DeepSpeed takes the world's size from the environment, and asks for an accelerator while it is imported.
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(self._world_size), DS_ACCELERATOR="cuda")
        os.environ.update(self._more_environment())
        import deepspeed
        from deepspeed.accelerator import real_accelerator
        from torch.testing._internal.distributed.fake_pg import FakeStore

        from zeropeak.profile.simulate.accelerator import SimulatedAccelerator

        accelerator = SimulatedAccelerator(self.ledger, self.streams, self._total_bytes or LARGE_BYTES)
        self._stack.callback(setattr, real_accelerator, "ds_accelerator", real_accelerator.ds_accelerator)
        real_accelerator.set_accelerator(accelerator)
        torch.distributed.init_process_group(
            f"cpu:fake,{TYPE}:fake", rank=0, world_size=self._world_size, store=FakeStore()
        )
        self._stack.callback(torch.distributed.destroy_process_group)
        deepspeed.init_distributed(dist_backend="fake", dist_init_required=False)
        ours = (
            torch_patches(self.ledger, self.readings),
            slice_patches(FakeTensor),
            deepspeed_patches(),
            transformers_patches(),
        )
        self._patches = enter(Patches([patch for some in (*ours, self._more_patches(accelerator)) for patch in some]))
        enter(Kernels())
        enter(torch.autograd.set_multithreading_enabled(False))
        enter(self._tracker())
        return self

    def _tracker(self) -> Tracker:
        return Tracker(self.ledger, self.workspaces)

    def _more_environment(self) -> dict[str, str]:
        """Variables beside those that every prediction needs."""
        return {}

    def _more_patches(self, accelerator: SimulatedAccelerator) -> list[Patch]:
        """Patches beside those that every prediction needs."""
        return []

    def _assumptions(self) -> list[str]:
        return [*ASSUMPTIONS, NO_PADDING, *self.readings.sentences()]

    def __exit__(self, *problem: Any) -> None:
        self._stack.close()

    def _about(self) -> dict[str, Any]:
        """What the prediction rests on, for ``rank.json`` and ``run.json``."""
        host = self.ledger.total("cpu")
        return {
            "assumptions": self._assumptions(),
            "constants": [asdict(constant) for constant in constants(self._world_size)],
            "expandable_segments": self._settings.expandable_segments,
            "patches": self._patches.reasons() if self._patches else [],
            "host_max_bytes": host.max,
            "pinned_max_bytes": self.ledger.pinned.max,
        }

    def close(self, status: Status, error: str | None) -> None:
        """End the session and the streams."""
        self.session.note(simulation=self._about())
        self.session.close(status, error)
        self.allocations.close()
        self.ledger.close()


def _restore_environment(before: dict[str, str]) -> None:
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)
