"""A captured run's plan with one knob turned, and whether it can be run again here."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from zeropeak.profile.errors import UsageError, ZeropeakError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeropeak.profile.options import Plan

_DECISIVE: Final = ("torch", "deepspeed", "transformers", "peft")
"""Packages whose version may change what is allocated."""


def turn(plan: Plan, knob: str, value: object) -> Plan:
    """The plan with a knob at a value, as ``--set`` would have made it; the knob keeps the name that the config has."""
    from zeropeak.profile.ds_config import DsConfig, apply_settings
    from zeropeak.reports.compare.settings import same_knob

    values, changes = json.loads(json.dumps((plan.ds_config, plan.config_changes)))
    config = DsConfig(plan.config_name, False, values, changes)
    section, _, leaf = knob.rpartition(".")
    siblings = (config.get(section) if section else values) or {}
    named = next((name for name in siblings if same_knob(f"{section}.{name}") == same_knob(knob)), leaf)
    key = f"{section}.{named}" if section else named
    apply_settings(config, (f"{key}={json.dumps(value)}",))
    return replace(plan, ds_config=config.values, config_changes=config.changes)


def check_here(run_dir: Path, plan: Plan) -> None:
    """Raise when this machine is not one on which the plan can be run again.

    Raises:
        ZeropeakError: other devices.
        UsageError: the model or the training text is not here.
    """
    from zeropeak.profile.gpus import visible

    gpus = len(visible(os.environ))
    if (plan.device == "cuda") != bool(gpus) or gpus < plan.gpus:
        was = f"{plan.gpus} GPU{'' if plan.gpus == 1 else 's'}" if plan.device == "cuda" else "the CPU"
        way_out = "" if plan.device == "cuda" else ", or with CUDA_VISIBLE_DEVICES="
        raise ZeropeakError(
            f"{run_dir}: was captured on {was} and this machine sees {gpus or 'no GPU'}; verify it where it was "
            f"captured{way_out}"
        )
    source = str(plan.model["source"])
    for what, path in (("training text", plan.data), ("model", source if "/" in source else None)):
        if path is not None and not Path(path).exists():
            raise UsageError(f"{run_dir}: its {what} {path} is not here; start from the folder it was captured in")


def check_versions(run_dir: Path, was: Mapping[str, Any], now: Mapping[str, str | None]) -> None:
    """Raise ZeropeakError when a saving could come from another torch or DeepSpeed as well."""
    changed = [f"{name} {was.get(name)}, now {now.get(name)}" for name in _DECISIVE if was.get(name) != now.get(name)]
    if changed:
        raise ZeropeakError(
            f"{run_dir}: was captured with other versions ({'; '.join(changed)}), so a saving could come from them; "
            "capture it again first"
        )
