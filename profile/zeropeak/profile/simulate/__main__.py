"""What a prediction runs: ``python -m zeropeak.profile.simulate RUN_DIR``, started like one rank of a capture.

Reads ``raw/plan.json``, trains rank 0 on fake tensors, and leaves ``raw/rank-0`` as a rank on a GPU does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeropeak.profile.rank_process import Ending, begin, end_with
from zeropeak.profile.train import train
from zeropeak.profile.version import PACKAGES, installed

if TYPE_CHECKING:
    from pathlib import Path


def main(run_dir: Path) -> int:
    """Predict as planned; returns the exit status."""
    plan = begin(run_dir)
    from zeropeak.profile.simulate.simulation import Simulation

    simulation = Simulation(run_dir, world_size=plan.world_size, total_bytes=plan.gpu_memory_bytes)
    session = simulation.session
    session.note(versions=installed(*PACKAGES, "pyarrow"))
    ending = Ending()
    try:
        with ending, simulation:
            session.start(plan.zero_stage)
            train(plan, session, simulation.device, 0, losses=False)
    finally:
        simulation.close(ending.status, ending.error)
    return ending.exit_code


if __name__ == "__main__":
    end_with(main)
