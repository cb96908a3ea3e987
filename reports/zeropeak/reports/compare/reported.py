"""The bug report's own figures (``reported.json``, with their source), beside ours when the model is its model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeropeak.reports import setting

if TYPE_CHECKING:
    from zeropeak.reports.compare.moment import Moment
    from zeropeak.reports.compare.side import Side


@dataclass(frozen=True)
class Reported:
    """What the bug report says of a setting; texts as they stand there, units included."""

    source: str
    figures: dict[str, str]

    def at(self, moment: Moment) -> str | None:
        """Its figure at a moment; it has two, of the first step."""
        return self.figures.get(moment.at) if moment.step in {-1, 0} else None


def reported(side: Side) -> Reported | None:
    """The bug report's figures for a run's setting; None when its model, world size or ZeRO setting is another."""
    data, model = _data(), side.run.manifest.get("model") or {}
    alike = all(model.get(key) == value for key, value in data["model"].items())
    if not alike or side.run.manifest.get("world_size") != data["world_size"] or not side.run.rank_ids:
        return None
    rank = side.run.rank_ids[0]
    stage, efficient = setting.stage(side.run, rank), setting.memory_efficient_linear(side.run, rank)
    for one in data["figures"]:
        if one["stage"] == stage and one.get("memory_efficient_linear", efficient) == efficient:
            return Reported(data["source"], {at: one[at] for at in ("init", "forward")})
    return None


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(__file__).parent / "reported.json").read_text(encoding="utf-8"))
    return found
