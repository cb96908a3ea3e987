"""Hook points in DeepSpeed, resolved by name at run time; :mod:`zeropeak.profile.observers` says what is recorded.

DeepSpeed moves and renames these between releases. A point that is not there is reported once, by name; training and
the other points go on. Names were read in DeepSpeed 0.19.8, older spellings where named.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeropeak.profile.guard import Guard
    from zeropeak.profile.observers import Observers


@dataclass(frozen=True)
class HookPoint:
    """One function of DeepSpeed that we wrap.

    Args:
        name: our name for it, used in reports.
        module: module it lives in.
        path: attribute path in the module; name-mangled where DeepSpeed's is private.
        stages: ZeRO stages that need it.
        before: name of the :class:`~zeropeak.profile.observers.Observers` method called before it, giving the token.
        after: name of the method called after it, also when it raised.
    """

    name: str
    module: str
    path: str
    stages: frozenset[int]
    before: str | None
    after: str | None


_STAGE3: Final = frozenset({3})
_STAGE12: Final = frozenset({1, 2})
_ALL: Final = frozenset({1, 2, 3})
_PARTITION: Final = "deepspeed.runtime.zero.partition_parameters"
_COORDINATOR: Final = "deepspeed.runtime.zero.partitioned_param_coordinator"
_OFFLOAD: Final = "deepspeed.runtime.zero.parameter_offload"
_ENGINE: Final = "deepspeed.runtime.engine"
_STAGE3_OPTIMIZER: Final = "deepspeed.runtime.zero.stage3"
_STAGE12_OPTIMIZER: Final = "deepspeed.runtime.zero.stage_1_and_2"
_COLLECTIVES: Final = "deepspeed.runtime.comm.coalesced_collectives"

POINTS: Final = tuple(
    HookPoint(*row)
    for row in (
        (
            "module forward begin",
            _OFFLOAD,
            "DeepSpeedZeRoOffload.pre_sub_module_forward_function",
            _STAGE3,
            "forward_begins",
            None,
        ),
        (
            "module forward end",
            _OFFLOAD,
            "DeepSpeedZeRoOffload.post_sub_module_forward_function",
            _STAGE3,
            None,
            "forward_ended",
        ),
        (
            "module backward begin",
            _OFFLOAD,
            "DeepSpeedZeRoOffload.pre_sub_module_backward_function",
            _STAGE3,
            "backward_begins",
            None,
        ),
        (
            "module backward end",
            _OFFLOAD,
            "DeepSpeedZeRoOffload.post_sub_module_backward_function",
            _STAGE3,
            None,
            "backward_ended",
        ),
        (
            "fetch and prefetch",
            _COORDINATOR,
            "PartitionedParameterCoordinator._PartitionedParameterCoordinator__all_gather_params",
            _STAGE3,
            "gather_launches",
            "ended",
        ),
        (
            "release",
            _COORDINATOR,
            "PartitionedParameterCoordinator.release_sub_module",
            _STAGE3,
            "release_begins",
            "release_ended",
        ),
        (
            "release of backward leftovers",
            _COORDINATOR,
            "PartitionedParameterCoordinator.release_backward_leftovers",
            _STAGE3,
            "leftovers_begin",
            "ended",
        ),
        (
            "release of everything",
            _COORDINATOR,
            "PartitionedParameterCoordinator.release_and_reset_all",
            _STAGE3,
            "release_all_begins",
            "ended",
        ),
        (
            "coalesced gather launched",
            _PARTITION,
            "AllGatherCoalescedHandle.__init__",
            _STAGE3,
            None,
            "coalesced_launched",
        ),
        (
            "coalesced gather done",
            _PARTITION,
            "AllGatherCoalescedHandle.wait",
            _STAGE3,
            "coalesced_wait_begins",
            "wait_ended",
        ),
        ("single gather launched", _PARTITION, "AllGatherHandle.__init__", _STAGE3, None, "single_launched"),
        ("single gather done", _PARTITION, "AllGatherHandle.wait", _STAGE3, "single_wait_begins", "wait_ended"),
        (
            "coalesced gather on one rank",
            _PARTITION,
            "NoGatherCoalescedHandle.wait",
            _STAGE3,
            "ungathered_wait_begins",
            "wait_ended",
        ),
        ("single gather on one rank", _PARTITION, "NoGatherHandle.wait", _STAGE3, "single_wait_begins", "wait_ended"),
        ("free", _PARTITION, "free_param", _STAGE3, "free_begins", "free_ended"),
        (
            "gathered parameters entered",
            _PARTITION,
            "GatheredParameters.__enter__",
            _STAGE3,
            "gathered_begins",
            "gathered_open",
        ),
        ("gathered parameters left", _PARTITION, "GatheredParameters.__exit__", _STAGE3, None, "gathered_ended"),
        ("external gather", _PARTITION, "Init._all_gather", _STAGE3, "external_begins", "external_ended"),
        (
            "reduce",
            _STAGE3_OPTIMIZER,
            "DeepSpeedZeroOptimizer_Stage3._DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads",
            _STAGE3,
            "reduce_begins",
            "ended",
        ),
        (
            "gradient ready",
            _STAGE3_OPTIMIZER,
            "DeepSpeedZeroOptimizer_Stage3._DeepSpeedZeroOptimizer_Stage3__add_grad_to_ipg_bucket",
            _STAGE3,
            "gradient_ready",
            None,
        ),
        (
            "gradient ready",
            _STAGE12_OPTIMIZER,
            "DeepSpeedZeroOptimizer.reduce_independent_p_g_buckets_and_remove_grads",
            _STAGE12,
            "gradient_ready",
            None,
        ),
        ("reduce buffer", _COLLECTIVES, "_torch_reduce_scatter_fn", _STAGE3, "reduce_scatters", None),
        ("reduce", _STAGE12_OPTIMIZER, "DeepSpeedZeroOptimizer.reduce_ipg_grads", _STAGE12, "reduce_begins", "ended"),
        (
            "all-gather of updated parameters",
            _STAGE12_OPTIMIZER,
            "all_gather_dp_groups",
            _STAGE12,
            "all_gather_begins",
            "ended",
        ),
        ("optimizer step", _ENGINE, "DeepSpeedEngine._take_model_step", _ALL, "step_begins", "ended"),
    )
)
"""Every hook point but the engine's phases, which :mod:`zeropeak.profile.session` wraps."""


