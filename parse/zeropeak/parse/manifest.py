"""``run.json`` and ``rank.json``: what a run and its ranks say about themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from zeropeak.parse.access import reading
from zeropeak.parse.facts import COUNT, FLAG, NUMBER, TEXT, a_list, an_object, check_facts, read_facts
from zeropeak.profile.errors import TraceError, ZeropeakError
from zeropeak.profile.labels import RUN_SCHEMA

if TYPE_CHECKING:
    from pathlib import Path

_RUN: Final = {
    "schema": COUNT, "world_size": COUNT, "steps": COUNT, "seq": COUNT, "micro_batch": COUNT, "grad_accum": COUNT,
    "created_unix_ns": COUNT, "gpu_memory_bytes": COUNT, "fake_world": FLAG,
    **dict.fromkeys(("name", "tool", "status", "basis", "config_name", "script", "backend", "device"), TEXT),
    "command": a_list(TEXT), "versions": an_object(TEXT), "notes": a_list(TEXT),
    "model": an_object(
        **dict.fromkeys(("preset", "class", "attention", "dtype"), TEXT),
        **dict.fromkeys(("layers", "hidden", "intermediate", "vocab", "heads", "parameters",
                         "trainable_parameters"), COUNT),
    ),
    "ds_config": an_object(zero_optimization=an_object()),
    "config_changes": a_list(an_object(key=TEXT, why=TEXT)),
    "disk": an_object(expected_bytes=COUNT, actual_bytes=COUNT, cap_bytes=COUNT),
    "sources": a_list(an_object(file=TEXT, kind=TEXT, ranks=a_list(COUNT), partial=FLAG)),
    "simulation": an_object(assumptions=a_list(TEXT)),
    "failure": an_object(rank=COUNT, kind=TEXT, message=TEXT, exit_code=NUMBER),
}  # fmt: skip
"""What the keys of run.json must be that parse and reports read."""

_RANK: Final = {
    **dict.fromkeys(("rank", "world_size", "pid", "node", "device_total_bytes", "steps_done", "history_entries",
                     "history_max_entries"), COUNT),
    **dict.fromkeys(("device", "device_name", "boot_id", "ended", "error", "nvtx"), TEXT),
    "holder_step": NUMBER, "linear_wrapped": FLAG, "linear_wrapper_available": FLAG,
    "clock": an_object(monotonic_ns=COUNT, unix_ns=COUNT),
    "hooks_missing": a_list(an_object(name=TEXT, why=TEXT)),
    "zero": an_object(stage=COUNT, memory_efficient_linear=FLAG),
}  # fmt: skip
"""Likewise of rank.json."""


@dataclass(frozen=True)
class BootClock:
    """One paired reading of a machine's two clocks."""

    boot_id: str
    monotonic_ns: int
    unix_ns: int


@dataclass(frozen=True)
class RankInfo:
    """``rank.json``; None where it does not say. ``raw`` is the whole object."""

    rank: int
    pid: int | None
    node: int | None
    device: str | None
    clock: BootClock | None
    ended: str | None
    nvtx: bool
    raw: dict[str, Any]


@dataclass(frozen=True)
class Manifest:
    """``run.json``. ``raw`` is the whole object."""

    name: str
    status: str
    world_size: int | None
    fake_world: bool
    raw: dict[str, Any]


def read_manifest(run: Path) -> Manifest:
    """Read ``run.json`` of a run directory.

    Raises:
        ZeropeakError: there is none, it is not JSON, or a newer zeropeak wrote it.
    """
    raw = read_run_json(run)
    if raw is None:
        raise ZeropeakError(
            f"{run}: no run.json, so this is not a run directory; give the folder that a capture wrote, "
            "or trace files with --out"
        )
    world_size = raw.get("world_size")
    return Manifest(
        name=raw.get("name") or run.name,
        status=raw.get("status") or "",
        world_size=world_size,
        fake_world=bool(raw.get("fake_world", False)),
        raw=raw,
    )


def read_run_json(run: Path) -> dict[str, Any] | None:
    """The object in ``run.json`` of a run directory; None when there is none (a run that zeropeak did not capture).

    Raises:
        ZeropeakError: a newer zeropeak wrote it.
        TraceError: it is not JSON, not a manifest, or a key holds something else than it must.
    """
    path = run / "run.json"
    with reading(path):
        if not path.is_file():
            return None
    raw = read_facts(path, {"schema": COUNT})
    schema = raw.get("schema")
    if not isinstance(schema, int):
        raise TraceError(path, "no schema number; the file is damaged, capture again")
    if schema > RUN_SCHEMA:
        raise ZeropeakError(
            f"{path}: written by a newer zeropeak (schema {schema}, this one reads up to {RUN_SCHEMA}); update zeropeak"
        )
    check_facts(path, raw, _RUN)  # a newer one may hold other things: it is told apart first
    return raw


def read_rank(folder: Path, rank: int) -> RankInfo | None:
    """Read ``rank.json`` of a rank's folder; None when it is missing (the rank died before writing it).

    Raises:
        TraceError: it is there but damaged.
    """
    raw = read_rank_json(folder)
    if raw is None:
        return None
    clock = raw.get("clock") or {}
    boot = None
    if clock.get("monotonic_ns") is not None and clock.get("unix_ns") is not None:
        boot = BootClock(raw.get("boot_id") or "", clock["monotonic_ns"], clock["unix_ns"])
    return RankInfo(
        rank=rank,
        pid=raw.get("pid"),
        node=raw.get("node"),
        device=raw.get("device"),
        clock=boot,
        ended=raw.get("ended"),
        nvtx=raw.get("nvtx") == "on",
        raw=raw,
    )


def read_rank_json(folder: Path) -> dict[str, Any] | None:
    """The object in ``rank.json`` of a rank's folder; None when there is none.

    Raises:
        TraceError: it is damaged.
    """
    path = folder / "rank.json"
    with reading(path):
        if not path.is_file():
            return None
    return read_facts(path, _RANK)
