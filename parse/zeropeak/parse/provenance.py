"""``run.json`` of tables that were made of files which zeropeak did not capture: what those files say, and no more."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from zeropeak.profile.labels import RUN_SCHEMA
from zeropeak.profile.privacy import scrubbed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from zeropeak.parse.sink import Source

FILES: Final = "files"
"""``tool`` in such a run.json."""

FAKE: Final = "fake"
"""Backend of a process group of one process that plays all ranks."""


@dataclass(frozen=True)
class Given:
    """A file that was read.

    Attributes:
        label: its name relative to what the user named, never an absolute path.
        ranks: ranks that it told of.
        source: what it says about itself.
    """

    label: str
    ranks: Sequence[int]
    source: Source


def write_manifest(out: Path, given: Iterable[Given], versions: Mapping[str, str]) -> None:
    """Write ``run.json``; a reader sees the old or the new one, never half of it.

    Args:
        out: the run directory.
        given: the files, in the order in which they are to be listed.
        versions: those that the caller knows, zeropeak's own first.
    """
    values = scrubbed(_values(out.resolve().name, list(given), versions))
    draft = out / "run.json.new"
    draft.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(out / "run.json")


def world_size(sources: Iterable[Source]) -> int | None:
    """Ranks of the job, as far as files say it."""
    return max((source.world_size for source in sources if source.world_size is not None), default=None)


def _values(name: str, given: Sequence[Given], versions: Mapping[str, str]) -> dict[str, Any]:
    sources = [file.source for file in given]
    backend = next((source.backend for source in sources if source.backend), None)
    devices = {source.device.split(":")[0] for source in sources if source.device}
    told = {what: version for source in sources for what, version in source.versions.items()}
    # A report tells apart what the files do not say (null) from what they say.
    return {
        "schema": RUN_SCHEMA,
        "name": name,
        "tool": FILES,
        "basis": "measured",
        "versions": {**versions, **told},
        "world_size": world_size(sources),
        "fake_world": backend == FAKE,
        "backend": backend,
        "device": next(iter(devices - {"cpu"} or devices), None) if len(devices - {"cpu"}) < 2 else None,
        "sources": [
            {"file": file.label, "kind": file.source.reader, "ranks": list(file.ranks), "partial": file.source.partial}
            for file in given
        ],
    }
