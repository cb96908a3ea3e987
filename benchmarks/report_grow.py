"""Grow the tables of a real run: more steps, so that its ranks have any number of memory events, and more ranks.

    python benchmarks/report_grow.py runs/torch-stage3 grown --events 1000000 --ranks 4

Step 1 is repeated: in each round times, steps and ids go on, as in a longer run. What begins in one step and ends in
the next does so in every round, since a round is exactly as long as that step; step 2 and what follows come last, once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from job import SOURCES

sys.path[:0] = SOURCES.split(os.pathsep)

from zeropeak.profile.labels import RANK_SHIFT  # noqa: E402

REPEATED, LAST = 1, 2
"""Steps: before the first one prefetching is not yet what it is from then on."""
BEGINS = ("start_ns", "born_ns", "decided_ns", "ts_ns")
LENGTHS = ("held_ns",)
EVENTS = ("event_id", "born_event_id", "last_event_id", "parent_event_id", "release_event_id", "free_event_id")
ONCE = ("ranks", "clocks", "modules", "params", "import_stats")
"""Tables whose rows are of the run, not of a step."""


class Span(NamedTuple):
    """Where the repeated step begins, and where the last one does, on one axis."""

    begin: int
    end: int

    def moved(self, values: np.ndarray, rounds: int, whole: bool) -> np.ndarray:
        """Values of a round; ``whole``: of rows that are there once, so what lies behind the rounds moves by all."""
        here = values >= (self.end if whole else self.begin)
        return np.where(here, values + rounds * (self.end - self.begin), values)


class Rank:
    """One rank of the run that is grown."""

    def __init__(self, run: Path, rank: int, rounds: int) -> None:
        self.tables = {
            folder.name: pq.read_table(folder / f"rank-{rank}.parquet")
            for folder in sorted((run / "tables").iterdir())
            if (folder / f"rank-{rank}.parquet").exists()
        }
        self.rank, self.rounds = rank, rounds
        phases = self.tables["phases"].filter(pc.equal(self.tables["phases"]["phase"], "forward")).to_pylist()
        begin, end = (next(row for row in phases if row["step"] == step) for step in (REPEATED, LAST))
        self.spans = {
            "_ns": Span(begin["start_ns"], end["start_ns"]),
            "event_id": Span(begin["event_id"], end["event_id"]),
            "step": Span(REPEATED, LAST),
        }
        self.spans |= {name: self._of_ids(name) for name in ("block_id", "storage_id")}

    def grown(self, name: str) -> pa.Table:
        """A table with all rounds."""
        table = self.tables[name]
        if name in ONCE:
            return self._moved(table, self.rounds - 1, True)
        part = self._part(name, table)
        first = self._moved(table.filter(pa.array(part == 0)), self.rounds - 1, True)
        again = table.filter(pa.array(part == 1))
        last = table.filter(pa.array(part == 2))
        between = [self._moved(again, number, False) for number in range(self.rounds)]
        whole = pa.concat_tables([first, *between, self._moved(last, self.rounds - 1, False)])
        return _with_totals(whole) if name == "memory_events" else whole

    def _part(self, name: str, table: pa.Table) -> np.ndarray:
        """Per row: 0 before the repeated step, 1 in it, 2 after it. The run's own peak is there once."""
        key = next((column for column in (*BEGINS, "step", "event_id") if column in table.column_names), None)
        if key is None:
            raise SystemExit(f"table {name}: no column says when its rows are")
        if key == "ts_ns" and "step" in table.column_names:
            key = "step"  # marks are made at the end of what they are of
        values = _ints(table, key)
        span = self._span(key)
        if span is None:
            raise SystemExit(f"table {name}: nothing says where the repeated steps begin by {key}")
        part = np.where(values < span.begin, 0, np.where(values < span.end, 1, 2))
        return np.where(_of_run(table), 0, part)

    def _moved(self, table: pa.Table, rounds: int, whole: bool) -> pa.Table:
        for place, name in enumerate(table.column_names):
            span = self._span(name)
            if span is None or not rounds:
                continue
            column = table[name].combine_chunks()
            values = span.moved(_ints(table, name), rounds, whole)
            moved = pa.array(values, pa.int64(), mask=column.is_null().to_numpy(zero_copy_only=False))
            table = table.set_column(place, table.schema.field(name), moved)
        return table

    def _span(self, name: str) -> Span | None:
        if name.endswith("_ns") and name not in LENGTHS:
            return self.spans["_ns"]
        return self.spans["event_id"] if name in EVENTS else self.spans.get(name)

    def _of_ids(self, name: str) -> Span:
        """Ids of blocks and storages: from the first one born in the repeated step to the first one of the last."""
        blocks = self.tables["memory_blocks"]
        blocks = blocks.filter(pc.is_valid(blocks[name]))
        born, ids = _ints(blocks, "born_ns"), _ints(blocks, name)
        order = np.argsort(ids, kind="stable")
        born, ids = born[order], ids[order]
        return Span(*(int(ids[np.argmax(born >= edge)]) for edge in self.spans["_ns"]))


