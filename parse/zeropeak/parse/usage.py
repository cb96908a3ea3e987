"""Which modules use which parameters, and when they ran."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from zeropeak.parse.lookup import ints, spread, take
from zeropeak.parse.series import Series
from zeropeak.profile.labels import Kind

if TYPE_CHECKING:
    import pyarrow as pa

    from zeropeak.parse.holdings import Moves
    from zeropeak.parse.timeline import Timeline

    Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


def uses(timeline: Timeline, moves: Moves, params: pa.Table) -> tuple[Ints, Ints]:
    """All pairs (parameter, module that uses it), without doubles, by parameter.

    A parameter is used by the module that owns it, and by every module that fetched it (a fetch names nothing else).
    A wait names all parameters of the gather that is waited for, also those that only travelled with it: it tells
    something only where the module owns and fetched none of them, as with a tied weight that was gathered ahead.
    """
    module = take(ints(timeline.events.rows["module_id"]), moves.event)
    fetched = (moves.kind == Kind.FETCH.value) & (module >= 0)
    owned = ints(params["module_id"]) >= 0
    sure = _unique(
        np.concatenate([ints(params["param_id"])[owned], moves.param[fetched]]),
        np.concatenate([ints(params["module_id"])[owned], module[fetched]]),
    )
    waited = np.flatnonzero((moves.kind == Kind.WAIT.value) & (module >= 0))
    own = is_pair(sure, moves.param[waited], module[waited])
    foreign = waited[~np.isin(moves.event[waited], moves.event[waited][own])]
    return _unique(np.concatenate([sure[0], moves.param[foreign]]), np.concatenate([sure[1], module[foreign]]))


def is_pair(pairs: tuple[Ints, Ints], param: Ints, module: Ints) -> Flags:
    """Whether each (param, module) is one of ``pairs``."""
    width = int(max(pairs[1].max(initial=0), module.max(initial=0))) + 1
    return np.isin(param * width + module, pairs[0] * width + pairs[1])


def _unique(param: Ints, module: Ints) -> tuple[Ints, Ints]:
    width = int(module.max(initial=0)) + 1
    key = np.unique(param * width + module)
    return key // width, key % width


class Runs:
    """Forwards and backwards of the modules, and through them the uses of parameters.

    Args:
        timeline: the rank's events.
        pairs: what :func:`uses` gave.
    """

    def __init__(self, timeline: Timeline, pairs: tuple[Ints, Ints]) -> None:
        rows = timeline.modules
        self._pairs = pairs
        order = np.argsort(rows.start, kind="stable")
        self.module, self.start, self.end = ints(rows.rows["module_id"])[order], rows.start[order], rows.end[order]
        """Runs of modules in the order in which they began."""
        step, micro = ints(rows.rows["step"])[order], ints(rows.rows["micro_step"])[order]
        self.turn = step * (int(micro.max(initial=0)) + 2) + micro
        """A number for each run that is the same within one micro-step."""
        self._by_module = Series(self.module, self.start)
        self._latest = _running_maximum(self.module, self.end, self._by_module.order)
        users = np.argsort(pairs[1], kind="stable")
        self._use_run, place = expand(pairs[1][users], self.module)
        param = pairs[0][users][place]
        self._uses = Series(param, self._use_run)
        self._use_end = _running_maximum(param, self.end[self._use_run], self._uses.order)

    def first_after(self, ts: Ints) -> Ints:
        """Number (in order of begin) of the first run that began after each moment."""
        return np.searchsorted(self.start, ts, "right")

    def next_use(self, param: Ints, run: Ints) -> Ints:
        """Number of the first run at or after ``run`` that uses each parameter, -1 for none."""
        found = self._uses.following(param, run - 1)
        return np.where(found >= 0, take(self._use_run, found), -1)

    def used_between(self, param: Ints, first: Ints, last: Ints) -> Flags:
        """Whether a module that uses each parameter ran at any time from ``first`` to before ``last``."""
        found = self._uses.last(param, np.searchsorted(self.start, last, "left") - 1)
        return np.asarray((found >= 0) & (take(self._use_end, found) > first), bool)

    def running(self, module: Ints, ts: Ints) -> Flags:
        """Whether each module ran at a moment."""
        found = self._by_module.last(module, ts)
        return np.asarray((found >= 0) & (take(self._latest, found) > ts), bool)

    def numel_before(self, numel: Ints) -> Ints:
        """Elements of the parameters that all earlier runs use, for each run and one past the last.

        Args:
            numel: elements of the parameter of each pair of :func:`uses`.
        """
        size = np.zeros(int(max(self._pairs[1].max(initial=0), self.module.max(initial=0))) + 1, np.int64)
        np.add.at(size, self._pairs[1], numel)
        return np.concatenate([[0], np.cumsum(np.where(self.module >= 0, size[self.module], 0))])


def expand(keys: Ints, wanted: Ints) -> tuple[Ints, Ints]:
    """All pairs (row of ``wanted``, row of ``keys``, which are sorted) with equal values.

    >>> [rows.tolist() for rows in expand(np.array([1, 1, 2]), np.array([2, 3, 1]))]
    [[0, 2, 2], [2, 0, 1]]
    """
    first = np.searchsorted(keys, wanted, "left")
    count = np.searchsorted(keys, wanted, "right") - first
    return spread(first, count)


def _running_maximum(group: Ints, value: Ints, order: Ints) -> Ints:
    """By row: the highest value so far within its group, in an order that keeps groups together."""
    groups, highest = group[order], value[order]
    edges = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
    for start, end in pairwise(edges):
        np.maximum.accumulate(highest[start:end], out=highest[start:end])
    result = np.empty(len(value), np.int64)
    result[order] = highest
    return result
