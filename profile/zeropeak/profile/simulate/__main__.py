"""What a prediction runs: ``python -m zeropeak.profile.simulate RUN_DIR``, started like one rank of a capture.

Reads ``raw/plan.json``, trains rank 0 on fake tensors, and leaves ``raw/rank-0`` as a rank on a GPU does.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path

from zeropeak.profile.errors import ZeropeakError
from zeropeak.profile.guard import warn
from zeropeak.profile.labels import Status
from zeropeak.profile.options import Plan
from zeropeak.profile.processes import UMASK
from zeropeak.profile.train import interrupt, one_line, stage, stop_when_abandoned, train, versions


def main(run_dir: Path) -> int:
    """Predict as planned; returns the exit status."""
    os.umask(int(os.environ.get(UMASK, "022"), 8))
    plan = Plan.load(run_dir / "raw" / "plan.json")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupt)
    stop_when_abandoned()
    from zeropeak.profile.simulate.simulation import Simulation

    simulation = Simulation(run_dir, world_size=plan.world_size, total_bytes=plan.gpu_memory_bytes)
    session = simulation.session
    session.note(versions=versions())
    status, error = Status.FAILED, None
    try:
        with simulation:
            session.start(stage(plan))
            train(plan, session, simulation.device, 0, losses=False)
        status = Status.COMPLETE
    except KeyboardInterrupt:
        status, error = Status.INTERRUPTED, "interrupted"
    except Exception as problem:  # noqa: BLE001 - the run's end is recorded, then the rank fails with it
        error = one_line(problem)
        traceback.print_exc()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        simulation.close(status, error)
    return 0 if status is Status.COMPLETE else 1


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except ZeropeakError as problem:
        warn(str(problem))
        sys.exit(problem.exit_code)
