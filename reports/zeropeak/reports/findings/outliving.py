"""Which released storages surely outlived their release at a mark, and which may have been on their way out.

A communication thread (gloo's) can drop the last reference to a storage moments after ZeRO's own: such a storage is
found alive at a mark without anything holding it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zeropeak.reports.basis import simulated
from zeropeak.reports.columns import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Story

SLACK_NS: Final = 5_000_000
"""How long after a mark a thread may still take to drop a reference: some schedules of a busy core."""


_MARK: Final = ("step", "micro_step", "mark")


def slack_ns(run: Run) -> int:
    """:data:`SLACK_NS`; none in a predicted run, which has one thread and no time."""
    return 0 if simulated(run) else SLACK_NS


@dataclass(frozen=True)
class Outliving:
    """What was found alive at one mark.

    Attributes:
        mark: row of ``marks``.
        rows: rows of ``retained`` that surely outlived it; empty also where the table is.
        size_bytes: their bytes.
        count: their number.
        apart_bytes: the rest of what the mark counted.
        apart_ended: whether all of the rest was seen to end.
    """

    mark: dict[str, Any]
    rows: Sequence[dict[str, Any]]
    size_bytes: int
    count: int
    apart_bytes: int
    apart_ended: bool


class _Retained:
    """Rows of ``retained`` of a rank by mark: a long run has thousands, each of which is asked for.

    Attributes:
        held: storages that have a named holder at some mark.
    """

    def __init__(self, run: Run, rank: int) -> None:
        rows: list[dict[str, Any]] = run.arrow("retained", rank).to_pylist()
        self.held = {row["storage_id"] for row in rows if row["holder"] is not None} - {None}
        self._rows: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in rows:
            self._rows.setdefault(tuple(row[name] for name in _MARK), []).append(row)

    def at(self, mark: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Rows of a mark; what the mark does not say is not asked for."""
        wanted = tuple(mark[name] for name in _MARK)
        if None not in wanted:
            return self._rows.get(wanted, [])
        keys = [key for key in self._rows if all(one in (None, said) for one, said in zip(wanted, key, strict=True))]
        return [row for key in keys for row in self._rows[key]]


def rows_at(run: Run, story: Story, mark: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of ``retained`` at a mark (``step``, ``micro_step``, ``mark``): those that surely outlived it, and the rest.

    Sure is a storage that has a named holder at any mark, or whose end lies more than :data:`SLACK_NS` after the mark,
    or that was never seen to end in a run that went on for that long.
    """
    retained = run.keep(("retained", story.rank), lambda: _Retained(run, story.rank))
    sure: list[dict[str, Any]] = []
    rest: list[dict[str, Any]] = []
    slack = slack_ns(run)
    for row in retained.at(mark):
        named = row["holder"] is not None or row["storage_id"] in retained.held
        end = story.end_ns if row["ended_ns"] is None else row["ended_ns"]
        lasted = row["ts_ns"] is not None and end - row["ts_ns"] > slack
        (sure if named or lasted else rest).append(row)
    return sure, rest


def outliving(run: Run, story: Story, mark: dict[str, Any]) -> Outliving:
    """What surely outlived its release at a mark."""
    sure, rest = rows_at(run, story, mark)
    counted = mark["released_alive_bytes"] or 0
    if sure or rest:
        size_bytes, count = sum(row["size_bytes"] or 0 for row in sure), len(sure)
        return Outliving(mark, sure, size_bytes, count, max(counted - size_bytes, 0), all(
            row["ended_ns"] is not None for row in rest))  # fmt: skip
    # The log lost its rows of the mark: what the blocks tell is left.
    blocks, ts_ns = story.intervals, mark["ts_ns"]
    alive = (blocks.start_ns <= ts_ns) & (blocks.end_ns > ts_ns)
    lasted = alive & (np.minimum(blocks.end_ns, max(story.end_ns, ts_ns)) - ts_ns > slack_ns(run))
    size_bytes = min(int(blocks.size_bytes[lasted].sum()), counted)
    ended = bool(alive.any()) and bool((blocks.end_ns[alive & ~lasted] != NEVER).all())
    return Outliving(mark, (), size_bytes, int(np.count_nonzero(lasted)), counted - size_bytes, ended)
