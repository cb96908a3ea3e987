"""``run.json``: what a run is and how it ended. Holds no environment, user, host or home path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from zeropeak.profile.labels import RUN_SCHEMA, Status

FILE: Final = "run.json"


def write(run_dir: Path, values: dict[str, Any]) -> None:
    """Write ``run.json`` so that a reader sees the old or the new one, never half of it."""
    draft = run_dir / f"{FILE}.new"
    draft.write_text(json.dumps(values, indent=1) + "\n")
    draft.replace(run_dir / FILE)


def update(run_dir: Path, **values: Any) -> dict[str, Any]:
    """Change some keys of ``run.json``; returns all of it."""
    known: dict[str, Any] = json.loads((run_dir / FILE).read_text())
    known.update(values)
    write(run_dir, known)
    return known


def new(
    name: str, created_unix_ns: int, command: list[str], plan: Any, versions: dict[str, str | None]
) -> dict[str, Any]:
    """A manifest for a run that is about to start.

    Args:
        name: the run directory's name.
        created_unix_ns: now.
        command: what the user typed, from the verb on.
        plan: the resolved :class:`~zeropeak.profile.options.Plan`.
        versions: by package, and of nsys.
    """
    return {
        "schema": RUN_SCHEMA,
        "name": name,
        "tool": plan.tool,
        "status": Status.RUNNING.value,
        "created_unix_ns": created_unix_ns,
        "basis": "measured",
        "config_name": plan.config_name,
        "command": [without_home(word) for word in command],
        "versions": versions,
        "world_size": plan.world_size,
        "fake_world": plan.backend == "fake",
        "backend": plan.backend,
        "device": plan.device,
        "model": {
            "preset": without_home(str(plan.model["source"])),
            **{key: plan.model[key] for key in ("layers", "hidden", "vocab", "heads", "parameters")},
            "lora": plan.lora,
            "lora_rank": plan.lora_rank,
            "attention": plan.attention,
            "gradient_checkpointing": plan.gradient_checkpointing,
            "dtype": plan.dtype,
        },
        "steps": plan.steps,
        "seq": plan.seq,
        "micro_batch": plan.micro_batch,
        "grad_accum": plan.grad_accum,
        "ds_config": plan.ds_config,
        "config_changes": plan.config_changes,
        "disk": {"expected_bytes": None, "actual_bytes": None, "cap_bytes": None},
        "failure": None,
        "notes": [],
    }


def without_home(text: str) -> str:
    """A path for other people's eyes: absolute paths keep their last two parts only.

    >>> without_home("/home/someone/configs/z3.json")
    '.../configs/z3.json'
    >>> without_home("configs/z3.json")
    'configs/z3.json'
    """
    head, equals, path = text.rpartition("=") if text.startswith("--") else ("", "", text)
    place = Path(path).expanduser()
    return f"{head}{equals}.../{'/'.join(place.parts[-2:])}" if place.is_absolute() else text
