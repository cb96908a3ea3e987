"""What is recorded at each hook point: fetches, prefetches, waits, releases, frees, gathers, reductions, steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeropeak.profile.guard import RAISED
from zeropeak.profile.labels import Kind, Stored
from zeropeak.profile.looked_up import OneModule, ParamGroup
from zeropeak.profile.model_index import bucket_tensors
from zeropeak.profile.packed import NONE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zeropeak.profile.holders import SequenceSpans
    from zeropeak.profile.model_index import ModelIndex
    from zeropeak.profile.recorder import Known, OpenEvent, Recorder
    from zeropeak.profile.storages import Alive, Storages


class Observers:
    """Observers of one rank. Nothing is recorded before :meth:`attach`.

    Each method is called as ``before(*args)`` or ``after(token, result, *args)`` of the wrapped function.
    """

    def __init__(self, recorder: Recorder, storages: Storages) -> None:
        self.recorder = recorder
        self.storages = storages
        self.index: ModelIndex | None = None
        self.spans: SequenceSpans | None = None
        self._modules: dict[int, OneModule] = {}
        self._groups: dict[tuple[int, ...], ParamGroup] = {}
        self._frees: list[Known] = []
        self._contexts: dict[int, OpenEvent] = {}
        # DeepSpeed's schedule runs on one thread at a time.
        self._running: OneModule | None = None
        self._in_context = False
        self._buckets_seen = -1

    def attach(self, index: ModelIndex) -> None:
        """Start recording, with names from ``index``."""
        self.index = index
        self._frees = [self.recorder.known(Kind.FREE, name) for name in index.param_names]

    # Modules

    def forward_begins(self, offload: object, module: Any, *_: object) -> None:
        """A module's forward begins, before its parameters are fetched."""
        if self.index is not None:
            self._running = about = self._modules.get(id(module)) or self._learn(module)
            if self.spans is not None:
                self.spans.enter(about.number)
            about.open_forward.append(self.recorder.begin(about.forward, about.number))

    def forward_ended(self, token: object, result: object, offload: object, module: Any, *_: object) -> None:
        """A module's forward ended and its parameters were released."""
        self._running = None
        self._module_ended(module, forward=True)

    def backward_begins(self, offload: object, module: Any, *_: object) -> None:
        """A module's backward begins, before its parameters are fetched."""
        if self.index is not None:
            self._running = about = self._modules.get(id(module)) or self._learn(module)
            about.open_backward.append(self.recorder.begin(about.backward, about.number))

    def backward_ended(self, token: object, result: object, offload: object, module: Any, *_: object) -> None:
        """A module's backward ended and its parameters were released."""
        self._running = None
        self._module_ended(module, forward=False)

    def _module_ended(self, module: Any, *, forward: bool) -> None:
        """Close a module's innermost range."""
        about = self._modules.get(id(module))
        if about is None:
            return
        if forward and self.spans is not None:
            self.spans.leave(about.number)
        opened = about.open_forward if forward else about.open_backward
        if opened:
            self.recorder.end(opened.pop())

    def end_modules(self) -> None:
        """Close modules that are still open: the phase ended without their hook (no gradient, or an exception)."""
        for about in self._modules.values():
            for opened in (about.open_forward, about.open_backward):
                while opened:
                    self.recorder.end(opened.pop())

    def _learn(self, module: Any) -> OneModule:
        assert self.index is not None
        name, known = self.index.module_name(module), self.recorder.known
        # A leaf module (z3_leaf_module) is fetched and released with everything below it.
        own = module.parameters() if getattr(module, "_z3_leaf", False) else module._parameters.values()
        params = [param for param in own if param is not None]
        number = self.index.module_id(module)
        about = OneModule(
            module,
            NONE if number is None else number,
            known(Kind.MODULE, f"{name} forward", nested=False),
            known(Kind.MODULE, f"{name} backward", nested=False),
            known(Kind.RELEASE, name),
            known(Kind.FETCH, name),
            # What is persistent is never released: a module that owns nothing else has no releases.
            [param for param in params if not getattr(param, "ds_persist", False)],
            frozenset(id(param) for param in params),
            [],
            [],
        )
        self._modules[id(module)] = about
        return about

    # Fetch, prefetch, wait

    def gather_launches(self, coordinator: object, params: Iterable[Any], *_: object, **__: object) -> OpenEvent | None:
        """An all-gather is launched for ``params``."""
        if self.index is None:
            return None
        missing = [param for param in params if param.ds_status._name_ == "NOT_AVAILABLE"]
        if not missing:
            return None
        running = self._running
        group = self._group(missing)
        if running is not None and all(running.uses(param) for param in missing):
            return self.recorder.begin(running.fetch, running.number, group.ids)
        return self.recorder.begin(group.prefetch, NONE if running is None else running.number, group.ids)

    def ended(self, token: OpenEvent | None, *_: object, **__: object) -> None:
        """Close the event that the ``before`` observer opened."""
        if token is not None:
            self.recorder.end(token)

    def coalesced_launched(self, token: object, result: object, handle: Any, *_: object, **__: object) -> None:
        """A gather of several parameters allocated its flat buffer."""
        if self.index is None or not handle.partitions:
            return
        self.storages.register(
            handle.partitions[0],
            Stored.GATHER_BUFFER,
            self._group(handle.params).target,
            event_id=self.recorder.current(),
        )

    def single_launched(
        self, token: object, result: object, handle: Any, handle_: object, param: Any, *_: object, **__: object
    ) -> None:
        """A gather of one parameter: its data is a view of the gather's own buffer from here on."""
        if self.index is not None and param.data.numel():
            self._register_full(param, self.recorder.current())

    def coalesced_wait_begins(self, handle: Any, *_: object, **__: object) -> tuple[OpenEvent, list[Any]] | None:
        """The compute side waits for a gather of several parameters."""
        return None if handle.complete else self._wait_begins(list(handle.params))

    def single_wait_begins(self, handle: Any, *_: object, **__: object) -> tuple[OpenEvent, list[Any]] | None:
        """The compute side waits for a gather of one parameter."""
        done, param = _private(handle, "complete"), _private(handle, "param")
        return None if done else self._wait_begins([param])

    def ungathered_wait_begins(self, handle: Any, *_: object, **__: object) -> tuple[OpenEvent, list[Any]] | None:
        """One rank in the group: nothing to gather, the shards become usable."""
        done, params = _private(handle, "complete"), _private(handle, "params")
        return None if done else self._wait_begins(list(params))

    def wait_ended(self, token: tuple[OpenEvent, list[Any]] | None, result: object, *_: object, **__: object) -> None:
        """The full parameters are usable."""
        if token is None or self.index is None:
            return
        opened, params = token
        if result is not RAISED:
            for param in params:
                storage = self._register_full(param, opened[0])
                if storage is not None:
                    self.recorder.moved(opened, self.index.param_ids[id(param)], storage.address, storage.storage_id)
        self.recorder.end(opened)

    # Release and free

    def release_begins(
        self, coordinator: object, module: Any, *_: object, **__: object
    ) -> tuple[OpenEvent, list[Any]] | None:
        """A module lets go of its parameters; which of them really go is known at the end."""
        if self.index is None:
            return None
        about = self._modules.get(id(module)) or self._learn(module)
        if not about.params:
            return None  # containers, activations and norms let go of nothing: their release is no event
        held = [param for param in about.params if param.ds_status._name_ == "AVAILABLE"]
        return self.recorder.begin(about.release, about.number), held

    def release_ended(self, token: tuple[OpenEvent, list[Any]] | None, *_: object, **__: object) -> None:
        """Note the parameters that went: not those that stay for reuse, or because they are small."""
        if token is None or self.index is None:
            return
        opened, held = token
        numbers = self.index.param_ids
        for param in held:
            if param.ds_status._name_ == "NOT_AVAILABLE" and id(param) in numbers:
                self.recorder.moved(opened, numbers[id(param)])
        self.recorder.end(opened)

    def leftovers_begin(self, *_: object) -> OpenEvent | None:
        """Modules whose post-backward hook never fired are released."""
        return None if self.index is None else self._begin(Kind.RELEASE, "backward leftovers")

    def release_all_begins(self, *_: object) -> OpenEvent | None:
        """Every parameter is released, before the optimizer step."""
        return None if self.index is None else self._begin(Kind.RELEASE, "all parameters")

    def free_begins(self, param: Any) -> tuple[int, Alive, int] | None:
        """A parameter is about to let go of its full storage."""
        if self.index is None:
            # zero.Init partitions while it builds. No event yet, since names are unknown; but the storage's end is
            # logged: gloo drops its last reference on a thread whose frees no profiler reports.
            self.storages.register(param.data, Stored.PARAM_FULL, None)
            return None
        storage = self._register_full(param, NONE)
        if storage is None:
            return None
        number = self.index.param_ids[id(param)]
        # With one rank in the group nothing is gathered: the full parameter is the shard, and stays by design.
        kept = _is_shard(param)
        event = self.recorder.point(self._frees[number], number, storage.address, NONE if kept else storage.storage_id)
        return None if kept else (number, storage, event)

    def free_ended(self, token: tuple[int, Alive, int] | None, result: object, *_: object) -> None:
        """It let go: whether the storage ended shows in the registry."""
        if token is not None and result is not RAISED and token[1]() is not None:
            number, storage, event = token
            self.storages.release(storage, number, event)

    # Gathers outside the schedule

    def gathered_begins(self, context: Any) -> None:
        """``GatheredParameters`` gathers."""
        if self.index is not None and context.enabled:
            ids = self.index.ids_of(context.params)
            known = self.recorder.known(Kind.GATHER, self.index.target(ids), nested=False)
            self._contexts[id(context)] = self.recorder.begin(known, NONE, ids)
            self._in_context = True

    def gathered_open(self, token: object, result: object, context: Any) -> None:
        """The parameters are gathered until the context is left."""
        self._in_context = False
        if result is RAISED:
            self.gathered_ended(None, result, context)
        elif id(context) in self._contexts:
            for param in context.params:
                self._register_full(param, self.recorder.current())

    def gathered_ended(self, token: object, result: object, context: Any, *_: object) -> None:
        """The context was left and the parameters partitioned again."""
        opened = self._contexts.pop(id(context), None)
        if opened is not None:
            self.recorder.end(opened)

    def external_begins(self, init: object, params: Any, *_: object, **__: object) -> OpenEvent | None:
        """A parameter is gathered by ``param.all_gather()``: used outside the module that owns it."""
        if self.index is None or self._in_context:
            return None
        ids = self.index.ids_of(param for param in params if param.ds_status._name_ == "NOT_AVAILABLE")
        return self._begin(Kind.GATHER, self.index.target(ids), ids) if ids else None

    def external_ended(
        self, token: OpenEvent | None, result: object, init: object, params: Any, *_: object, **__: object
    ) -> None:
        """The parameter is usable."""
        if token is not None:
            if result is not RAISED:
                for param in params:
                    self._register_full(param, token[0])
            self.recorder.end(token)

    # Gradients and the optimizer

    def reduce_begins(self, optimizer: Any, *args: object, **__: object) -> OpenEvent | None:
        """A gradient bucket is reduced; an empty one is no event."""
        if self.index is None:
            return None
        ids: list[int] = []
        buckets = getattr(optimizer, "ipg_buckets", None)
        if buckets is not None:
            params = [param for bucket in buckets.values() for param in _bucket_params(optimizer, bucket)]
            if not params:
                return None
            ids = self.index.ids_of(params)
        return self._begin(Kind.REDUCE, "gradients", ids)

    def gradient_ready(self, optimizer: Any, param: Any, *_: object, **__: object) -> None:
        """A parameter's whole gradient exists and goes into a bucket, which stages 1 and 2 make for each backward."""
        if self.index is None:
            return
        event = self.recorder.current()
        # The buckets' buffers are made before a backward's first gradient.
        if self._buckets_seen != self.recorder.position.version:
            self._buckets_seen = self.recorder.position.version
            for buffer in bucket_tensors(optimizer):
                self.storages.register(buffer, Stored.GRADIENT_BUCKET, "ipg bucket", event_id=event)
        number = self.index.param_id(param)
        # Gradients that are accumulated in another precision than the parameter's have an attribute of their own.
        grad = param.grad if param.grad is not None else getattr(param, "grad_accum", None)
        if grad is not None and number is not None:
            self.storages.register(grad, Stored.GRADIENT_FULL, self.index.param_names[number], number, event)

    def reduce_scatters(self, buffer: Any, *_: object, **__: object) -> None:
        """A flat buffer of gradients goes into a collective, whose thread may be the last to let go of it."""
        if self.index is not None:
            self.storages.register(buffer, Stored.GRADIENT_BUCKET, "reduce buffer", event_id=self.recorder.current())

    def all_gather_begins(self, *_: object, **__: object) -> OpenEvent | None:
        """Stages 1 and 2 gather the updated parameters."""
        return None if self.index is None else self._begin(Kind.ALL_GATHER, "updated parameters")

    def step_begins(self, *_: object, **__: object) -> OpenEvent | None:
        """The optimizer steps."""
        return None if self.index is None else self._begin(Kind.STEP)

    # Shared

    def _wait_begins(self, params: list[Any]) -> tuple[OpenEvent, list[Any]] | None:
        if self.index is None:
            return None
        # Parameters are written at the end, when their full storage exists.
        running = self._running
        return self.recorder.begin(self._group(params).wait, NONE if running is None else running.number), params

    def _begin(self, kind: Kind, target: str = "", params: Iterable[int] = ()) -> OpenEvent:
        """An event that no module's hook reports."""
        return self.recorder.begin(self.recorder.known(kind, target), NONE, params)

    def _register_full(self, param: Any, event_id: int) -> Alive | None:
        """The storage that a parameter of the model has now: registered, if it was not."""
        assert self.index is not None
        number = self.index.param_ids.get(id(param))
        if number is None:
            return None
        stored = Stored.PARAM_PERSISTENT if getattr(param, "ds_persist", False) else Stored.PARAM_FULL
        return self.storages.register(param, stored, self.index.param_names[number], number, event_id)

    def _group(self, params: Iterable[Any]) -> ParamGroup:
        """What is known of parameters that are moved together."""
        assert self.index is not None
        numbers = self.index.param_ids
        key = tuple([numbers[id(param)] for param in params if id(param) in numbers])
        group = self._groups.get(key)
        if group is None:
            ids = sorted(key)
            target, known = self.index.target(ids), self.recorder.known
            group = self._groups[key] = ParamGroup(ids, target, known(Kind.PREFETCH, target), known(Kind.WAIT, target))
        return group


def _is_shard(param: Any) -> bool:
    """Whether the full parameter and its shard are one storage."""
    shard = getattr(param, "ds_tensor", None)
    if shard is None or shard.ds_numel < param.ds_numel:
        return False
    return bool(shard.untyped_storage()._cdata == param.untyped_storage()._cdata)


def _private(handle: Any, name: str) -> Any:
    """A private attribute of one of DeepSpeed's handles."""
    return getattr(handle, f"_{type(handle).__name__}__{name}")


def _bucket_params(optimizer: Any, bucket: Any) -> list[Any]:
    """Parameters in a bucket: stage 3 keeps them, stages 1 and 2 keep (group, index in group, id)."""
    return [
        optimizer.bit16_groups[entry[0]][entry[1]] if isinstance(entry, tuple) else entry
        for entry in getattr(bucket, "params", ())
    ]
