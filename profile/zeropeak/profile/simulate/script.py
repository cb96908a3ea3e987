"""Runs a user's own training script on the simulated device, and follows the one DeepSpeed engine that it makes."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeropeak.profile.errors import ZeropeakError
from zeropeak.profile.places import own_line
from zeropeak.profile.simulate.answers import where_own
from zeropeak.profile.simulate.patches import Patch, Patches
from zeropeak.profile.simulate.script_facts import facts

if TYPE_CHECKING:
    from zeropeak.profile.script_plan import ScriptPlan
    from zeropeak.profile.session import Session
    from zeropeak.profile.simulate.readings import Readings


class Finished(BaseException):
    """The planned steps are done: ends the script, whatever errors it catches."""


class ScriptError(ZeropeakError):
    """The script raised an error; says which line."""


def run_script(plan: ScriptPlan, session: Session, readings: Readings) -> None:
    """Run the script until it has made the planned optimizer steps.

    Args:
        plan: which script.
        session: the capture of rank 0; not started yet.
        readings: what the script was told.

    Raises:
        ZeropeakError: it ended before its first step, made no DeepSpeed engine, or raised an error.
    """
    session.start(None)
    follower = Follower(plan.steps, session)
    with Patches(follower.patches()):
        try:
            _execute(plan)
        except Finished:
            return
        except SystemExit as ended:
            if ended.code not in (None, 0):
                raise ScriptError(f"{plan.target} ended itself with {ended.code!r}{_after(readings)}") from ended
        except ZeropeakError:
            raise
        except Exception as problem:
            place = own_line(problem.__traceback__)
            where = f" at {place}" if place else ""
            lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
            said = "; ".join([type(problem).__name__, *lines[:3]])
            raise ScriptError(f"{plan.target} failed{where}: {said}{_after(readings)}") from problem
    follower.check_ended(plan.target, _after(readings))


def _after(readings: Readings) -> str:
    """What it was refused before, which may be why."""
    return f"; before that, {readings.refused}" if readings.refused else ""


def _execute(plan: ScriptPlan) -> None:
    """As Python runs a script or a module: its words, its folder first on the path."""
    sys.argv = [plan.target, *plan.arguments]
    if plan.is_module:
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(plan.target, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(plan.target).resolve().parent))
        runpy.run_path(plan.target, run_name="__main__")


class Follower:
    """Sees the script make its engine, and ends it after the planned steps.

    Args:
        steps: optimizer steps to follow.
        session: the capture; started.
    """

    def __init__(self, steps: int, session: Session) -> None:
        self._steps = steps
        self._session = session
        self._engine: Any = None
        self._made_at = ""
        self._facts: dict[str, Any] = {}

    def patches(self) -> list[Patch]:
        """Patches of DeepSpeed; only for the script's run."""
        import deepspeed
        from deepspeed.runtime.engine import DeepSpeedEngine

        return [
            Patch(deepspeed, "initialize", self._initializing(deepspeed.initialize), "tells when the engine is made"),
            Patch(DeepSpeedEngine, "step", self._stepping(DeepSpeedEngine.step), "ends the script after its last step"),
        ]

    def check_ended(self, target: str, after: str) -> None:
        """The script came to its end by itself: raise unless it trained; say when it did fewer steps than planned."""
        if self._engine is None:
            raise ZeropeakError(
                f"{target} ended without deepspeed.initialize, so there is nothing to predict; does it train with the "
                f"options that were given?{after}"
            )
        done = int(self._engine.global_steps)
        if not done:
            raise ZeropeakError(f"{target} ended before its first optimizer step{after}")
        self._decided(steps=done)
        print(f"zeropeak: the script ended by itself after {done} of {self._steps} steps", flush=True)

    def _initializing(self, original: Any) -> Any:
        def initialize(*args: Any, **kwargs: Any) -> Any:
            if self._engine is not None:
                raise ZeropeakError(
                    f"{where_own()}: a second DeepSpeed engine, after the one of {self._made_at}; a prediction follows "
                    "one"
                )
            self._made_at = where_own()
            made = original(*args, **kwargs)
            engine = self._engine = made[0]
            if hasattr(engine, "train_batch"):
                raise ZeropeakError(f"{self._made_at}: a pipeline engine, whose stages differ; it cannot be followed")
            model = engine.module
            self._note(model)
            self._session.attach(engine)

            def first(module: Any, inputs: Any, named: Any) -> None:
                handle.remove()
                self._decided(**facts(engine, (*inputs, *named.values())))

            handle = model.register_forward_pre_hook(first, with_kwargs=True)
            self._decided(**facts(engine, ()))
            return made

        return initialize

    def _decided(self, **facts: Any) -> None:
        """Keys of ``run.json`` that the script decided."""
        self._facts.update(facts)
        self._session.note(script=self._facts)

    def _note(self, model: Any) -> None:
        parameters = list(model.parameters())
        elements = [int(getattr(param, "ds_numel", param.numel())) for param in parameters]
        trained = [count for count, param in zip(elements, parameters, strict=True) if param.requires_grad]
        self._session.note(
            model_class=type(model).__name__, parameters=sum(elements), trainable_parameters=sum(trained)
        )

    def _stepping(self, original: Any) -> Any:
        def step(engine: Any, *args: Any, **kwargs: Any) -> Any:
            before = int(engine.global_steps)
            result = original(engine, *args, **kwargs)
            done = int(engine.global_steps)
            if done > before:
                print(f"zeropeak: step {done - 1} of {self._steps} done", flush=True)
            if done >= self._steps:
                raise Finished
            return result

        return step
