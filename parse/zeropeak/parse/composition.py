"""What the allocated bytes of a moment were: one category for every block that was alive, the rest unattributed.

Rules, in this order:

1. A registered storage that is not a full parameter has the category that the capture registered; one that this
   version does not know is ``other``. A persistent parameter is ``released_but_alive`` from its release on.
2. A full (gathered) parameter is, at time t,
   ``released_but_alive`` when ZeRO had released it; else ``gathered_in_use`` when ``zero.GatheredParameters`` holds it
   or a module that uses it (see :mod:`zeropeak.parse.usage`) is running; else, when no wait for it had
   ended, ``prefetched_ahead`` if a prefetch launched its gather and ``gathered_in_use`` if a fetch did; else
   ``gathered_in_use`` while the module it was waited for has not begun yet; else ``kept_for_reuse``. One born in init
   that nothing had gathered is ``other``: ``zero.Init`` made it whole, to be partitioned.
3. An unregistered block born inside a fetch, prefetch, wait or gather is a ``gather_buffers``.
4. An unregistered block born while a module's forward ran (in a backward phase: recomputation), or elsewhere in a
   forward or eval phase, that outlived that module (or phase) is ``activations``, unless it also outlived the next
   step: what lives that long is not kept for a backward. (Of the last step nothing can be said, so it counts.)
   One born elsewhere in a backward phase that outlived it, but not the next step, is a ``full_gradients``: gradients of
   leaves are what backward leaves (that of an embedding's output under LoRA, say).
5. Any other unregistered block born and freed within one module's forward or within one phase is ``workspace``.
6. What is left (blocks from before the known history, born in no phase, or outliving their phase with no owner) is
   ``unattributed``, together with the difference between the measured curve and the blocks. So the rows of a moment sum
   to the measured bytes exactly.

Registered storages without an allocator block count only where the curve includes them: it is made of counters, or it
says how much was allocated before its first event and the storage was registered before that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.blocks import ALIVE, BEFORE, ROW
from zeropeak.parse.compact import ROWS
from zeropeak.parse.holdings import Moves
from zeropeak.parse.innermost import NONE
from zeropeak.parse.lookup import ints, spread, take
from zeropeak.parse.schema import CATEGORIES
from zeropeak.parse.usage import uses
from zeropeak.profile.labels import Kind, Phase, Stored

if TYPE_CHECKING:
    from zeropeak.parse.timeline import Timeline

    Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
    Codes = np.ndarray[tuple[int], np.dtype[np.int8]]

NAMES: Final = tuple(CATEGORIES)
_CODE: Final = {name: code for code, name in enumerate(NAMES)}
_STORED: Final = {
    Stored.PARAM_SHARD: "parameter_shards",
    Stored.PARAM_PERSISTENT: "persistent_parameters",
    Stored.PARAM_REPLICATED: "replicated_parameters",
    Stored.GATHER_BUFFER: "gather_buffers",
    Stored.GRADIENT_BUCKET: "gradient_buckets",
    Stored.GRADIENT_FULL: "full_gradients",
    Stored.GRADIENT_SHARD: "gradient_shards",
    Stored.OPTIMIZER_STATE: "optimizer_states",
    Stored.FP32_MASTER: "fp32_masters",
    Stored.MODULE_BUFFER: "module_buffers",
    Stored.INPUT: "inputs",
    Stored.WORKSPACE: "workspace",
}
_LAUNCHES: Final = frozenset({Kind.FETCH, Kind.PREFETCH, Kind.GATHER})
UNATTRIBUTED: Final = _CODE["unattributed"]


class Composition:
    """Categories of a rank's blocks over time.

    Args:
        blocks: rows of memory_blocks of the rank's device.
        timeline: the rank's events.
        event_params: rows of zero_event_params.
        params: rows of params.
    """

    def __init__(self, blocks: pa.Table, timeline: Timeline, event_params: pa.Table, params: pa.Table) -> None:
        self._timeline = timeline
        self._size = ints(blocks["size_bytes"])
        pieces = (blocks.slice(begin, ROWS) for begin in range(0, max(1, blocks.num_rows), ROWS))
        self._code = np.concatenate([_unregistered_codes(piece, timeline) for piece in pieces])
        registered = np.flatnonzero(np.asarray(pc.is_valid(blocks["category"])))
        category = blocks["category"].take(pa.array(registered)).to_pylist()
        self._code[registered] = [_CODE[_STORED.get(name, "other")] for name in category]
        full = registered[[name == Stored.PARAM_FULL for name in category]]
        persistent = registered[[name == Stored.PARAM_PERSISTENT for name in category]]
        self._left_at = np.full(blocks.num_rows, ALIVE)
        self._left_at[persistent] = ints(blocks["released_ns"].take(pa.array(persistent)), ALIVE)
        self._full = np.full(blocks.num_rows, NONE, ROW)
        self._full[full] = np.arange(len(full))
        self._parameters = _FullParameters(blocks.take(pa.array(full)), timeline, event_params, params)

    def at(self, ts: int, alive: Ints | Flags, allocated_bytes: int) -> dict[str, tuple[int, int]]:
        """Bytes and number of blocks by category.

        Args:
            ts: the moment, ns.
            alive: rows of the blocks that were alive then, or a flag for each block.
            allocated_bytes: what the curve says was allocated.

        Returns:
            Categories that hold a block, and always ``unattributed``; the bytes sum to ``allocated_bytes``.
        """
        return self.sums(self.codes(ts, alive), alive, allocated_bytes)

    def codes(self, ts: int, alive: Ints | Flags) -> Codes:
        """Category of each of the blocks that were alive at a moment, as an index of :data:`NAMES`."""
        code, full = self._code[alive], self._full[alive]
        code[self._left_at[alive] <= ts] = _CODE["released_but_alive"]
        gathered = np.flatnonzero(full != NONE)
        code[gathered] = self._parameters.codes(ts, full[gathered])
        return code

    def sums(self, codes: Codes, alive: Ints | Flags, allocated_bytes: int) -> dict[str, tuple[int, int]]:
        """As :meth:`at`, from the categories of the blocks."""
        count = np.bincount(codes, minlength=len(NAMES))
        size = np.zeros(len(NAMES), np.int64)
        np.add.at(size, codes, self._size[alive])
        size[UNATTRIBUTED] = allocated_bytes - (size.sum() - size[UNATTRIBUTED])
        return {
            name: (int(size[place]), int(count[place]))
            for place, name in enumerate(NAMES)
            if count[place] or place == UNATTRIBUTED
        }

    def size_of(self, alive: Ints | Flags) -> int:
        """Bytes of some blocks."""
        return int(self._size[alive].sum())


def _unregistered_codes(blocks: pa.Table, timeline: Timeline) -> Codes:
    """Rules 3 to 6, for all blocks (the caller overrules the registered ones)."""
    born = ints(blocks["born_ns"], BEFORE)
    gone = ints(blocks["free_requested_ns"], ALIVE)
    code = np.full(len(born), UNATTRIBUTED, np.int8)
    phase_row = np.asarray(timeline.phases.innermost.at(born))
    in_phase = phase_row != NONE
    phase_end = np.where(in_phase, take(timeline.phases.end, phase_row), BEFORE)
    forward_phase = take(_is_in(timeline.phases.rows["phase"], (Phase.FORWARD, Phase.EVAL)), phase_row) & in_phase
    module_row = timeline.modules.innermost.at(born)
    forward = take(_is_in(timeline.modules.rows["direction"], ("forward",)), module_row) & (module_row != NONE)
    module_end = take(timeline.modules.end, module_row)

    scope_end = np.where(forward, module_end, phase_end)
    code[(in_phase | forward) & (gone <= scope_end)] = _CODE["workspace"]
    step = np.where(in_phase, take(ints(timeline.phases.rows["step"]), phase_row), -1)
    next_step_end = timeline.step_end(np.minimum(step + 1, timeline.last_step))
    short = (gone <= next_step_end) | (step >= timeline.last_step)
    code[(forward | forward_phase) & (gone > scope_end) & short] = _CODE["activations"]
    backward_phase = take(_is_in(timeline.phases.rows["phase"], (Phase.BACKWARD,)), phase_row) & in_phase
    code[backward_phase & ~forward & (gone > phase_end) & short] = _CODE["full_gradients"]
    event_row = timeline.events.innermost.at(born)
    gathering = _is_in(timeline.events.rows["kind"], (*_LAUNCHES, Kind.WAIT))
    code[take(gathering, event_row) & (event_row != NONE)] = _CODE["gather_buffers"]
    code[born == BEFORE] = UNATTRIBUTED
    return code


class _FullParameters:
    """State of gathered parameters over time (rule 2)."""

    def __init__(self, blocks: pa.Table, timeline: Timeline, event_params: pa.Table, params: pa.Table) -> None:
        self._timeline = timeline
        count = blocks.num_rows
        self._released = ints(blocks["released_ns"], ALIVE)
        self._prefetch = np.zeros(count, bool)
        self._gather = np.zeros(count, bool)
        self._made = np.zeros(count, bool)
        in_init = _is_in(blocks["born_phase"], (Phase.INIT,))
        self._waited = np.full(count, ALIVE)
        self._begun = np.full(count, ALIVE)
        moves = Moves.of(timeline, event_params)
        launches, waits = _moves(timeline, moves)
        users: dict[int, list[int]] = defaultdict(list)
        for param, module in zip(*(ids.tolist() for ids in uses(timeline, moves, params)), strict=True):
            users[param].append(module)
        runs = _runs(timeline)
        pairs: list[tuple[int, int]] = []
        param_ids, births = ints(blocks["param_id"]).tolist(), ints(blocks["born_ns"], BEFORE).tolist()
        for row, (param, born) in enumerate(zip(param_ids, births, strict=True)):
            times, kinds = launches.get(param, ((), ()))
            place = bisect_right(times, born) - 1
            kind = kinds[place] if place >= 0 else None
            launched = times[place] if place >= 0 else born
            self._prefetch[row], self._gather[row] = kind == Kind.PREFETCH, kind == Kind.GATHER
            self._made[row] = kind is None and in_init[row]
            ends = waits.get(param, ())
            after = bisect_left(ends, launched)
            if after < len(ends):
                self._waited[row] = ends[after]
            elif kind is None:
                self._waited[row] = BEFORE
            for module in users.get(param, ()):
                pairs.append((row, module))
                starts, run_ends = runs.get(module, ((), ()))
                run = bisect_right(run_ends, born)
                if run < len(starts):
                    self._begun[row] = min(int(self._begun[row]), starts[run])
        # Modules that use each parameter, one after the other; those of row r are at first[r] .. first[r + 1].
        self._users = np.array([module for _, module in pairs], np.int64)
        self._first = np.searchsorted(np.array([row for row, _ in pairs], np.int64), np.arange(count + 1))

    def codes(self, ts: int, rows: Ints) -> Ints:
        """Category codes at a moment of the full parameters in ``rows``, which must be alive."""
        first, count = self._first[rows], self._first[rows + 1] - self._first[rows]
        row, place = spread(first, count)
        running = np.zeros(len(rows), bool)
        running[row[np.isin(self._users[place], self._timeline.running_modules(ts))]] = True
        waiting = self._waited[rows] > ts
        coming = ~waiting & (self._begun[rows] > ts) & (self._begun[rows] != ALIVE)
        conditions = [
            self._released[rows] <= ts, self._gather[rows] | running, waiting & self._prefetch[rows], waiting | coming,
            self._made[rows],
        ]  # fmt: skip
        names = ["released_but_alive", "gathered_in_use", "prefetched_ahead", "gathered_in_use", "other"]
        return np.select(conditions, [_CODE[name] for name in names], _CODE["kept_for_reuse"])


Times = dict[int, tuple[list[int], list[str]]]


def _moves(timeline: Timeline, moves: Moves) -> tuple[Times, dict[int, list[int]]]:
    """By parameter: launches (times, kinds), and ends of waits."""
    launches: Times = defaultdict(lambda: ([], []))
    waits: dict[int, list[int]] = defaultdict(list)
    for place in np.argsort(timeline.events.start[moves.event], kind="stable").tolist():
        event, param, kind = int(moves.event[place]), int(moves.param[place]), moves.kind[place]
        if kind in _LAUNCHES:
            launches[param][0].append(int(timeline.events.start[event]))
            launches[param][1].append(kind)
        elif kind == Kind.WAIT:
            waits[param].append(int(timeline.events.end[event]))
    for ends in waits.values():
        ends.sort()
    return launches, waits


def _runs(timeline: Timeline) -> dict[int, tuple[list[int], list[int]]]:
    """Starts and ends of each module's runs, in time order."""
    runs: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    module = ints(timeline.modules.rows["module_id"])
    for row in np.argsort(timeline.modules.start, kind="stable").tolist():
        starts, ends = runs[int(module[row])]
        starts.append(int(timeline.modules.start[row]))
        ends.append(int(timeline.modules.end[row]))
    return runs


def _is_in(column: pa.ChunkedArray, values: tuple[str, ...]) -> Flags:
    wanted = {str(value) for value in values}
    return np.array([value in wanted for value in column.to_pylist()], bool)
