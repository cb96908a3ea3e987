"""Names and sizes of the model's modules and parameters, and the storages that ZeRO keeps for them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from zeropeak.profile.labels import Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from zeropeak.profile.eventlog import EventLog
    from zeropeak.profile.storages import Storages


class ModelIndex:
    """Ids of modules and parameters, by identity.

    Args:
        model: the module that DeepSpeed wraps (``engine.module``).
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.module_ids: dict[int, int] = {}
        self.module_names: list[str] = []
        self.param_ids: dict[int, int] = {}
        self.param_names: list[str] = []
        self._owners: list[int] = []
        self._params: list[Any] = []
        for name, module in model.named_modules():
            self.module_ids[id(module)] = len(self.module_names)
            self.module_names.append(name)
        for name, param in model.named_parameters():
            self.param_ids[id(param)] = len(self._params)
            self.param_names.append(name)
            self._params.append(param)
        owner_of = {
            id(param): self.module_ids[id(module)]
            for module in model.modules()
            for param in module._parameters.values()
            if param is not None
        }
        self._owners = [owner_of[id(param)] for param in self._params]
        self._persistent = [number for number, param in enumerate(self._params) if getattr(param, "ds_persist", False)]
        self._shards: list[Callable[[], Any]] = [_nothing] * len(self._params)
        self._buffers_known = False

    def module_id(self, module: object) -> int | None:
        """Id of a module; None for one that is not in the model."""
        return self.module_ids.get(id(module))

    def module_name(self, module: object) -> str:
        """Qualified name, ``model`` for the root, the class for a module that is not in the model."""
        number = self.module_ids.get(id(module))
        return type(module).__name__ if number is None else self.module_names[number] or "model"

    def param_id(self, param: object) -> int | None:
        """Id of a parameter; None for one that is not in the model."""
        return self.param_ids.get(id(param))

    def ids_of(self, params: Iterable[object]) -> list[int]:
        """Ids of those of ``params`` that are in the model, ascending."""
        known = self.param_ids
        return sorted([known[id(param)] for param in params if id(param) in known])

    def target(self, param_ids: list[int]) -> str:
        """Readable target of an event on parameters: the common module, else the first module and how many follow."""
        if len(param_ids) == 1:
            return self.module_names[self._owners[param_ids[0]]] or "model"
        owners = list(dict.fromkeys([self._owners[number] for number in param_ids]))
        if not owners:
            return "parameters"
        first = self.module_names[owners[0]] or "model"
        return first if len(owners) == 1 else f"{first} and {len(owners) - 1} more"

    def write(self, log: EventLog) -> None:
        """Write the ``modules`` and ``params`` streams."""
        parents = {
            id(child): self.module_ids[id(module)] for module in self.model.modules() for child in module.children()
        }
        for name, module in self.model.named_modules():
            log.append(
                "modules",
                (self.module_ids[id(module)], name, type(module).__name__, parents.get(id(module))),
            )
        for number, param in enumerate(self._params):
            shape = list(getattr(param, "ds_shape", param.shape))
            numel = int(getattr(param, "ds_numel", param.numel()))
            shard = getattr(param, "ds_tensor", None)
            full_bytes = numel * param.element_size()
            log.append(
                "params",
                (
                    number,
                    self.param_names[number],
                    self._owners[number],
                    [int(side) for side in shape],
                    str(param.dtype).removeprefix("torch."),
                    numel,
                    full_bytes,
                    full_bytes if shard is None else shard.numel() * shard.element_size(),
                    bool(param.requires_grad),
                    bool(getattr(param, "ds_persist", False)),
                ),
            )

    def register_gradients(self, storages: Storages, optimizer: Any) -> None:
        """Register what a backward leaves and is not yet known: gradients, whole and of the shards."""
        for number, param in enumerate(self._params):
            if param.grad is not None:
                storages.register(param.grad, Stored.GRADIENT_FULL, self.param_names[number], number)
        for category, owner, tensor in _optimizer_tensors(optimizer):
            storages.register(tensor, category, owner)

    def register_storages(self, storages: Storages, optimizer: Any) -> None:
        """Register what is alive now and not yet known: shards, masters, optimizer states, gradients, buffers."""
        for number, param in enumerate(self._params):
            shard = getattr(param, "ds_tensor", None)
            if shard is not None and self._shards[number]() is shard:
                continue  # known from an earlier mark, as all but a few are
            self._shards[number] = _nothing if shard is None else weakref.ref(shard)
            name = self.param_names[number]
            if shard is None:
                storages.register(param.data, Stored.PARAM_REPLICATED, name, number)
            else:
                # Trainable shards are views of one flat buffer: it belongs to no single parameter.
                shared = shard.untyped_storage().nbytes() > shard.numel() * shard.element_size()
                storages.register(
                    shard, Stored.PARAM_SHARD, "flat shards" if shared else name, None if shared else number
                )
        for number in self._persistent:
            storages.register(self._params[number], Stored.PARAM_PERSISTENT, self.param_names[number], number)
        if not self._buffers_known:
            self._buffers_known = True
            for name, buffer in self.model.named_buffers():
                storages.register(buffer, Stored.MODULE_BUFFER, name)
        self.register_gradients(storages, optimizer)


def _nothing() -> None:
    """Stands for the reference to a shard before there is one."""


_OPTIMIZER_TENSORS = (
    ("fp32_partitioned_groups_flat", Stored.FP32_MASTER),
    ("single_partition_of_fp32_groups", Stored.FP32_MASTER),
    ("bit16_groups_flat", Stored.PARAM_REPLICATED),
    ("grad_partitions_flat_buffer", Stored.GRADIENT_SHARD),
    ("averaged_gradients", Stored.GRADIENT_SHARD),
    ("grads_in_partition", Stored.GRADIENT_SHARD),
)
"""Attributes of DeepSpeed's ZeRO optimizers (stages 1 to 3) that hold tensors, lists or dictionaries of them."""


def bucket_tensors(optimizer: Any) -> Iterator[Any]:
    """The flat buffers in which gradients are collected: stage 3 has one a data type, stages 1 and 2 a list."""
    for bucket in getattr(optimizer, "ipg_buckets", {}).values():
        yield from _flatten(getattr(bucket, "buffer", None))


def _optimizer_tensors(optimizer: Any) -> Iterator[tuple[Stored, str, Any]]:
    for attribute, category in _OPTIMIZER_TENSORS:
        for tensor in _flatten(getattr(optimizer, attribute, None)):
            yield category, attribute, tensor
    for tensor in bucket_tensors(optimizer):
        yield Stored.GRADIENT_BUCKET, "ipg bucket", tensor
    states = getattr(getattr(optimizer, "optimizer", optimizer), "state", {})
    for state in states.values():
        for name, tensor in state.items():
            for one in _flatten(tensor):
                yield Stored.OPTIMIZER_STATE, str(name), one
    for master in _flatten(getattr(optimizer, "fp32_partitioned_groups_flat", None)):
        if master.grad is not None:
            yield Stored.GRADIENT_SHARD, "fp32 gradient", master.grad


def _flatten(value: object) -> Iterator[Any]:
    from torch import Tensor

    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _flatten(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _flatten(one)
