"""What was alive at a moment, block by block, summed up by module, parameter or stream."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.reports.names import pattern

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeropeak.reports.run import Run

COLUMNS: Final = ("category", "size_bytes", "module", "owner", "stream")
PARAMETERS: Final = (
    "parameter_shards",
    "replicated_parameters",
    "persistent_parameters",
    "gathered_in_use",
    "prefetched_ahead",
    "kept_for_reuse",
    "released_but_alive",
    "full_gradients",
)
"""Categories whose owner is one parameter, or several in one flat storage."""
ROOT: Final = "the model itself"
NO_MODULE: Final = "in no module"


@dataclass(frozen=True)
class Alive:
    """Blocks of one rank at one moment: columns of :data:`COLUMNS`, which sum to what was measured."""

    rank: int
    blocks: pa.Table

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return int(pc.sum(self.blocks["size_bytes"]).as_py() or 0)


@dataclass(frozen=True)
class Group:
    """Blocks of modules or parameters whose names differ in layer numbers only.

    Attributes:
        name: their name, layer numbers as ``*`` when there are several.
        members: how many names.
        parts: bytes by category.
    """

    name: str
    members: int
    parts: Mapping[str, int]
    blocks: int = 0

    @property
    def size_bytes(self) -> int:
        """Sum of the parts."""
        return sum(self.parts.values())


def at_peak(run: Run, rank: int) -> Alive | None:
    """A rank at its peak of the run; None without one, or of tables that an older parse wrote."""
    rows = run.arrow("peak_blocks", rank, ["scope", *COLUMNS])
    rows = rows.filter(pc.equal(rows["scope"], "run")).select(list(COLUMNS))
    return Alive(rank, rows) if rows.num_rows else None


def by_module(alive: Alive) -> list[Group]:
    """By module, largest first; blocks that were born while no module ran are one group, :data:`NO_MODULE`."""
    names = [NO_MODULE if name is None else name or ROOT for name in alive.blocks["module"].to_pylist()]
    return _groups(names, alive.blocks)


def by_parameter(alive: Alive) -> list[Group]:
    """By parameter, largest first: shards, gathered weights and gradients together."""
    rows = alive.blocks.filter(pc.is_in(alive.blocks["category"], value_set=pa.array(PARAMETERS)))
    rows = rows.filter(pc.is_valid(rows["owner"]))
    return _groups(rows["owner"].to_pylist(), rows)


def by_stream(alive: Alive) -> dict[int, tuple[int, int]]:
    """(bytes, blocks) by stream, largest first; empty where no source tells streams."""
    rows = alive.blocks.filter(pc.is_valid(alive.blocks["stream"]))
    summed = rows.group_by("stream").aggregate([("size_bytes", "sum"), ("size_bytes", "count")]).to_pylist()
    found = {row["stream"]: (row["size_bytes_sum"], row["size_bytes_count"]) for row in summed}
    return dict(sorted(found.items(), key=lambda item: -item[1][0]))


def _groups(names: Sequence[str], rows: pa.Table) -> list[Group]:
    parts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    members: defaultdict[str, set[str]] = defaultdict(set)
    blocks: Counter[str] = Counter()
    known: dict[str, str] = {}
    categories, sizes = rows["category"].to_pylist(), rows["size_bytes"].to_pylist()
    for name, category, size_bytes in zip(names, categories, sizes, strict=True):
        key = known.get(name)
        if key is None:
            key = known[name] = pattern(name)
        parts[key][category] += size_bytes
        members[key].add(name)
        blocks[key] += 1
    groups = [
        Group(key if len(members[key]) > 1 else next(iter(members[key])), len(members[key]), dict(sums), blocks[key])
        for key, sums in parts.items()
    ]
    return sorted(groups, key=lambda group: (-group.size_bytes, group.name))
