"""What the observers look up once, and use at every event of a module or of parameters that move together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from zeropeak.profile.recorder import Known, OpenEvent


class OneModule(NamedTuple):
    """What is looked up once for a module: its id, its events, its parameters; and its open ranges."""

    module: Any
    number: int
    forward: Known
    backward: Known
    release: Known
    fetch: Known
    params: list[Any]
    own: frozenset[int]
    open_forward: list[OpenEvent]
    open_backward: list[OpenEvent]

    def uses(self, param: object) -> bool:
        """Whether the parameter is the module's own, or one that it was seen to use."""
        if id(param) in self.own:
            return True
        return any(external is param for external in getattr(self.module, "_external_params", {}).values())


class ParamGroup(NamedTuple):
    """What is looked up once for parameters that are moved together."""

    ids: list[int]
    target: str
    prefetch: Known
    wait: Known
