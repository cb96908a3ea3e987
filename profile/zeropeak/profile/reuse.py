"""Whether a run directory already holds what a plan would capture, and if not, why not."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from zeropeak.profile import manifest
from zeropeak.profile.errors import TraceError
from zeropeak.profile.labels import Status
from zeropeak.profile.options import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INDIFFERENT: Final = ("config_changes", "timeout_s")
"""Changes no capture: how the config came about (what it is in the end is in ``ds_config``), how long ranks wait."""
_MOST: Final = 4


def read_plan(run_dir: Path) -> Plan | None:
    """The plan of a run; None when it has none (zeropeak did not capture it, or only its tables travelled).

    Raises:
        TraceError: it is damaged, or of another zeropeak.
    """
    path = run_dir / "raw" / Plan.FILE
    if not path.is_file():
        return None
    try:
        return Plan.load(path)
    except (ValueError, TypeError) as problem:
        raise TraceError(path, f"not a plan of this zeropeak ({type(problem).__name__}); capture again") from None


def why_not(run_dir: Path, plan: Plan, versions: Mapping[str, str | None]) -> str | None:
    """Why a run cannot stand for a new capture of ``plan``; None when it can.

    Args:
        run_dir: run directory.
        plan: what would be captured.
        versions: that it would be captured with, from :func:`zeropeak.profile.capture.versions`.
    """
    about = _manifest(run_dir)
    if about is None:
        return "no run is there"
    if about.get("status") != Status.COMPLETE:
        return f"its status is {str(about.get('status')).replace('_', ' ')}"
    try:
        known = read_plan(run_dir)
    except TraceError:
        return "its plan cannot be read"
    if known is None:
        return "it has no plan"
    there, here = (_as_read(one) for one in (known, plan))
    differing = [*_differing(there, here, ""), *_differing(about.get("versions") or {}, dict(versions), "")]
    if differing:
        more = f" and {len(differing) - _MOST} more" if len(differing) > _MOST else ""
        return ", ".join(differing[:_MOST]) + more
    if plan.data is not None and Path(plan.data).stat().st_mtime_ns > int(about.get("created_unix_ns") or 0):
        return "the training text has changed since"
    return None


def _manifest(run_dir: Path) -> dict[str, Any] | None:
    if not manifest.is_run(run_dir):
        return None
    about: dict[str, Any] = json.loads((run_dir / manifest.FILE).read_text(encoding="utf-8"))
    return about


def _as_read(plan: Plan) -> dict[str, Any]:
    """As a plan looks once it was written and read: no tuples."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(plan)))
    return {key: value for key, value in values.items() if key not in _INDIFFERENT}


def _differing(there: Mapping[str, Any], here: Mapping[str, Any], before: str) -> Iterator[str]:
    for key in dict.fromkeys([*there, *here]):
        one, other = there.get(key), here.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _differing(one, other, f"{before}{key}.")
        elif one != other or isinstance(one, bool) != isinstance(other, bool):
            yield f"{before}{key} is {_shown(one)}, not {_shown(other)}"


def _shown(value: object) -> str:
    return "absent" if value is None else value if isinstance(value, str) else json.dumps(value)
