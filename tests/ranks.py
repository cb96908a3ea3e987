"""Rows of one rank as they are in the tables, for tests that write them by hand: a run of whole steps, 100 ns each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
Rows = dict[str, list[dict[str, Any]]]
STEP_NS = 100


def rank(number: int = 0, *, source: str | None = "kineto", device: str = "cpu", **facts: Any) -> dict[str, Any]:
    """Row of ``ranks``: complete, its curve whole."""
    about = {"rank": number, "world_size": 1, "status": "complete", "first_ns": 0, "last_ns": 1000, "device": device}
    return {**about, "memory_source": source, "memory_partial": False, **facts}


def phases(steps: int, number: int = 0) -> list[dict[str, Any]]:
    """Init from 0, then each step's forward, backward and step, from 100 ns on."""
    rows = [{"phase": "init", "step": -1, "start_ns": 0, "end_ns": 90}]
    for step in range(steps):
        for place, phase in enumerate(("forward", "backward", "step")):
            start = STEP_NS * (step + 1) + 30 * place
            rows.append({"phase": phase, "step": step, "micro_step": 0, "start_ns": start, "end_ns": start + 29})
    return [{"rank": number, **row} for row in rows]


def event(
    kind: str, step: int, phase: str = "forward", *, number: int = 1, full: int = MIB, **more: Any
) -> dict[str, Any]:
    """Row of ``zero_events``, within its phase."""
    start = STEP_NS * (step + 1) + 30 * ("forward", "backward", "step").index(phase) + 1
    row = {"rank": 0, "event_id": number, "kind": kind, "name": f"{kind} a", "step": step, "micro_step": 0}
    return {**row, "phase": phase, "start_ns": start, "end_ns": start + 1, "full_bytes": full, **more}


def peak(
    bytes_: int, phase: str | None = None, step: int | None = None, *, number: int = 0, ts: int = 110, **more: Any
) -> dict[str, Any]:
    """Row of ``peaks``: of the run without a phase and step, of a step without a phase."""
    scope = "phase" if phase else "run" if step is None else "step"
    row = {"rank": number, "scope": scope, "step": step, "phase": phase, "ts_ns": ts, "allocated_bytes": bytes_}
    return {**row, "partial": False, "source": "kineto", **more}


def parts(
    sizes: dict[str, int], number: int = 0, phase: str | None = None, step: int | None = None
) -> list[dict[str, Any]]:
    """Rows of ``peak_composition`` of a peak: bytes by category."""
    scope = {"rank": number, "scope": "phase" if phase else "run", "phase": phase, "step": step}
    return [{**scope, "category": category, "size_bytes": size} for category, size in sizes.items()]


def know(path: Path, number: int = 0, **facts: Any) -> None:
    """Write what the capture knew of a rank: ``raw/rank-<r>/rank.json``."""
    (path / "raw" / f"rank-{number}").mkdir(parents=True)
    (path / "raw" / f"rank-{number}" / "rank.json").write_text(json.dumps(facts))