@dataclass
class Patches:
    """Functions we replaced, with what was there before."""

    replaced: list[tuple[Any, str, Any]] = field(default_factory=list)

    def replace(self, module: str, path: str, wrap: Callable[[Any], Any]) -> str | None:
        """Replace ``module.path`` by ``wrap(original)``; returns why not, or None when done."""
        try:
            owner: Any = import_module(module)
        except ImportError as problem:
            return str(problem)
        *parents, leaf = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent, None)
        original = None if owner is None else getattr(owner, leaf, None)
        if original is None:
            return f"this DeepSpeed has no {module}.{path}"
        # A class may inherit the function: put back exactly what its own dictionary held.
        self.replaced.append((owner, leaf, vars(owner).get(leaf, _ABSENT)))
        setattr(owner, leaf, wrap(original))
        return None

    def undo(self) -> None:
        """Put everything back, last replaced first."""
        while self.replaced:
            owner, leaf, original = self.replaced.pop()
            if original is _ABSENT:
                delattr(owner, leaf)
            else:
                setattr(owner, leaf, original)


_ABSENT: Final = object()


def install(patches: Patches, observers: Observers, guard: Guard, stage: int | None) -> list[dict[str, str]]:
    """Wrap every point that ``stage`` needs; None: those of all stages, since nobody knows yet which it will be.

    Returns:
        The points that this DeepSpeed lacks: ``{"name", "why"}`` each.
    """
    missing = []
    for point in POINTS:
        if stage is not None and stage not in point.stages:
            continue
        before = getattr(observers, point.before) if point.before else None
        after = getattr(observers, point.after) if point.after else None
        wrap = functools.partial(_around, guard, point.name, before, after)
        why = patches.replace(point.module, point.path, wrap)
        if why is not None:
            missing.append({"name": point.name, "why": why})
    return missing


def _around(guard: Guard, name: str, before: Any, after: Any, original: Any) -> Any:
    return guard.around(name, original, before, after)
