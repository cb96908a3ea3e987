"""One rank's capture: installs the hooks, follows the engine's phases, writes marks and ``rank.json``.

session = Session(run_dir, rank=0, world_size=4, counters=CpuCounters(), ranges=[NvtxRanges()])
session.start(stage=3)          # before the model is built
engine, *_ = deepspeed.initialize(...)
session.attach(engine)          # names are known from here on
...                             # train
session.close(Status.COMPLETE)
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from zeropeak.profile.eventlog import EventLog
from zeropeak.profile.guard import RAISED, Guard, warn
from zeropeak.profile.holders import Holder, SequenceSpans, find_saves, tensors
from zeropeak.profile.hooks import Patches, install
from zeropeak.profile.labels import Kind, Phase, Status, Stored
from zeropeak.profile.model_index import ModelIndex
from zeropeak.profile.observers import Observers
from zeropeak.profile.recorder import Recorder
from zeropeak.profile.storages import Storages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zeropeak.profile.counters import Counters
    from zeropeak.profile.ranges import Ranges
    from zeropeak.profile.recorder import OpenEvent

_ENGINE: Final = ("deepspeed.runtime.engine", "DeepSpeedEngine")
_POLL_S: Final = 0.01
_POLLS: Final = 10
_SAVES: Final = ("save_checkpoint", "save_16bit_model")


class Session:
    """Capture of one rank.

    Args:
        run_dir: run directory; ``raw/rank-<r>`` is made in it.
        rank: global rank.
        world_size: ranks of the job (of the pretended job on a fake process group).
        counters: allocator counters of the rank's device.
        ranges: where events show beside the log.
        node: index of the node.
        holder_step: step in whose forward the autograd graph is searched for holders; None for never.
        sampled: read the counters at every event; see :class:`~zeropeak.profile.recorder.Recorder`.
        clock: monotonic nanoseconds; injected in tests, and the count of happenings in a prediction.
        address: gives a storage's address where the storage itself has none.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        rank: int,
        world_size: int,
        counters: Counters,
        ranges: Iterable[Ranges] = (),
        node: int = 0,
        holder_step: int | None = 0,
        sampled: bool = True,
        clock: Callable[[], int] = time.monotonic_ns,
        address: Callable[[Any], int] | None = None,
    ) -> None:
        self.folder = run_dir / "raw" / f"rank-{rank}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = EventLog(self.folder, clock)
        self.recorder = Recorder(rank, self.log, ranges, counters, clock, sampled=sampled)
        self.storages = Storages(self.log, clock, address, counters.device)
        self.observers = Observers(self.recorder, self.storages)
        self.guard = Guard(self._failed)
        self.patches = Patches()
        self._engine: Any = None
        self._handles: list[Any] = []
        self._holder_step = holder_step
        self._phase: OpenEvent | None = None
        self._backwards = 0
        self._written: str | None = None
        self._info: dict[str, Any] = {
            "rank": rank,
            "world_size": world_size,
            "pid": os.getpid(),
            "node": node,
            "device": counters.device,
            "device_name": counters.device_name,
            "device_total_bytes": counters.device_total_bytes,
            "boot_id": _boot_id(),
            "clock": {"monotonic_ns": clock(), "unix_ns": time.time_ns()},
            "hooks_missing": [],
            "linear_wrapped": None,
            "nvtx": None,
            "steps_done": 0,
            "holder_step": holder_step,
            "holder_saves_skipped": 0,
            "ended": None,
            "error": None,
            "zero": None,
        }

    def note(self, **facts: Any) -> None:
        """Add facts to ``rank.json`` (resolved workload, versions); written at the next mark."""
        self._info.update(facts)

    def start(self, stage: int | None) -> None:
        """Install the hooks for a ZeRO stage (None: for whichever it will be) and open the ``init`` phase."""
        missing = install(self.patches, self.observers, self.guard, stage)
        for method, before, after in (
            ("forward", self._forward_begins, self._forward_ended),
            ("backward", self._backward_begins, self._backward_ended),
            ("step", self._step_begins, self._step_ended),
            *((name, self._save_begins, self._save_ended) for name in _SAVES),
        ):
            module, owner = _ENGINE
            why = self.patches.replace(module, f"{owner}.{method}", self._wrap(f"engine {method}", before, after))
            if why is not None:
                missing.append({"name": f"engine {method}", "why": why})
        self._info["hooks_missing"].extend(missing)
        for point in missing:
            self._warn(f"no hook for {point['name']}: {point['why']}")
        self._phase_begins(Phase.INIT)
        self._write_info()

    def attach(self, engine: Any) -> None:
        """The engine is built: learn names, register what is alive, mark ``init``, close its phase."""
        self.guard.call("attach", self._attach, engine)

    def _attach(self, engine: Any) -> None:
        self._engine = engine
        index = ModelIndex(engine.module)
        index.write(self.log)
        self._info["zero"] = _zero_settings(engine)
        self.observers.attach(index)
        if engine.zero_optimization_stage() < 3:
            self._hook_modules(engine.module)
        self._mark("init")
        self._phase_ended()

    def close(self, status: Status, error: str | None = None) -> None:
        """End the capture: put DeepSpeed back, close ranges and streams, say how the rank ended."""
        self.patches.undo()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.observers.end_modules()
        self._phase_ended()
        self.storages.close()
        self.log.close()
        self._info["ended"] = status.value
        self._info["error"] = error
        self._write_info()

    # Phases of the engine

    def _forward_begins(self, engine: Any, *inputs: Any, **named: Any) -> None:
        from torch import is_grad_enabled

        position = self.recorder.position
        step = int(engine.global_steps)
        # Counted here: the engine counts its own step(), which Hugging Face's Trainer calls once for several backwards.
        if step != position.step:
            self._backwards = 0
        position.move(step=step, micro_step=self._backwards)
        # A model that nobody told to train() is trained all the same where gradients are asked for.
        training = bool(engine.module.training) or is_grad_enabled()
        self._phase_begins(Phase.FORWARD if training else Phase.EVAL)
        # Under a name of its own: an odd batch must not end the recording of phases.
        self.guard.call("inputs", self._register_inputs, inputs, named)
        if position.step == self._holder_step:
            self.observers.spans = SequenceSpans()

    def _register_inputs(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self.observers.index is None:
            return
        for name, value in [*((f"input {place}", one) for place, one in enumerate(inputs)), *named.items()]:
            for tensor in tensors(value):
                self.storages.register(tensor, Stored.INPUT, name)

    def _forward_ended(self, token: object, result: object, engine: Any, *_: Any, **__: Any) -> None:
        self.observers.end_modules()
        if result is not RAISED and self.recorder.position.phase is Phase.FORWARD:
            from torch.nn import functional

            self._info["linear_wrapped"] = functional.linear.__module__ == "deepspeed.runtime.zero.linear"
            self._mark("forward", result)
        self.observers.spans = None
        self._phase_ended()

    def _backward_begins(self, *_: Any, **__: Any) -> None:
        self._phase_begins(Phase.BACKWARD)

    def _backward_ended(self, token: object, result: object, *_: Any, **__: Any) -> None:
        self.observers.end_modules()
        if result is not RAISED:
            self._mark("backward")
            self._backwards += 1
        self._phase_ended()

    def _step_begins(self, *_: Any, **__: Any) -> None:
        self._phase_begins(Phase.STEP)

    def _step_ended(self, token: object, result: object, engine: Any, *_: Any, **__: Any) -> None:
        if result is not RAISED:
            self._info["steps_done"] = int(engine.global_steps)
            self._mark("step")
        self._phase_ended()

    def _save_begins(self, *_: Any, **__: Any) -> None:
        self._phase_begins(Phase.SAVE)

    def _save_ended(self, *_: Any, **__: Any) -> None:
        self._phase_ended()

    def _phase_begins(self, phase: Phase) -> None:
        self._phase_ended()
        self.recorder.position.enter(phase)
        self._phase = self.recorder.begin(self.recorder.known(Kind.PHASE, phase.value, nested=False))

    def _phase_ended(self) -> None:
        if self._phase is not None:
            self.recorder.end(self._phase)
            self._phase = None
            self.recorder.position.enter(None)

    # Marks

    def _mark(self, mark: str, outputs: object = None) -> None:
        counters = self.recorder.counters
        if counters.device == "cpu":
            self._let_go()
        position = self.recorder.position
        if (index := self.observers.index) is not None and mark != "forward":
            # Before the counters are read: what is registered at a mark is known at it. A forward makes nothing of
            # this, a backward gradients. Under a name of its own: an odd optimizer must not end the marks.
            register = index.register_gradients if mark == "backward" else index.register_storages
            self.guard.call("storages", register, self.storages, self._engine.optimizer)
        reading, highest = counters.read(), counters.window_max()
        counters.reset_window()
        now = self.recorder.clock()
        alive = self.storages.released_alive()
        self.log.append(
            "marks",
            (
                now,
                position.step,
                position.micro_step,
                mark,
                reading.allocated_bytes,
                highest,
                reading.reserved_bytes,
                sum(released.storage.size_bytes for released in alive),
                len(alive),
                counters.device_used(),
            ),
        )
        search = mark == "forward" and self.observers.spans is not None
        # Under a name of its own: an odd node must not end the recording of phases.
        holders = (self.guard.call("holders", self._holders, outputs, alive, now) if search else None) or {}
        for released in alive:
            holder = holders.get(released.storage.storage_id)
            self.log.append(
                "retained",
                (
                    now,
                    position.step,
                    position.micro_step,
                    mark,
                    released.param_id,
                    released.storage.size_bytes,
                    released.storage.address,
                    released.storage.storage_id,
                    released.event_id,
                    holder.name if holder else None,
                    self._module_name(holder.module_id if holder else None),
                ),
            )
        self.log.flush()
        self._write_info()

    def _let_go(self) -> None:
        """Wait while gloo's threads drop their last references: at once, a mark would count what goes anyway.

        Only on CPU, where the time of a step means nothing.
        """
        before = None
        for _ in range(_POLLS):
            alive = len(self.storages.released_alive())
            if alive in {0, before}:
                return
            before = alive
            time.sleep(_POLL_S)

    def _holders(self, outputs: object, alive: list[Any], now: int) -> dict[int, Holder]:
        """Holders by storage id; writes down all that autograd saved, since the graph is walked anyway."""
        assert self.observers.spans is not None
        keys = {}
        for released in alive:
            storage = released.storage()
            if storage is not None:
                keys[storage._cdata] = released.storage.storage_id
            del storage
        saves, skipped = find_saves(outputs, self.observers.spans, self.storages.address)
        self._info["holder_saves_skipped"] += skipped
        position, known = self.recorder.position, self.storages.by_key()
        for save in saves:
            entry = known.get(save.key)
            self.log.append(
                "saved",
                (
                    now,
                    position.step,
                    position.micro_step,
                    save.address,
                    save.size_bytes,
                    entry.storage_id if entry else None,
                    save.holder.name,
                    self._module_name(save.holder.module_id),
                ),
            )
        return {keys[save.key]: save.holder for save in saves if save.key in keys}

    def _module_name(self, module_id: int | None) -> str | None:
        index = self.observers.index
        return index.module_names[module_id] if module_id is not None and index is not None else None

    # Modules of stages 1 and 2, where DeepSpeed hooks none

    def _hook_modules(self, model: Any) -> None:
        begins = lambda module, *_: self.guard.call(  # noqa: E731
            "module forward begin", self.observers.forward_begins, None, module
        )
        ended = lambda module, *_: self.guard.call(  # noqa: E731
            "module forward end", self.observers.forward_ended, None, None, None, module
        )
        for module in model.modules():
            self._handles.append(module.register_forward_pre_hook(begins))
            self._handles.append(module.register_forward_hook(ended, always_call=True))

    # Reporting

    def _wrap(self, name: str, before: Callable[..., Any], after: Callable[..., Any]) -> Callable[[Any], Any]:
        return lambda original: self.guard.around(name, original, before, after)

    def _failed(self, name: str, why: str) -> None:
        self._info["hooks_missing"].append({"name": name, "why": f"stepped aside after {why}"})
        self._warn(f"hook {name} stepped aside after {why}")

    def _warn(self, message: str) -> None:
        if self.recorder.rank == 0:
            warn(message)

    def _write_info(self) -> None:
        info = json.dumps(self._info)
        if info == self._written:
            return
        path = self.folder / "rank.json"
        draft = path.with_suffix(".json.new")
        draft.write_text(info + "\n")
        draft.replace(path)
        self._written = info


def _zero_settings(engine: Any) -> dict[str, Any]:
    config = engine._config.zero_config
    settings: dict[str, Any] = {
        name: value
        for name, value in config.model_dump(mode="json").items()
        if value is None or isinstance(value, bool | int | float | str)
    }
    for name in ("offload_param", "offload_optimizer"):
        offload = getattr(config, name, None)
        settings[f"{name}_device"] = getattr(getattr(offload, "device", None), "value", None)
    return settings


def _boot_id() -> str | None:
    """Identifies the machine's boot: processes that share it share CLOCK_MONOTONIC."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else None
