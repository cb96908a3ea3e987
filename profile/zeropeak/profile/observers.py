"""What is recorded at each hook point: fetches, prefetches, waits, releases, frees, gathers, reductions, steps."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from zeropeak.profile.guard import RAISED
from zeropeak.profile.labels import Kind, Stored

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zeropeak.profile.holders import SequenceSpans
    from zeropeak.profile.model_index import ModelIndex
    from zeropeak.profile.recorder import OpenEvent, Recorder
    from zeropeak.profile.storages import Storages


class Observers:
    """Observers of one rank. Nothing is recorded before :meth:`attach`.

    Each method is called as ``before(*args)`` or ``after(token, result, *args)`` of the wrapped function.
    """

    def __init__(self, recorder: Recorder, storages: Storages) -> None:
        self.recorder = recorder
        self.storages = storages
        self.index: ModelIndex | None = None
        self.spans: SequenceSpans | None = None
        self._modules: dict[tuple[int, bool], list[OpenEvent]] = {}
        self._contexts: dict[int, OpenEvent] = {}
        self._local = threading.local()

    def attach(self, index: ModelIndex) -> None:
        """Start recording, with names from ``index``."""
        self.index = index

    # Modules

    def forward_begins(self, offload: object, module: Any, *_: object) -> None:
        """A module's forward begins, before its parameters are fetched."""
        self.module_begins(module, forward=True)

    def forward_ended(self, token: object, result: object, offload: object, module: Any, *_: object) -> None:
        """A module's forward ended and its parameters were released."""
        self.module_ended(module, forward=True)

    def backward_begins(self, offload: object, module: Any, *_: object) -> None:
        """A module's backward begins, before its parameters are fetched."""
        self.module_begins(module, forward=False)

    def backward_ended(self, token: object, result: object, offload: object, module: Any, *_: object) -> None:
        """A module's backward ended and its parameters were released."""
        self.module_ended(module, forward=False)

    def module_begins(self, module: Any, *, forward: bool) -> None:
        """Open a module's range."""
        if self.index is None:
            return
        number = self.index.module_id(module)
        if forward and self.spans is not None:
            self.spans.enter(number)
        target = f"{self.index.module_name(module)} {'forward' if forward else 'backward'}"
        opened = self.recorder.begin(Kind.MODULE, target, number, nested=False)
        self._modules.setdefault((id(module), forward), []).append(opened)

    def module_ended(self, module: Any, *, forward: bool) -> None:
        """Close a module's innermost range."""
        if self.index is None:
            return
        if forward and self.spans is not None:
            self.spans.leave(self.index.module_id(module))
        opened = self._modules.get((id(module), forward))
        if opened:
            self.recorder.end(opened.pop())

    def end_modules(self) -> None:
        """Close modules that are still open: the phase ended without their hook (no gradient, or an exception)."""
        for opened in self._modules.values():
            while opened:
                self.recorder.end(opened.pop())

    # Fetch, prefetch, wait

    def fetching_for(self, coordinator: object, module: Any, *_: object, **__: object) -> None:
        """The coordinator fetches for ``module``: what it gathers of the module's own is a fetch, the rest prefetch."""
        self._local.module = module

    def fetched_for(self, *_: object, **__: object) -> None:
        """The coordinator is done with the module."""
        self._local.module = None

    def gather_launches(self, coordinator: object, params: Iterable[Any], *_: object, **__: object) -> OpenEvent | None:
        """An all-gather is launched for ``params``."""
        if self.index is None:
            return None
        missing = [param for param in params if param.ds_status.name == "NOT_AVAILABLE"]
        if not missing:
            return None
        module = getattr(self._local, "module", None)
        own = module is not None and all(self._uses(module, param) for param in missing)
        ids = self.index.ids_of(missing)
        if own:
            return self.recorder.begin(
                Kind.FETCH, self.index.module_name(module), self.index.module_id(module), params=ids
            )
        running = self.index.module_id(module) if module is not None else None
        return self.recorder.begin(Kind.PREFETCH, self.index.target(ids), running, params=ids)

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
            self.index.target(self.index.ids_of(handle.params)),
            event_id=self.recorder.current(),
        )

    def single_launched(
        self, token: object, result: object, handle: Any, handle_: object, param: Any, *_: object, **__: object
    ) -> None:
        """A gather of one parameter: its data is a view of the gather's own buffer from here on."""
        if self.index is not None and param.data.numel():
            self._register_full(param)

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
                number = self.index.param_id(param)
                if number is not None:
                    storage = self._register_full(param)
                    self.recorder.log.append(
                        "event_params", (opened.event_id, number, param.data.untyped_storage().data_ptr(), storage)
                    )
        self.recorder.end(opened)

    # Release and free

    def release_begins(
        self, coordinator: object, module: Any, *_: object, **__: object
    ) -> tuple[OpenEvent, list[Any]] | None:
        """A module lets go of its parameters; which of them really go is known at the end."""
        if self.index is None:
            return None
        own = list(module.parameters(recurse=bool(getattr(module, "_z3_leaf", False))))
        if not own:
            return None  # containers and activations own nothing: their release is no event
        held = [param for param in own if param.ds_status.name == "AVAILABLE"]
        opened = self.recorder.begin(Kind.RELEASE, self.index.module_name(module), self.index.module_id(module))
        return opened, held

    def release_ended(self, token: tuple[OpenEvent, list[Any]] | None, *_: object, **__: object) -> None:
        """Note the parameters that went: not those that stay for reuse, or because they are small."""
        if token is None or self.index is None:
            return
        opened, held = token
        for number in self.index.ids_of(param for param in held if param.ds_status.name == "NOT_AVAILABLE"):
            self.recorder.log.append("event_params", (opened.event_id, number, None, None))
        self.recorder.end(opened)

    def leftovers_begin(self, *_: object) -> OpenEvent | None:
        """Modules whose post-backward hook never fired are released."""
        return None if self.index is None else self.recorder.begin(Kind.RELEASE, "backward leftovers")

    def release_all_begins(self, *_: object) -> OpenEvent | None:
        """Every parameter is released, before the optimizer step."""
        return None if self.index is None else self.recorder.begin(Kind.RELEASE, "all parameters")

    def free_begins(self, param: Any) -> tuple[int, Any, int, bool] | None:
        """A parameter is about to let go of its full storage."""
        if self.index is None:
            # zero.Init partitions while it builds. No event yet, since names are unknown; but the storage's end is
            # logged: gloo drops its last reference on a thread whose frees no profiler reports.
            self.storages.register(param.data, Stored.PARAM_FULL, None)
            return None
        number = self.index.param_id(param)
        if number is None or not param.data.numel():
            return None
        self._register_full(param)
        storage = self.storages.find(param.data)
        if storage is None:
            return None
        # With one rank in the group nothing is gathered: the full parameter is the shard, and stays by design.
        shard = getattr(param, "ds_tensor", None)
        kept = shard is not None and shard.untyped_storage()._cdata == param.data.untyped_storage()._cdata
        released = None if kept else storage.storage_id
        event = self.recorder.point(Kind.FREE, self.index.param_names[number], [(number, storage.address, released)])
        return number, storage, event, kept

    def free_ended(self, token: tuple[int, Any, int, bool] | None, result: object, *_: object) -> None:
        """It let go: whether the storage ended shows in the registry."""
        if token is not None and result is not RAISED:
            number, storage, event, kept = token
            if not kept and storage.reference() is not None:
                self.storages.release(storage, number, event)

    # Gathers outside the schedule

    def gathered_begins(self, context: Any) -> None:
        """``GatheredParameters`` gathers."""
        if self.index is not None and context.enabled:
            ids = self.index.ids_of(context.params)
            self._contexts[id(context)] = self.recorder.begin(
                Kind.GATHER, self.index.target(ids), None, params=ids, nested=False
            )
            self._local.in_context = True

    def gathered_open(self, token: object, result: object, context: Any) -> None:
        """The parameters are gathered until the context is left."""
        self._local.in_context = False
        if result is RAISED:
            self.gathered_ended(None, result, context)
        elif id(context) in self._contexts:
            for param in context.params:
                self._register_full(param)

    def gathered_ended(self, token: object, result: object, context: Any, *_: object) -> None:
        """The context was left and the parameters partitioned again."""
        opened = self._contexts.pop(id(context), None)
        if opened is not None:
            self.recorder.end(opened)

    def external_begins(self, init: object, params: Any, *_: object, **__: object) -> OpenEvent | None:
        """A parameter is gathered by ``param.all_gather()``: used outside the module that owns it."""
        if self.index is None or getattr(self._local, "in_context", False):
            return None
        missing = [param for param in params if param.ds_status.name == "NOT_AVAILABLE"]
        ids = self.index.ids_of(missing)
        return self.recorder.begin(Kind.GATHER, self.index.target(ids), None, params=ids) if ids else None

    def external_ended(
        self, token: OpenEvent | None, result: object, init: object, params: Any, *_: object, **__: object
    ) -> None:
        """The parameter is usable."""
        if token is not None:
            if result is not RAISED:
                for param in params:
                    self._register_full(param)
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
        return self.recorder.begin(Kind.REDUCE, "gradients", None, params=ids)

    def reduce_scatters(self, buffer: Any, *_: object, **__: object) -> None:
        """A flat buffer of gradients goes into a collective, whose thread may be the last to let go of it."""
        if self.index is not None:
            self.storages.register(buffer, Stored.GRADIENT_BUCKET, "reduce buffer", event_id=self.recorder.current())

    def all_gather_begins(self, *_: object, **__: object) -> OpenEvent | None:
        """Stages 1 and 2 gather the updated parameters."""
        return None if self.index is None else self.recorder.begin(Kind.ALL_GATHER, "updated parameters")

    def step_begins(self, *_: object, **__: object) -> OpenEvent | None:
        """The optimizer steps."""
        return None if self.index is None else self.recorder.begin(Kind.STEP)

    # Shared

    def _wait_begins(self, params: list[Any]) -> tuple[OpenEvent, list[Any]] | None:
        if self.index is None:
            return None
        # Parameters are written at the end, when their full storage exists.
        running = getattr(self._local, "module", None)
        opened = self.recorder.begin(
            Kind.WAIT,
            self.index.target(self.index.ids_of(params)),
            self.index.module_id(running) if running is not None else None,
        )
        return opened, params

    def _register_full(self, param: Any) -> int | None:
        assert self.index is not None
        number = self.index.param_id(param)
        if number is None:
            return None
        persistent = getattr(param, "ds_persist", False)
        return self.storages.register(
            param.data,
            Stored.PARAM_PERSISTENT if persistent else Stored.PARAM_FULL,
            self.index.param_names[number],
            number,
            self.recorder.current(),
        )

    @staticmethod
    def _uses(module: Any, param: object) -> bool:
        if any(own is param for own in module._parameters.values()):
            return True
        external = getattr(module, "_external_params", {})
        if any(own is param for own in external.values()):
            return True
        # A leaf module (z3_leaf_module) is fetched with everything below it.
        return bool(getattr(module, "_z3_leaf", False)) and any(own is param for own in module.parameters())


def _private(handle: Any, name: str) -> Any:
    """A private attribute of one of DeepSpeed's handles."""
    return getattr(handle, f"_{type(handle).__name__}__{name}")


def _bucket_params(optimizer: Any, bucket: Any) -> list[Any]:
    """Parameters in a bucket: stage 3 keeps them, stages 1 and 2 keep (group, index in group, id)."""
    return [
        optimizer.bit16_groups[entry[0]][entry[1]] if isinstance(entry, tuple) else entry
        for entry in getattr(bucket, "params", ())
    ]
