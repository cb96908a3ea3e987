"""Machines whose clocks disagree, laid onto each other by the collectives that they ran together.

Unix time of two machines is good to milliseconds at best, and to seconds where nobody keeps it. But a collective in
which every rank needs what every other one sends cannot end on one machine before the last rank on another began it,
and ends on all of them at nearly one moment. Machines that contradict this are moved; those that do not are left alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from zeropeak.parse.clocks import IDENTITY, ClockMap, Ends, fit_ends
from zeropeak.parse.lookup import ints
from zeropeak.parse.placing import clock_row
from zeropeak.parse.schema import TABLES
from zeropeak.parse.writer import rewrite
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence
    from pathlib import Path

    from zeropeak.parse.stats import Stats, StatsScope

FEWEST: Final = 10
"""Fewer collectives that two machines have in common say nothing about their clocks."""

TOGETHER: Final = ("allgather", "allreduce", "reducescatter", "alltoall", "barrier")
"""Operations that end on no rank before all have begun; a broadcast may, on the rank that sends."""

SOURCE: Final = "collectives"

_KEYS: Final = ("name", "group", "in_bytes", "out_bytes", "count", "turn")
_COLUMNS: Final = ("name", "start_ns", "end_ns", "in_bytes", "out_bytes", "group_size", "group", "sequence", "stream",
                   "source")  # fmt: skip


@dataclass(frozen=True)
class _Move:
    """What was found out about one machine: its map, or the problem; neither when too few collectives ``matched``."""

    matched: int
    clock: ClockMap | None
    problem: str = ""


@dataclass(frozen=True)
class Aligned:
    """Ranks whose tables were moved, with their maps, and ranks whose clocks surely go with the lowest rank's."""

    moved: dict[int, ClockMap]
    related: frozenset[int]


def align_hosts(tables: Path, hosts: Mapping[int, Hashable], stats: Stats, unplaced: Sequence[int] = ()) -> Aligned:
    """Move the tables of machines whose clocks disagree with that of the lowest rank's machine.

    Args:
        tables: folder with the finished tables of all ranks.
        hosts: what tells a rank's machine, by rank; equal for ranks of one machine.
        stats: takes what was done, and what could not be.
        unplaced: ranks whose clock counts from nobody knows when.

    Returns:
        What was moved; each map is also a row of ``clocks``.
    """
    by_host: defaultdict[Hashable, list[int]] = defaultdict(list)
    for rank in sorted(hosts, key=lambda rank: (rank in unplaced, rank)):
        by_host[hosts[rank]].append(rank)
    if len(by_host) < 2:
        return Aligned({}, frozenset(hosts))
    calls = _common(tables, by_host)
    first, *left = by_host
    placed: dict[Hashable, ClockMap] = {first: IDENTITY}
    moved: dict[int, ClockMap] = {}
    while left:
        host, near, both = _next(calls, left, placed)
        left.remove(host)
        move = _move(both, placed[near])
        scope = stats.scope("tables/collectives", None, by_host[host][0])
        if move.clock is None:
            _tell(scope, move, by_host[host], by_host[near])
            continue
        placed[host] = move.clock
        if move.clock is IDENTITY:
            scope.count("clocks_agree", move.matched, "info", "collectives that no clock of two machines contradicts")
            continue
        scope.count(
            "clocks_aligned",
            move.matched,
            "mended",
            f"collectives by which the clock of {_ranks(by_host[host])} was moved by "
            f"{move.clock.offset_ns / 1e9:+,.6f} s: it contradicted that of {_ranks(by_host[near])}",
        )
        for rank in by_host[host]:
            _shift(tables, rank, move.clock)
            moved[rank] = move.clock
    return Aligned(moved, frozenset(rank for host in placed for rank in by_host[host]))


def _next(
    calls: Mapping[Hashable, pa.Table], left: Sequence[Hashable], placed: Mapping[Hashable, ClockMap]
) -> tuple[Hashable, Hashable, pa.Table]:
    """A machine to place, one that is placed and has collectives in common with it, and those."""
    found = None
    for host in left:
        for near in placed:
            both = calls[near].join(calls[host], list(_KEYS), join_type="inner", right_suffix="_other")
            if both.num_rows >= FEWEST:
                return host, near, both
            if found is None or both.num_rows > found[2].num_rows:
                found = host, near, both
    assert found is not None, "no machine is left"
    return found


def _tell(scope: StatsScope, move: _Move, ranks: Sequence[int], others: Sequence[int]) -> None:
    """Say that a machine's base times were kept, and why."""
    kept = f"the base times of {_ranks(ranks)} are kept beside those of {_ranks(others)}, good to milliseconds at best"
    if move.problem:
        scope.count("clocks_contradict", move.matched, "error", f"{move.problem}; {kept}")
    else:
        scope.count(
            "clocks_not_compared", 1, "info", f"{move.matched} collectives in common, too few to compare; {kept}"
        )


