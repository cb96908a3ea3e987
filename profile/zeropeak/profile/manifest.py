"""``run.json``: what a run is and how it ended. Holds no environment, user, host or home path."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from zeropeak.profile.labels import RUN_SCHEMA, Status
from zeropeak.profile.privacy import scrubbed

if TYPE_CHECKING:
    from pathlib import Path

FILE: Final = "run.json"


def write(run_dir: Path, values: dict[str, Any]) -> None:
    """Write ``run.json``, without folders in its texts; a reader sees the old or the new one, never half of it."""
    draft = run_dir / f"{FILE}.new"
    draft.write_text(json.dumps(scrubbed(values), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(run_dir / FILE)


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory of ours: only such a one is ever overwritten."""
    try:
        values = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and isinstance(values.get("schema"), int) and "tool" in values


def update(run_dir: Path, **values: Any) -> dict[str, Any]:
    """Change some keys of ``run.json``; returns all of it."""
    known: dict[str, Any] = json.loads((run_dir / FILE).read_text(encoding="utf-8"))
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
        plan: the resolved :class:`~zeropeak.profile.options.Plan`, or a script's.
        versions: by package, and of nsys.
    """
    return {
        "schema": RUN_SCHEMA,
        "name": name,
        **plan.describe(),
        "status": Status.RUNNING.value,
        "created_unix_ns": created_unix_ns,
        "command": command,
        "versions": versions,
        "disk": {"expected_bytes": None, "actual_bytes": None, "cap_bytes": None},
        "failure": None,
        "notes": [],
    }
