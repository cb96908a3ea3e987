"""What to predict when the user's own script does the training: it decides the model, the config and the batches."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from zeropeak.profile.errors import UsageError
from zeropeak.profile.options import check_predicted_ranks

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.profile.command import Command

RANKS: Final = 4
"""Ranks where neither the user nor the launcher says a number."""
_MOST: Final = 1 << 22


@dataclass(frozen=True)
class ScriptPlan:
    """A script to follow, as the process that runs it gets it (``raw/script.json``).

    The attributes that it shares with :class:`~zeropeak.profile.options.Plan` mean the same.
    """

    FILE: ClassVar[str] = "script.json"
    tool: ClassVar[str] = "predict"
    device: ClassVar[str] = "simulated"
    backend: ClassVar[str] = "fake"
    processes: ClassVar[int] = 1

    target: str
    is_module: bool
    arguments: tuple[str, ...]
    config_name: str
    world_size: int
    local_world_size: int
    steps: int
    gpu_memory_bytes: int | None = None

    @property
    def expected_bytes(self) -> int:
        """Rough size of the prediction, taken for a model of 64 layers: nobody knows the script's yet."""
        return self.steps * 64 * 13 * 7_000 + 2_000_000

    def describe(self) -> dict[str, Any]:
        """What ``run.json`` says of it before it has run."""
        return {
            "tool": self.tool,
            "basis": "simulated",
            "config_name": self.config_name,
            "script": self.target,
            "world_size": self.world_size,
            "fake_world": True,
            "backend": self.backend,
            "device": self.device,
            "model": {},
            "steps": self.steps,
            "seq": None,
            "micro_batch": None,
            "grad_accum": None,
            "gpu_memory_bytes": self.gpu_memory_bytes,
            "ds_config": {},
            "config_changes": [],
        }

    def save(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> ScriptPlan:
        """Read what :meth:`save` wrote."""
        values = json.loads(path.read_text())
        return cls(**{**values, "arguments": tuple(values["arguments"])})


def plan_script(command: Command, *, ranks: int | None, steps: int, gpu_memory_bytes: int | None) -> ScriptPlan:
    """Plan to follow a script.

    Args:
        command: from :func:`~zeropeak.profile.command.read_command`.
        ranks: what the user asked for; None: what the launcher says, else four.
        steps: optimizer steps to follow.
        gpu_memory_bytes: memory of the GPU; None when it does not matter.

    Raises:
        UsageError: a number that cannot work.
    """
    world = ranks if ranks is not None else command.ranks if command.ranks is not None else RANKS
    for name, value in (("ranks", world), ("steps", steps)):
        if not 1 <= value < _MOST:
            raise UsageError(f"--{name} {value}: must be at least 1 and below {_MOST}")
    check_predicted_ranks(world)
    return ScriptPlan(
        target=command.target,
        is_module=command.is_module,
        arguments=command.arguments,
        config_name=command.stem,
        world_size=world,
        local_world_size=min(world, command.local_ranks or world),
        steps=steps,
        gpu_memory_bytes=gpu_memory_bytes,
    )