def _move(both: pa.Table, place: ClockMap) -> _Move:
    """How a machine's clock runs beside that of one whose place is known.

    Args:
        both: the collectives that they have in common.
        place: the map of the one that is known.
    """
    if both.num_rows < FEWEST:
        return _Move(both.num_rows, None)
    ends = Ends(
        *(place.apply(ints(both[name])) for name in ("start_ns", "end_ns")),
        *(ints(both[f"{name}_other"]) for name in ("start_ns", "end_ns")),
    )
    if ends.agree():
        return _Move(both.num_rows, IDENTITY)
    try:
        return _Move(both.num_rows, fit_ends(ends))
    except TraceError as error:
        return _Move(both.num_rows, None, error.problem)


def _common(tables: Path, by_host: Mapping[Hashable, Sequence[int]]) -> dict[Hashable, pa.Table]:
    """By machine: each collective's key, its last begin and its first end on the machine."""
    parts: dict[Hashable, list[pa.Table]] = {host: [] for host in by_host}
    holders: defaultdict[str, int] = defaultdict(int)
    sizes: dict[str, int] = {}
    for host, ranks in by_host.items():
        for rank in ranks:
            rows = _usable(tables / "collectives" / f"rank-{rank}.parquet")
            parts[host].append(_keyed(rows))
            for group in pc.unique(rows["group"]).to_pylist():
                holders[group] += 1
            known = rows.filter(pc.greater(rows["group_size"], 0)).group_by("group").aggregate([("group_size", "max")])
            sizes |= dict(zip(known["group"].to_pylist(), known["group_size_max"].to_pylist(), strict=True))
    # More ranks than it has members: several groups bear this name, and which rank is in which is not known.
    unclear = pa.array([name for name, number in holders.items() if number > sizes.get(name, number)], pa.string())
    found = {}
    for host, some in parts.items():
        rows = pa.concat_tables(some)
        rows = rows.filter(pc.invert(pc.is_in(rows["group"], unclear)))
        spans = rows.group_by(list(_KEYS)).aggregate([("start_ns", "max"), ("end_ns", "min")])
        found[host] = spans.rename_columns([*_KEYS, "start_ns", "end_ns"])
    return found


def _usable(path: Path) -> pa.Table:
    """Collectives of a rank that ran on a device and end everywhere together; those of one source. Nulls are filled."""
    rows = pq.read_table(path, columns=list(_COLUMNS), partitioning=None)
    for name in ("stream", "start_ns", "end_ns"):
        rows = rows.filter(pc.is_valid(rows[name]))
    plain = pc.replace_substring(pc.utf8_lower(rows["name"]), "_", "")
    rows = rows.filter(pc.match_substring_regex(plain, "|".join(TOGETHER)))
    sources = pc.value_counts(rows["source"]).to_pylist()
    if len(sources) > 1:
        most = max(sources, key=lambda one: (one["counts"], str(one["values"])))["values"]
        rows = rows.filter(pc.equal(rows["source"], most))
    for name, nothing in (("group", ""), ("in_bytes", -1), ("out_bytes", -1), ("group_size", -1), ("sequence", -1)):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, name, pc.fill_null(rows[name], nothing))
    return rows.filter(pc.not_equal(rows["group_size"], 1)).combine_chunks()


def _keyed(rows: pa.Table) -> pa.Table:
    """Rows with what tells a collective on all ranks: its sequence number, else its turn among those that look alike.

    A turn counts only among ranks that saw as many of the kind, so ``count`` is part of the key.
    """
    alike = [ints(pc.dictionary_encode(rows[name]).combine_chunks().indices) for name in _KEYS[:4]]
    sequence, start = ints(rows["sequence"]), ints(rows["start_ns"])
    _, kind = np.unique(np.column_stack([*alike, sequence < 0]), axis=0, return_inverse=True)
    order = np.lexsort((start, kind))
    first = np.searchsorted(kind[order], kind[order])
    turn = np.empty(len(order), np.int64)
    turn[order] = np.arange(len(order)) - first
    count = np.bincount(kind, minlength=1)[kind] if len(kind) else kind.astype(np.int64)
    keyed = rows.select(["name", "group", "in_bytes", "out_bytes", "start_ns", "end_ns"])
    keyed = keyed.append_column("count", pa.array(np.where(sequence < 0, count, 0)))
    keyed = keyed.append_column("turn", pa.array(np.where(sequence < 0, turn, sequence)))
    if not (sequence >= 0).any():
        return keyed
    # A number that comes twice (calls of one group, a counter that began again) tells nothing.
    key = keyed.group_by(list(_KEYS)).aggregate([([], "count_all")])
    return keyed.join(key.filter(pc.equal(key["count_all"], 1)), list(_KEYS), join_type="left semi")


def _shift(tables: Path, rank: int, clock: ClockMap) -> None:
    """Put all tables of a rank on the run's clock, and say so in ``clocks``."""
    for table in TABLES:
        path = tables / table.name / f"rank-{rank}.parquet"
        if table.name == "clocks":
            row = clock_row(SOURCE, clock).append_column("rank", pa.array([rank], pa.int64()))
            rewrite(table, path, lambda rows: rows, more=row)
        elif path.is_file():
            rewrite(table, path, clock.apply_table)


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return (
        f"ranks {ranks[0]} to {ranks[-1]}"
        if ranks[-1] - ranks[0] == len(ranks) - 1
        else f"ranks {', '.join(map(str, ranks))}"
    )
