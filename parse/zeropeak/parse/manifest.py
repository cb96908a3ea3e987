"""``run.json`` and ``rank.json``: what a run and its ranks say about themselves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeropeak.profile.errors import TraceError, ZeropeakError
from zeropeak.profile.labels import RUN_SCHEMA

if TYPE_CHECKING:
    from pathlib import Path


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
        name=str(raw.get("name", run.name)),
        status=str(raw.get("status", "")),
        world_size=world_size if isinstance(world_size, int) else None,
        fake_world=bool(raw.get("fake_world", False)),
        raw=raw,
    )


def read_run_json(run: Path) -> dict[str, Any] | None:
    """The object in ``run.json`` of a run directory; None when there is none (a run that zeropeak did not capture).

    Raises:
        ZeropeakError: a newer zeropeak wrote it.
        TraceError: it is not JSON, or not a manifest.
    """
    path = run / "run.json"
    if not path.is_file():
        return None
    raw = read_object(path)
    schema = raw.get("schema")
    if not isinstance(schema, int):
        raise TraceError(path, "no schema number; the file is damaged, capture again")
    if schema > RUN_SCHEMA:
        raise ZeropeakError(
            f"{path}: written by a newer zeropeak (schema {schema}, this one reads up to {RUN_SCHEMA}); update zeropeak"
        )
    return raw


def read_rank(folder: Path, rank: int) -> RankInfo | None:
    """Read ``rank.json`` of a rank's folder; None when it is missing (the rank died before writing it).

    Raises:
        TraceError: it is there but not JSON.
    """
    path = folder / "rank.json"
    if not path.is_file():
        return None
    raw = read_object(path)
    clock = raw.get("clock") or {}
    boot = None
    if isinstance(clock.get("monotonic_ns"), int) and isinstance(clock.get("unix_ns"), int):
        boot = BootClock(str(raw.get("boot_id") or ""), clock["monotonic_ns"], clock["unix_ns"])
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


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        TraceError: the file holds none.
    """
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise TraceError(path, f"not valid JSON ({error}); the file is damaged, capture again") from error
    if not isinstance(found, dict):
        raise TraceError(path, "not a JSON object; the file is damaged, capture again")
    return found
