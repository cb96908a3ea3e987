"""One simulated rank whose work is a user's own script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeropeak.profile.simulate.answers import ASSUMPTIONS
from zeropeak.profile.simulate.cuda import cuda_patches
from zeropeak.profile.simulate.pretrained import pretrained_patches
from zeropeak.profile.simulate.script_patches import script_patches
from zeropeak.profile.simulate.script_tracker import ScriptTracker
from zeropeak.profile.simulate.simulation import Simulation
from zeropeak.profile.simulate.values import Values

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.profile.script_plan import ScriptPlan
    from zeropeak.profile.simulate.accelerator import SimulatedAccelerator
    from zeropeak.profile.simulate.patches import Patch
    from zeropeak.profile.simulate.tracker import Tracker


class ScriptSimulation(Simulation):
    """Context in which a script runs on the simulated device as rank 0, as a launcher would have started it.

    Args:
        run_dir: run directory.
        plan: which script, on how many ranks.
    """

    def __init__(self, run_dir: Path, plan: ScriptPlan) -> None:
        super().__init__(run_dir, world_size=plan.world_size, total_bytes=plan.gpu_memory_bytes)
        self._values = Values()
        self._local_world_size = plan.local_world_size

    def _tracker(self) -> Tracker:
        return ScriptTracker(self.ledger, self.workspaces, self.readings, self._values)

    def _more_environment(self) -> dict[str, str]:
        return {
            "LOCAL_WORLD_SIZE": str(self._local_world_size),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "WANDB_MODE": "disabled",  # a prediction is no run to be logged elsewhere
        }

    def _more_patches(self, accelerator: SimulatedAccelerator) -> list[Patch]:
        return [
            *cuda_patches(accelerator, self._local_world_size),
            *script_patches(self.readings, self._values, self._world_size),
            *pretrained_patches(self.readings),
        ]

    def _assumptions(self) -> list[str]:
        return [*ASSUMPTIONS, "Assumed: every loss is finite.", *self.readings.sentences()]
