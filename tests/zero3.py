"""A stage 3 run told from the rules of DeepSpeed's coordinator: raw files, parsed, with a known cause for each byte.

One rank, a chain of modules that run forward and then backward, parameters of 2 bytes an element. The first step
records the trace: everything is fetched when needed and released after use. From the second on the knobs act.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tests.conftest import RankStory, write_kineto, write_rank_json, write_streams

from zeropeak.parse.pipeline import parse_run
from zeropeak.profile.labels import RUN_SCHEMA, Kind
from zeropeak.reports import Run, open_run
from zeropeak.reports.findings.coordinator import Knobs, Schedule, Stay, Trace, schedule

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KIB = 1024
WIDTH = 2
"""Bytes of an element."""
LIVE = 10**9
WORLD = 4
"""Ranks; the others never ran, as in a fake world."""


@dataclass(frozen=True)
class Model:
    """What is trained, and how.

    Attributes:
        modules: name to the elements of each of its parameters; they run in this order.
        work: (module, ``forward`` or ``backward``, or ``loss`` between the two) to bytes that live for a moment there.
        activation: bytes that each forward leaves until its backward.
        held: modules whose parameters autograd holds from their forward to their backward.
        gloo: each gather allocates as much again for itself, from its launch until it is waited for.
        state: bytes that the first optimizer step adds, so that later peaks are higher.
    """

    modules: Mapping[str, tuple[int, ...]]
    reuse: int = 0
    bucket: int = 0
    live: int = LIVE
    threshold: int = 0
    work: dict[tuple[str, str], int] = field(default_factory=dict)
    activation: int = KIB
    held: frozenset[str] = frozenset()
    gloo: bool = False
    state: int = 0
    steps: int = 2
    zero: dict[str, Any] = field(default_factory=dict)

    @property
    def numel(self) -> dict[int, int]:
        """Elements by parameter."""
        return dict(enumerate(elements for params in self.modules.values() for elements in params))

    @property
    def owned(self) -> dict[str, tuple[int, ...]]:
        """Parameters by module."""
        found, first = {}, 0
        for name, params in self.modules.items():
            found[name] = tuple(range(first, first + len(params)))
            first += len(params)
        return found

    @property
    def persistent(self) -> frozenset[int]:
        """Parameters that the threshold keeps."""
        return frozenset(param for param, elements in self.numel.items() if elements <= self.threshold)


def zero3(path: Path, model: Model, **manifest: Any) -> Run:
    """The run of a model, parsed."""
    story = RankStory(0)
    _Teller(story, model).tell()
    folder = path / "raw" / "rank-0"
    folder.mkdir(parents=True)
    write_streams(folder, story)
    write_rank_json(folder, 0, WORLD, "complete", model.steps)
    write_kineto(folder / "torch.json.gz", story)
    zero = {
        "stage": 3,
        "max_reuse_distance": model.reuse,
        "prefetch_bucket_size": model.bucket,
        "max_live_parameters": model.live,
        "param_persistence_threshold": model.threshold,
        "reduce_bucket_size": 1000,
        "allgather_sequential": False,
        **model.zero,
    }
    facts = json.loads((folder / "rank.json").read_text()) | {"zero": zero}
    (folder / "rank.json").write_text(json.dumps(facts | manifest.pop("facts", {})))
    about = {"schema": RUN_SCHEMA, "name": "r", "world_size": WORLD, "fake_world": True}
    about["ds_config"] = {"zero_optimization": {"stage": 3}}
    (path / "run.json").write_text(json.dumps(about | manifest))
    parse_run(path)
    return open_run(path)


def peak_of(run: Run) -> int:
    """Highest allocated bytes of the rank."""
    peaks = run.peaks
    return int(peaks[peaks["scope"] == "run"]["allocated_bytes"].iloc[0])


class _Teller:
    def __init__(self, story: RankStory, model: Model) -> None:
        self._story, self._model, self._names = story, model, list(model.modules)
        self._full: dict[int, tuple[int, int]] = {}
        """Address and storage of each parameter's full memory."""
        self._buffers: dict[int, tuple[int, int, int]] = {}
        """Address, storage and size of the flat buffer that each parameter is gathered into."""
        self._copies: dict[int, tuple[int, int]] = {}
        """Address and size of what a gather of each parameter allocated for itself."""
        self._lingering: dict[int, tuple[int, int, int]] = {}
        """Address, storage and free event of what autograd holds."""

    def tell(self) -> None:
        story, model = self._story, self._model
        for module, name in enumerate(["", *self._names]):
            about = {"module_id": module, "name": name, "class_name": "Linear", "parent_module_id": 0 if name else None}
            story.rows["modules"].append(about)
        for module, (name, params) in enumerate(model.owned.items(), 1):
            for param in params:
                self._write_param(name, module, param)
        phase = self._phase("init")
        story.end(phase, Kind.PHASE)
        story.mark("init", [])
        for step in range(model.steps):
            story.step = step
            self._turn(step)
            phase = self._phase("step")
            self._gather_persistent()
            if model.state and not step:
                story.register(story.alloc(model.state), model.state, "optimizer_state", "exp_avg")
            story.end(phase, Kind.PHASE)
            story.mark("step", [])

    def _write_param(self, name: str, module: int, param: int) -> None:
        elements = self._model.numel[param]
        self._story.rows["params"].append(
            {
                "param_id": param,
                "name": f"{name}.{param}",
                "module_id": module,
                "shape": [elements],
                "dtype": "bfloat16",
                "numel": elements,
                "full_bytes": WIDTH * elements,
                "shard_bytes": WIDTH * elements // WORLD,
                "trainable": True,
                "persistent": param in self._model.persistent,
            }
        )

    def _turn(self, step: int) -> None:
        model, story = self._model, self._story
        order = [*self._names, *reversed(self._names)]
        users = tuple(model.owned[name] for name in order)
        actions = tuple((run, ends) for run in range(len(order)) for ends in (False, True))
        forward = tuple(run < len(self._names) for run in range(len(order)))
        knobs = Knobs(0, 0, model.live, frozenset())
        resident: frozenset[int] = frozenset()
        if step:
            knobs = Knobs(model.reuse, model.bucket, model.live, model.persistent)
            resident = model.persistent
        told = schedule(Trace(users, actions, forward, model.numel, resident), knobs)
        activations: dict[str, int] = {}
        phase = self._phase("forward")
        for place, (run, ends) in enumerate(actions):
            name, direction = order[run], "forward" if forward[run] else "backward"
            if place == len(actions) // 2:
                story.end(phase, Kind.PHASE)
                self._mark_forward()
                phase = self._phase("backward")
                self._work("", "loss")
            if not ends:
                ranged = story.begin(Kind.MODULE, f"{name} {direction}", 1 + self._names.index(name))
                self._launch(name, place, told)
                self._wait(name, place, told)
                self._launch(name, place, told, prefetch=True)
                self._work(name, direction)
                if forward[run]:
                    activations[name] = story.alloc(model.activation)
                else:
                    story.free(activations.pop(name), model.activation)
                    self._end_held(name)
                continue
            self._release(name, told.releases.get(place, ()), hold=forward[run] and name in model.held)
            story.end(ranged, Kind.MODULE)
        story.end(phase, Kind.PHASE)
        story.mark("backward", [])

    def _launch(self, name: str, place: int, told: Schedule, *, prefetch: bool = False) -> None:
        own = set(self._model.owned[name])
        launched = [stay for stay in told.stays if stay.launched == place and (stay.param not in own) is prefetch]
        if not launched:
            return
        kind = Kind.PREFETCH if prefetch else Kind.FETCH
        params = tuple(sorted(stay.param for stay in launched))
        module = 1 + self._names.index(name)
        event = self._story.begin(kind, f"of {name}", module, params)
        if len(launched) == 1:
            self._bear(params[0], event)
        else:
            size = WIDTH * sum(self._model.numel[param] for param in params)
            address = self._story.alloc(size)
            storage = self._story.register(address, size, "gather_buffer", name, None, event)
            self._buffers |= dict.fromkeys(params, (address, storage, size))
        if self._model.gloo:
            size = WIDTH * sum(self._model.numel[param] for param in params)
            self._copies |= dict.fromkeys(params, (self._story.alloc(size), size))
        self._story.end(event, kind)

    def _wait(self, name: str, place: int, told: Schedule) -> None:
        waited: list[Stay] = [stay for stay in told.stays if stay.ready == place]
        if not waited:
            return
        params = tuple(sorted(stay.param for stay in waited))
        event = self._story.begin(Kind.WAIT, f"of {name}", 1 + self._names.index(name), params)
        emptied: set[tuple[int, int, int]] = set()
        for stay in waited:
            if stay.together > 1:
                emptied.add(self._buffers.pop(stay.param))
                self._bear(stay.param, event)
        for copied, size in {self._copies.pop(param) for param in params if param in self._copies}:
            self._story.free(copied, size)
        for address, storage, size in emptied:
            self._story.free(address, size)
            self._story.storage_end(storage)
        self._story.end(event, Kind.WAIT)

    def _bear(self, param: int, event: int) -> None:
        size = WIDTH * self._model.numel[param]
        category = "param_persistent" if param in self._model.persistent else "param_full"
        address = self._story.alloc(size)
        owner = f"{self._owner(param)}.{param}"
        self._full[param] = address, self._story.register(address, size, category, owner, param, event)

    def _release(self, name: str, gone: tuple[int, ...], *, hold: bool) -> None:
        story = self._story
        event = story.begin(Kind.RELEASE, name, 1 + self._names.index(name), gone)
        for param in gone:
            address, storage = self._full.pop(param)
            free = story.free_event(f"{name}.{param}", param, storage)
            story.rows["events"][-1]["parent_event_id"] = event
            if hold:
                self._lingering[param] = address, storage, free
            else:
                story.free(address, WIDTH * self._model.numel[param])
                story.storage_end(storage)
        story.end(event, Kind.RELEASE)

    def _end_held(self, name: str) -> None:
        for param in self._model.owned[name]:
            if param in self._lingering:
                address, storage, _ = self._lingering.pop(param)
                self._story.free(address, WIDTH * self._model.numel[param])
                self._story.storage_end(storage)

    def _mark_forward(self) -> None:
        story = self._story
        story.mark("forward", [])
        mark = story.rows["marks"][-1]
        for param, (address, storage, free) in self._lingering.items():
            size, owner = WIDTH * self._model.numel[param], self._owner(param)
            mark["released_alive_bytes"] += size
            mark["released_alive_count"] += 1
            where = {key: mark[key] for key in ("ts_ns", "step", "micro_step", "mark")}
            about = {"param_id": param, "size_bytes": size, "address": address, "storage_id": storage}
            held = {"release_event_id": free, "holder": "MmBackward0._saved_mat2", "holder_module": owner}
            story.rows["retained"].append({**where, **about, **held})

    def _gather_persistent(self) -> None:
        missing = [param for param in sorted(self._model.persistent) if param not in self._full]
        if not missing:
            return
        event = self._story.begin(Kind.GATHER, "persistent", None, tuple(missing))
        for param in missing:
            self._bear(param, event)
        self._story.end(event, Kind.GATHER)

    def _work(self, name: str, where: str) -> None:
        size = self._model.work.get((name, where), 0)
        if size:
            self._story.free(self._story.alloc(size), size)

    def _owner(self, param: int) -> str:
        return next(name for name, params in self._model.owned.items() if param in params)

    def _phase(self, name: str) -> int:
        self._story.phase = name
        return self._story.begin(Kind.PHASE, name)


def other(model: Model, **knobs: Any) -> Model:
    """The same model with other knobs."""
    return replace(model, **knobs)
