"""What to train: the options that every verb that runs a model takes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from zeropeak.profile.errors import UsageError

LORAS: Final = ("dschat", "peft", "none")
ATTENTIONS: Final = ("eager", "sdpa")
DTYPES: Final = ("auto", "fp16", "bf16", "fp32")

MOST_PREDICTED_RANKS: Final = 1 << 14
"""DeepSpeed cuts gradients into a piece for each rank, one by one: beyond, a step takes many minutes."""


def check_predicted_ranks(ranks: int) -> None:
    """Raise UsageError for more ranks than can be predicted."""
    if ranks > MOST_PREDICTED_RANKS:
        raise UsageError(
            f"--ranks {ranks}: at most {MOST_PREDICTED_RANKS:,} can be predicted, since DeepSpeed cuts every gradient "
            "into a piece for each of them"
        )


@dataclass(frozen=True)
class Options:
    """Options as the user gave them; None is ``auto`` or "as the config says".

    ``config`` is a shipped config's name or a path; ``settings`` are ``--set KEY=VALUE`` texts, in order.
    """

    config: str
    ranks: int = 4
    fake: bool = False
    model: str = "auto"
    steps: int = 3
    seq: int | None = None
    micro_batch: int | None = None
    grad_accum: int | None = None
    dtype: str = "auto"
    attention: str = "eager"
    gradient_checkpointing: bool = False
    lora: str = "dschat"
    lora_rank: int | None = None
    data: str | None = None
    settings: tuple[str, ...] = ()
    gpu_memory_bytes: int | None = None
    trust_remote_code: bool = False
    timeout_s: int | None = None

    def check(self) -> None:
        """Raise UsageError for a value that cannot work."""
        for name in ("ranks", "steps", "seq", "micro_batch", "grad_accum", "lora_rank", "timeout_s"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < 1 << 22:
                raise UsageError(
                    f"--{name.removesuffix('_s').replace('_', '-')} {value}: must be at least 1 and below {1 << 22}"
                )
        for name, allowed in (("dtype", DTYPES), ("attention", ATTENTIONS), ("lora", LORAS)):
            if getattr(self, name) not in allowed:
                raise UsageError(f"--{name} {getattr(self, name)}: one of {', '.join(allowed)}")
        if self.data is not None and not Path(self.data).is_file():
            raise UsageError(f'--data {self.data}: no such file; one JSON object a line with a key "text"')


@dataclass(frozen=True)
class Plan:
    """Options with every ``auto`` resolved, as the ranks get them (``raw/plan.json``).

    ``device`` is cpu, cuda or simulated; ``backend`` gloo, nccl or fake; sizes of the model are in ``model``; DeepSpeed
    gets ``ds_config``. ``gpu_memory_bytes`` is the memory that each rank's allocator may take, or that a prediction is
    compared with; None for all there is. ``timeout_s`` is how long a rank waits for the others in a collective;
    None for PyTorch's own.
    """

    FILE: ClassVar[str] = "plan.json"

    tool: str
    config_name: str
    world_size: int
    processes: int
    device: str
    gpus: int
    backend: str
    model: dict[str, object]
    steps: int
    seq: int
    micro_batch: int
    grad_accum: int
    dtype: str
    attention: str
    gradient_checkpointing: bool
    lora: str
    lora_rank: int
    data: str | None
    ds_config: dict[str, object]
    config_changes: list[dict[str, object]]
    trust_remote_code: bool = False
    gpu_memory_bytes: int | None = None
    timeout_s: int | None = None

    @property
    def zero_stage(self) -> int:
        """ZeRO stage that DeepSpeed gets."""
        zero: dict[str, Any] = self.ds_config["zero_optimization"]  # type: ignore[assignment]
        return int(zero["stage"])

    @property
    def expected_bytes(self) -> int:
        """Rough size of a capture: bytes a rank, step and module, measured on the tiny model (103 modules, 3 steps).

        Event log 3.2 KB, with a prediction's allocations 7 KB; torch.profiler trace 7.2 KB (gzip); NVTX in .nsys-rep
        and sqlite 3.4 KB.
        """
        layers: int = self.model["layers"]  # type: ignore[assignment]
        modules = 13 * layers
        each = 7_000 if self.device == "simulated" else 3_200
        each += 7_200 if self.tool == "torch" or self.device == "cpu" else 0
        each += 3_400 if self.tool == "nsys" else 0
        return self.processes * self.steps * self.grad_accum * modules * each + 2_000_000

    def describe(self) -> dict[str, Any]:
        """What ``run.json`` says of it."""
        return {
            "tool": self.tool,
            "basis": "simulated" if self.device == "simulated" else "measured",
            "config_name": self.config_name,
            "world_size": self.world_size,
            "fake_world": self.backend == "fake",
            "backend": self.backend,
            "device": self.device,
            "model": {
                "preset": self.model["source"],
                **{
                    key: self.model[key] for key in ("layers", "hidden", "intermediate", "vocab", "heads", "parameters")
                },
                "lora": self.lora,
                "lora_rank": self.lora_rank,
                "attention": self.attention,
                "gradient_checkpointing": self.gradient_checkpointing,
                "dtype": self.dtype,
            },
            "steps": self.steps,
            "seq": self.seq,
            "micro_batch": self.micro_batch,
            "grad_accum": self.grad_accum,
            "gpu_memory_bytes": self.gpu_memory_bytes,
            "ds_config": self.ds_config,
            "config_changes": self.config_changes,
        }

    def save(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read what :meth:`save` wrote."""
        return cls(**json.loads(path.read_text()))
