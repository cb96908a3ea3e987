"""In what two runs differ: config as DeepSpeed resolved it, model, world, batch, versions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from zeropeak.profile.privacy import without_folders

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zeropeak.reports.run import Run

_SILENT: Final = frozenset(
    ("steps_per_print", "wall_clock_breakdown", "dump_state", "tensorboard", "csv_monitor", "wandb", "comms_logger")
)
"""Sections that log and move no memory of the accelerator."""
_ELSEWHERE: Final = frozenset(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"))
"""Keys whose meaning is in the manifest's own ones."""
_RUN: Final = ("world_size", "fake_world", "backend", "device", "seq", "micro_batch", "grad_accum")
_NEEDED: Final = ("world_size", "seq", "micro_batch", "grad_accum")
_MODEL: Final = (
    "layers",
    "hidden",
    "heads",
    "vocab",
    "lora",
    "lora_rank",
    "attention",
    "gradient_checkpointing",
    "dtype",
)
_BUILT: Final = ("preset", "intermediate", "class", "parameters", "trainable_parameters")
"""Not in every manifest: which model it is, and what is known once a rank has built it."""
_VERSIONS: Final = ("torch", "deepspeed", "transformers", "peft")
"""Packages that decide what is allocated."""
ABSENT: Final = "absent"


@dataclass(frozen=True)
class Difference:
    """One setting with its value in each run; :data:`ABSENT` where a config does not name it."""

    key: str
    before: object
    after: object

    def words(self) -> str:
        """For people: "zero_optimization.stage (2, 3)"."""
        return f"{self.key} ({shown(self.before)}, {shown(self.after)})"


@dataclass(frozen=True)
class Differences:
    """What may make two runs allocate differently.

    Attributes:
        settings: that are known to differ.
        unknown: that one of the runs does not say.
    """

    settings: tuple[Difference, ...]
    unknown: tuple[str, ...]

    def besides(self, knob: str) -> list[str]:
        """All of it but one knob, for people."""
        others = [one.words() for one in self.settings if same_knob(one.key) != same_knob(knob)]
        return others + [f"{what} (not known)" for what in self.unknown]

    def of(self, knob: str) -> Difference | None:
        """The difference in a knob; None when it is the same in both."""
        return next((one for one in self.settings if same_knob(one.key) == same_knob(knob)), None)


def differences(before: Run, after: Run) -> Differences:
    """In what two runs differ, as far as their manifests and ranks say."""
    settings = list(_of_config(before, after))
    unknown = []
    if not before.manifest.get("ds_config") or not after.manifest.get("ds_config"):
        settings, unknown = [], ["the DeepSpeed config"]
    for key in _RUN:
        one, other = before.manifest.get(key), after.manifest.get(key)
        if one is not None and other is not None:
            settings += [Difference(key, one, other)] if one != other else []
        elif key in _NEEDED:
            unknown.append(key)
    settings += _of_section(before, after, "model", _MODEL, _BUILT, unknown)
    settings += _of_section(before, after, "versions", (), _VERSIONS, unknown)
    return Differences(tuple(settings), tuple(unknown))


def _of_section(
    before: Run, after: Run, name: str, needed: tuple[str, ...], known: tuple[str, ...], unknown: list[str]
) -> Iterator[Difference]:
    one, other = before.manifest.get(name) or {}, after.manifest.get(name) or {}
    if not one or not other:
        unknown.append(f"the {name}")
        return
    for key in needed + known:
        both = (one.get(key), other.get(key)) if key != "preset" else (_model_name(one), _model_name(other))
        if both[0] != both[1] and (key in needed or None not in both):
            yield Difference(f"{name}.{key}", *both)


def _model_name(model: Mapping[str, Any]) -> str | None:
    """The preset, or the last part of where the model lay: the same folder is written in several ways."""
    preset = model.get("preset")
    return PurePath(preset).name or preset if isinstance(preset, str) else None


def _of_config(before: Run, after: Run) -> Iterator[Difference]:
    configs = [dict(_leaves(run.manifest.get("ds_config") or {})) for run in (before, after)]
    names = [{same_knob(key): key for key in config} for config in configs]
    for knob in dict.fromkeys([*names[0], *names[1]]):
        values = [
            config[keys[knob]] if knob in keys else _resolved(run, knob)
            for run, config, keys in zip((before, after), configs, names, strict=True)
        ]
        if not alike(values[0], values[1]):
            yield Difference(names[0].get(knob) or names[1][knob], *values)


def _resolved(run: Run, knob: str) -> object:
    """What DeepSpeed made of a ZeRO knob that the config does not name; :data:`ABSENT` when that was not captured."""
    section, _, leaf = knob.partition(".")
    ranks = run.rank_ids if section == "zero_optimization" else ()
    found = (run.rank_facts(ranks[0]).get("zero") or {}).get(leaf) if ranks else None
    return ABSENT if found is None else found


def same_knob(key: str) -> str:
    """A key with one name for the two that DeepSpeed gives the stage-3 knobs.

    >>> same_knob("zero_optimization.stage3_max_reuse_distance"), same_knob("fp16.enabled")
    ('zero_optimization.max_reuse_distance', 'fp16.enabled')
    """
    section, _, leaf = key.rpartition(".")
    return f"{section}.{leaf.removeprefix('stage3_')}" if section == "zero_optimization" else key


def alike(one: object, other: object) -> bool:
    """Whether two values of a setting mean the same; true and 1 do not.

    >>> alike(1e4, 10000), alike(True, 1), alike("none", ABSENT), alike(False, ABSENT)
    (True, False, True, False)
    """
    nothing = ("none", None, ABSENT)
    if one in nothing and other in nothing:
        return True
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _leaves(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if key in _SILENT or f"{before}{key}" in _ELSEWHERE or (key == "enabled" and value is False):
            continue
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def shown(value: object) -> str:
    """A value for people.

    >>> shown(True), shown(1e4), shown("gloo"), shown(0.5)
    ('true', '10,000', 'gloo', '0.5')
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e18:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return without_folders(value if isinstance(value, str) else json.dumps(value))
