"""The rules by which DeepSpeed's parameter coordinator fetches, prefetches, keeps and releases, on a recorded trace.

Re-told from ``PartitionedParameterCoordinator`` (``fetch_sub_module``, ``release_sub_module``, ``__params_to_release``)
for a forward and backward whose trace is complete. All amounts are elements. What a knob would have done in a run is
then the difference between two tellings; whether the telling fits the run is checked first, event by event (see
:mod:`zeropeak.reports.findings.replay`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Knobs:
    """Settings, in elements.

    Attributes:
        max_reuse_distance: a parameter that is used again within so many elements stays.
        prefetch_bucket_size: most that one prefetch takes (and up to one parameter more).
        max_live_parameters: no prefetch once so many are available.
        persistent: parameters that are never released.
    """

    max_reuse_distance: int
    prefetch_bucket_size: int
    max_live_parameters: int
    persistent: frozenset[int]


@dataclass(frozen=True)
class Trace:
    """What one forward and backward does.

    Attributes:
        users: parameters of each module run, in the order in which the runs begin.
        actions: (run, whether it ends) in order of time: a run fetches when it begins and lets go when it ends.
        forward: whether each run is a forward; the rest are backwards.
        numel: elements of each parameter.
        resident: persistent parameters that are there when it begins.
    """

    users: tuple[tuple[int, ...], ...]
    actions: tuple[tuple[int, bool], ...]
    forward: tuple[bool, ...]
    numel: Mapping[int, int] = field(hash=False, compare=False)
    resident: frozenset[int] = frozenset()


@dataclass
class Stay:
    """One parameter from its gather to its release; places are indexes of actions, -1 before the first.

    Attributes:
        ready: where it was waited for; None when it never was.
        until: where it was released; None when it never was.
        together: parameters of the same gather, itself included.
        prefetch: gathered ahead of use; launched after the run's own parameters were waited for.
    """

    param: int
    launched: int
    together: int
    prefetch: bool = False
    ready: int | None = None
    until: int | None = None


@dataclass
class Schedule:
    """What the rules do with a trace.

    Attributes:
        gathers: (prefetch or not, parameters ascending), in order.
        places: the action that launched each of them.
        releases: parameters that went, ascending, by action.
        stays: every stay of a parameter.
    """

    gathers: list[tuple[bool, tuple[int, ...]]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    releases: dict[int, tuple[int, ...]] = field(default_factory=dict)
    stays: list[Stay] = field(default_factory=list)


def schedule(trace: Trace, knobs: Knobs) -> Schedule:
    """Tell what the coordinator does.

    Two runs that each use one parameter, the first one's used once more afterwards, 4 elements later:

    >>> trace = Trace(((0,), (1,), (0,)), ((0, False), (0, True), (1, False), (1, True)), (True,) * 3, {0: 8, 1: 4})
    >>> schedule(trace, Knobs(5, 0, 100, frozenset())).releases
    {3: (1,)}
    >>> schedule(trace, Knobs(4, 0, 100, frozenset())).releases
    {1: (0,), 3: (1,)}
    """
    return _Coordinator(trace, knobs).told()


class _Coordinator:
    def __init__(self, trace: Trace, knobs: Knobs) -> None:
        self._trace, self._knobs, self._numel = trace, knobs, trace.numel
        self._before = [0]
        self._uses: defaultdict[int, list[int]] = defaultdict(list)
        for run, params in enumerate(trace.users):
            self._before.append(self._before[-1] + sum(trace.numel[param] for param in params))
            for param in params:
                self._uses[param].append(run)
        self._queue = deque((param, run) for run, params in enumerate(trace.users) for param in params)
        self._fetched_for: dict[int, int] = {}
        self._active: defaultdict[int, set[int]] = defaultdict(set)
        self._here: dict[int, Stay] = {
            param: Stay(param, -1, 1, ready=-1) for param in sorted(trace.resident & knobs.persistent)
        }
        self._handle: dict[int, list[Stay]] = {}
        self._live = 0
        self._step = 0
        self._told = Schedule(stays=list(self._here.values()))

    def told(self) -> Schedule:
        for place, (run, ends) in enumerate(self._trace.actions):
            if ends:
                self._let_go(place, run)
            else:
                self._fetch(place, run)
        return self._told

    def _fetch(self, place: int, run: int) -> None:
        own = self._trace.users[run]
        self._gather(place, [param for param in own if param not in self._here], prefetch=False)
        for param in own:
            self._active[param].add(run)
            for stay in self._handle.pop(param, ()):
                stay.ready = place if stay.ready is None else stay.ready
        self._take_off_queue({param for param in own if self._fetched_for.get(param, -1) < self._step})
        if self._knobs.prefetch_bucket_size > 0:
            self._prefetch(place)
        self._step += 1

    def _take_off_queue(self, due: set[int]) -> None:
        taken: set[int] = set()
        while self._queue and len(taken) < len(due):
            param, run = self._queue.popleft()
            self._fetched_for[param] = run
            taken.add(param)

    def _prefetch(self, place: int) -> None:
        most = min(self._knobs.max_live_parameters - self._live, self._knobs.prefetch_bucket_size)
        ahead: dict[int, None] = {}
        elements = 0
        while self._queue and elements < most:
            param, run = self._queue.popleft()
            self._fetched_for[param] = max(self._fetched_for.get(param, -1), run)
            if param not in self._here and param not in ahead:
                ahead[param] = None
                elements += self._numel[param]
        self._gather(place, list(ahead), prefetch=True)

    def _gather(self, place: int, params: list[int], *, prefetch: bool) -> None:
        if not params:
            return
        self._told.gathers.append((prefetch, tuple(sorted(params))))
        self._told.places.append(place)
        handle = [Stay(param, place, len(params), prefetch) for param in params]
        self._told.stays += handle
        for stay in handle:
            self._here[stay.param], self._handle[stay.param] = stay, handle
            self._live += self._numel[stay.param]

    def _let_go(self, place: int, run: int) -> None:
        gone = []
        for param in self._trace.users[run]:
            self._active[param].discard(run)
            stay = self._here.get(param)
            if stay is None or stay.ready is None or self._active[param] or self._stays(param):
                continue
            stay.until = place
            del self._here[param]
            self._live -= self._numel[param]
            gone.append(param)
        if gone:
            self._told.releases[place] = tuple(sorted(gone))

    def _stays(self, param: int) -> bool:
        """Whether a release passes a parameter over."""
        if param in self._knobs.persistent or self._fetched_for.get(param, -1) > self._step:
            return True
        uses = self._uses[param]
        again = bisect_left(uses, self._step)
        if again == len(uses):
            return False
        return self._before[uses[again]] - self._before[self._step] < self._knobs.max_reuse_distance