def grow(source: Path, target: Path, events: int, ranks: int) -> None:
    """Write a run directory with so many memory events a rank.

    Args:
        source: run of at least three steps with its tables.
        target: run directory to write; must not be there.
        events: memory events of each rank, at least.
        ranks: ranks; those of the source are repeated.
    """
    manifest = json.loads((source / "run.json").read_text())
    there = sorted(int(path.stem[5:]) for path in (source / "tables" / "ranks").glob("rank-*.parquet"))
    target.mkdir(parents=True)
    for rank in range(ranks):
        one = Rank(source, there[rank % len(there)], 1)
        total = one.tables["memory_events"].num_rows
        step = int(np.count_nonzero(one._part("memory_events", one.tables["memory_events"]) == 1))
        one.rounds = max(1, 1 + -(-(events - total) // step))
        for name in one.tables:
            path = target / "tables" / name / f"rank-{rank}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(_of_rank(one.grown(name), one.rank, rank, ranks), path, compression="zstd")
    shutil.copytree(source / "tables" / "import_stats", target / "tables" / "import_stats", dirs_exist_ok=True)
    about = {"world_size": ranks, "steps": manifest["steps"] + one.rounds - 1, "name": f"grown-{ranks}-{events}"}
    (target / "run.json").write_text(json.dumps({**manifest, **about}))
    for rank in range(ranks):
        facts = json.loads((source / "raw" / f"rank-{there[rank % len(there)]}" / "rank.json").read_text())
        path = target / "raw" / f"rank-{rank}" / "rank.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({**facts, "rank": rank, "world_size": ranks}))


def _of_rank(table: pa.Table, before: int, rank: int, ranks: int) -> pa.Table:
    """The same rows as another rank's: events are numbered by rank."""
    more = {"rank": 0, **dict.fromkeys(EVENTS, (rank - before) << RANK_SHIFT)}
    for place, name in enumerate(table.column_names):
        if name == "rank":
            table = table.set_column(place, name, pa.array(np.full(table.num_rows, rank)))
        elif name == "world_size":
            table = table.set_column(place, name, pa.array(np.full(table.num_rows, ranks)))
        elif more.get(name):
            table = table.set_column(place, name, pc.add(table[name], more[name]))
    return table


def _ints(table: pa.Table, name: str) -> np.ndarray:
    values: np.ndarray = pc.fill_null(table[name], -1).to_numpy()
    return values


def _with_totals(events: pa.Table) -> pa.Table:
    """The running total again: two steps may end a few bytes apart."""
    sizes = _ints(events, "size_bytes")
    total = np.cumsum(np.where(pc.equal(events["action"], "alloc").to_numpy(), sizes, -sizes))
    place = events.schema.get_field_index("allocated_bytes")
    return events.set_column(place, events.schema.field(place), pa.array(total))


def _of_run(table: pa.Table) -> np.ndarray:
    if "scope" not in table.column_names:
        return np.zeros(table.num_rows, bool)
    of_run: np.ndarray = pc.equal(table["scope"], "run").to_numpy()
    return of_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=4)
    arguments = parser.parse_args()
    grow(arguments.source, arguments.target, arguments.events, arguments.ranks)


if __name__ == "__main__":
    main()
