"""What a prediction runs: ``python -m zeropeak.profile.simulate RUN_DIR``, started like one rank of a capture.

Reads ``raw/plan.json``, or ``raw/script.json`` for a user's own script, trains rank 0 on fake tensors, and leaves
``raw/rank-0`` as a rank on a GPU does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeropeak.profile.options import Plan
from zeropeak.profile.rank_process import Ending, begin, end_with
from zeropeak.profile.script_plan import ScriptPlan
from zeropeak.profile.version import PACKAGES, installed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zeropeak.profile.simulate.simulation import Simulation


def main(run_dir: Path) -> int:
    """Predict as planned; returns the exit status."""
    begin()
    raw = run_dir / "raw"
    if (raw / ScriptPlan.FILE).is_file():
        return _follow(run_dir, ScriptPlan.load(raw / ScriptPlan.FILE))
    return _train(run_dir, Plan.load(raw / Plan.FILE))


def _train(run_dir: Path, plan: Plan) -> int:
    from zeropeak.profile.simulate.simulation import Simulation
    from zeropeak.profile.train import train

    simulation = Simulation(run_dir, world_size=plan.world_size, total_bytes=plan.gpu_memory_bytes)

    def work() -> None:
        simulation.session.start(plan.zero_stage)
        train(plan, simulation.session, simulation.device, 0, losses=False)

    return _run(simulation, work)


def _follow(run_dir: Path, plan: ScriptPlan) -> int:
    from zeropeak.profile.simulate.script import run_script
    from zeropeak.profile.simulate.script_simulation import ScriptSimulation

    simulation = ScriptSimulation(run_dir, plan)
    return _run(simulation, lambda: run_script(plan, simulation.session, simulation.readings))


def _run(simulation: Simulation, work: Callable[[], None]) -> int:
    simulation.session.note(versions=installed(*PACKAGES, "pyarrow"))
    ending = Ending()
    try:
        with ending, simulation:
            work()
    finally:
        simulation.close(ending.status, ending.error)
    return ending.exit_code


if __name__ == "__main__":
    end_with(main)
