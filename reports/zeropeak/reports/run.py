"""A run directory, opened: its manifest and its tables, read when asked for.

Columns keep their type when they hold nulls: int64 becomes pandas' nullable ``Int64`` (never float, which loses
nanoseconds above 2**53), bool ``boolean``, double ``Float64`` and text ``string``; a missing value is ``pandas.NA``.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq

from zeropeak.parse.access import entries
from zeropeak.parse.manifest import read_rank_json, read_run_json
from zeropeak.parse.schema import BY_NAME
from zeropeak.profile.errors import TraceError, UsageError, ZeropeakError
from zeropeak.profile.labels import Basis
from zeropeak.reports.table_files import TableFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    import pandas as pd

_T = TypeVar("_T")
MOST_MISSING: Final = 4096
"""More missing ranks than this are a count, not a name each: a damaged world_size may be anything."""

_KEPT: Final = 16
"""Derived objects that a run keeps: of a million memory events a rank takes about 25 MB in its four objects, and up to
four ranks are drawn in turn by several figures. Findings go rank by rank, so more ranks take no more."""


class Run:
    """One run. ``run.zero_events`` and every other table of docs/schema.md is a DataFrame, read at first use.

    Args:
        path: run directory.
        manifest: content of run.json; empty for a run that zeropeak did not capture.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self.files = TableFiles(path)
        self._frames: dict[str, pd.DataFrame] = {}
        self._kept: OrderedDict[Hashable, object] = OrderedDict()

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name in BY_NAME:
            return self.table(name)
        raise AttributeError(f"a run has no table {name!r}; docs/schema.md lists them")

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *BY_NAME]

    def __repr__(self) -> str:
        return f"<Run {self.name!r}, ranks {list(self.rank_ids)}>"

    @property
    def name(self) -> str:
        """Name in the manifest, else the directory's."""
        return str(self.manifest.get("name") or self.path.name)

    @property
    def basis(self) -> Basis:
        """What its figures rest on; measured when the manifest does not say.

        Raises:
            TraceError: the manifest has a word that this zeropeak does not know: of a newer one, or damaged.
        """
        word = self.manifest.get("basis") or Basis.MEASURED
        if word not in set(Basis):
            raise TraceError(self.path / "run.json", f"basis is {str(word)[:40]!r}, not one of {', '.join(Basis)}")
        return Basis(word)

    @cached_property
    def rank_ids(self) -> tuple[int, ...]:
        """Ranks that left anything behind, in order."""
        return tuple(sorted(set(self.arrow("ranks", columns=["rank"])["rank"].to_pylist())))

    @cached_property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the job of which nothing was captured; none for a fake world, whose other ranks never ran.

        None either when there are more than :data:`MOST_MISSING`: see :attr:`missing_count`.
        """
        if not 0 < self.missing_count <= MOST_MISSING:
            return ()
        return tuple(sorted(set(range(self._world)) - set(self.rank_ids)))

    @cached_property
    def missing_count(self) -> int:
        """How many ranks of the job left nothing behind."""
        world = self._world  # of many ranks, reading it takes a file each
        return world - sum(rank < world for rank in self.rank_ids)

    @cached_property
    def _world(self) -> int:
        """Ranks of the job that ran, as far as known."""
        if self.manifest.get("fake_world"):
            return 0
        sizes = [n for n in self.arrow("ranks", columns=["world_size"])["world_size"].to_pylist() if n is not None]
        return int(self.manifest.get("world_size") or max(sizes, default=0))

    def table(self, name: str) -> pd.DataFrame:
        """A whole table as a DataFrame (all ranks), cached.

        Raises:
            UsageError: there is no such table.
            ZeropeakError: a file of it is missing.
            TraceError: a parquet file is damaged.
        """
        if name not in self._frames:
            self._frames[name] = _to_pandas(self.arrow(name))
        return self._frames[name]

    def arrow(self, name: str, rank: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """A table, or some columns of one rank of it, as Arrow; not cached. Rows keep the files' order.

        Columns that an older parse did not write are null; a table that the sources did not fill is empty.

        Raises:
            ZeropeakError: a file of the table is missing.
            TraceError: a parquet file is damaged, or lacks a column that is never null.
        """
        if name not in BY_NAME:
            raise UsageError(f"no table {name!r}; one of {', '.join(BY_NAME)}")
        declared = BY_NAME[name].arrow
        schema = pa.schema([declared.field(column).with_nullable(True) for column in columns or declared.names])
        needed = [column for column in schema.names if not declared.field(column).nullable]
        parts = [_read(path, schema, needed) for path in self.files.of(name, rank)]
        return pa.concat_tables(parts) if parts else schema.empty_table()

    def rank_facts(self, rank: int) -> dict[str, Any]:
        """What the capture wrote in raw/rank-<r>/rank.json; empty when the raw files did not travel along.

        Empty, too, when it is damaged: the parse has counted that.
        """
        try:
            return read_rank_json(self.path / "raw" / f"rank-{rank}") or {}
        except TraceError:
            return {}

    def drop(self, *keys: Hashable) -> None:
        """Let go of what is kept under these keys."""
        for key in keys:
            self._kept.pop(key, None)

    def keep(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """What ``make`` gave for ``key``, made once while it is among the last few that were asked for."""
        if key not in self._kept:
            self._kept[key] = make()
        self._kept.move_to_end(key)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return cast("_T", self._kept[key])


def open_run(path: str | Path) -> Run:
    """Open a run directory.

    Example:
        >>> run = open_run("runs/nsys-stage3")                                     # doctest: +SKIP
        >>> run.zero_events.groupby("kind").full_bytes.sum()                       # doctest: +SKIP

    Raises:
        UsageError: not a run directory.
        ZeropeakError: the run has no tables yet, or was written by a newer zeropeak.
    """
    path = Path(path)
    if not path.is_dir():
        raise UsageError(f"{path}: no such run directory; a capture makes one, for example `zeropeak nsys stage3`")
    manifest = read_run_json(path) or {}
    if not (path / "tables").is_dir():
        if not manifest and not (path / "raw").is_dir():
            raise UsageError(f"{path}: not a run directory (no run.json, raw or tables in it)")
        raise ZeropeakError(f"{path}: no tables; run `zeropeak parse {path}`")
    entries(path / "tables")
    return Run(path, manifest)


def open_whole_run(path: str | Path) -> Run:
    """Open a run directory of which no table was taken away; :func:`open_run` looks at a table when it is read.

    Raises:
        UsageError: not a run directory.
        ZeropeakError: as :func:`open_run`; or files of tables are missing.
    """
    run = open_run(path)
    run.files.check()
    return run


def _read(path: Path, schema: pa.Schema, needed: Sequence[str]) -> pa.Table:
    way_out = f"run `zeropeak parse {path.parents[2]}`"
    try:
        with pq.ParquetFile(path) as file:
            present = set(file.schema_arrow.names)
            if lacking := [name for name in needed if name not in present]:
                raise TraceError(path, f"no column {', '.join(lacking)}: not a table of this zeropeak; {way_out}")
            table = file.read(columns=[name for name in schema.names if name in present])
        columns = [
            table[field.name].cast(field.type) if field.name in present else pa.nulls(table.num_rows, field.type)
            for field in schema
        ]
    except (pa.ArrowException, OSError) as error:
        raise TraceError(path, f"not a readable table ({type(error).__name__}); {way_out}") from error
    for name in needed:
        if columns[schema.get_field_index(name)].null_count:
            raise TraceError(path, f"column {name} has holes: not a table of this zeropeak; {way_out}")
    return pa.table(columns, schema=schema)


def _to_pandas(table: pa.Table) -> pd.DataFrame:
    import pandas as pd  # half a second that a report does without

    dtypes = {
        pa.int64(): pd.Int64Dtype(),
        pa.float64(): pd.Float64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
        pa.string(): pd.StringDtype("pyarrow"),
    }
    return cast("pd.DataFrame", table.to_pandas(types_mapper=dtypes.get))
