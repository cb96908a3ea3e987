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
    for name, members in rows.items():
        (path / "tables" / name).mkdir()
        for rank in {row["rank"] for row in members}:
            table = pa.Table.from_pylist([row for row in members if row["rank"] == rank], schema=BY_NAME[name].arrow)
            pq.write_table(table, path / "tables" / name / f"rank-{rank}.parquet")
    return path
