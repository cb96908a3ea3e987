"""Tables written out by hand, for tests of what is read off them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from zeropeak.parse.schema import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def write_tables(
    path: Path, rows: Mapping[str, Sequence[dict[str, Any]]], *, zero: Mapping[str, Any] | None = None, **manifest: Any
) -> Path:
    """A run directory with these rows by table; columns left out are null. ``zero``: zero_optimization."""
    about = {"schema": 1, "name": "r", "world_size": 1, "ds_config": {"zero_optimization": zero or {}}, **manifest}
    (path / "tables").mkdir(parents=True)
    (path / "run.json").write_text(json.dumps(about))
    write_files(path, rows)
    return path


def write_files(path: Path, rows: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """These rows by table; as after a parse, every table has a file for each rank, be it empty."""
    ranks = {row["rank"] for name, members in rows.items() if name != "import_stats" for row in members} - {None}
    for name, declared in BY_NAME.items():
        members, folder = rows.get(name, ()), path / "tables" / name
        of_run = {None} if name == "import_stats" else ranks
        for rank in {*of_run, *(row.get("rank") for row in members if name != "import_stats")}:
            mine = [row for row in members if name == "import_stats" or row["rank"] == rank]
            folder.mkdir(parents=True, exist_ok=True)
            file = f"rank-{'none' if rank is None else rank}.parquet"
            pq.write_table(pa.Table.from_pylist(mine, schema=declared.arrow), folder / file)
