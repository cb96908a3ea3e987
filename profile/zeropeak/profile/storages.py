"""Registered storages: what a block of memory holds, from when, and when it really ended.

A storage's end is seen by a weak reference's callback on PyTorch's storage object, which PyTorch keeps alive as long
as the memory is (views and autograd included), so the time of death is exact and nothing is polled.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from zeropeak.profile.packed import BEGIN, END, NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeropeak.profile.eventlog import EventLog
    from zeropeak.profile.labels import Stored


class Alive(weakref.ref[Any]):
    """A registered storage that had not ended when it was last asked for: a weak reference that knows what it is to.

    Attributes:
        key: the storage's C++ address, which is unique while it lives.
        storage_id: number of the registration.
        size_bytes: of the storage.
        address: of its memory.
        param_id: parameter it holds, if one.
    """

    __slots__ = ("address", "key", "param_id", "size_bytes", "storage_id")

    key: int
    storage_id: int
    size_bytes: int
    address: int
    param_id: int | None


class Released(NamedTuple):
    """A full parameter's storage that its parameter let go of."""

    storage: Alive
    param_id: int
    event_id: int


class Storages:
    """Registry of one rank.

    Args:
        log: receives rows of the ``storages`` stream.
        clock: monotonic nanoseconds.
        address: gives a storage's address; a prediction's storages have none of their own.
        device: the rank's device (``cpu``, ``cuda:0``); what lies elsewhere, such as offloaded states, is left out:
            its bytes are none of the device's. None takes any.
    """

    def __init__(
        self,
        log: EventLog,
        clock: Callable[[], int],
        address: Callable[[Any], int] | None = None,
        device: str | None = None,
    ) -> None:
        self._texts = log.texts
        self._clock = clock
        self._add = log.adder("storages")
        self.address = address or _data_pointer
        self._is_here = _on(device.split(":")[0] if device else None)
        self._next = itertools.count(1).__next__
        self._alive: dict[int, Alive] = {}  # by key
        self._released: dict[int, Released] = {}  # by storage id
        # Callbacks run wherever Python drops the last reference, also in the middle of a log write: they only append.
        self._ended: deque[tuple[Alive, int]] = deque()
        ended = self._ended.append
        self._goes: Callable[[Alive], None] = lambda alive: ended((alive, clock()))
        log.before_flush(self.drain)

    def register(
        self, tensor: Any, category: Stored, owner: str | None, param_id: int | None = None, event_id: int = NONE
    ) -> Alive | None:
        """Register the storage under ``tensor``, once while it lives.

        Args:
            tensor: any tensor; one without memory, or on another device, is ignored.
            category: what it holds.
            owner: name for people.
            param_id: parameter it holds, if one.
            event_id: event that was open.

        Returns:
            The storage, or None for a tensor that was ignored.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._alive.get(key)
        # A storage that ended may have left its key to another before `drain` hears of it.
        if known is not None and known() is storage:
            return known
        size = storage.nbytes()
        if not size or not self._is_here(tensor):
            return None
        entry = self._alive[key] = Alive(storage, self._goes)
        entry.key, entry.storage_id, entry.size_bytes, entry.param_id = key, self._next(), size, param_id
        entry.address = self.address(storage)
        text = self._texts.of
        self._add(
            (
                entry.storage_id,
                BEGIN,
                self._clock(),
                entry.address,
                size,
                text(category._value_),
                NONE if owner is None else text(owner),
                NONE if param_id is None else param_id,
                event_id,
            ),
        )
        return entry

    def note(self, address: int, size: int, category: Stored, owner: str) -> int:
        """Note memory that no tensor stands for (a library's workspace); its end is not followed.

        Args:
            address: where it is.
            size: bytes.
            category: what it holds.
            owner: name for people.

        Returns:
            Its id.
        """
        number, text = self._next(), self._texts.of
        self._add((number, BEGIN, self._clock(), address, size, text(category.value), text(owner), NONE, NONE))
        return number

    def by_key(self) -> dict[int, Alive]:
        """Registered storages that have not ended, by their C++ address."""
        self.drain()
        return dict(self._alive)

    def release(self, storage: Alive, param_id: int, event_id: int) -> None:
        """Note that a parameter let go of a storage; it is :meth:`released_alive` until it ends."""
        self._released[storage.storage_id] = Released(storage, param_id, event_id)

    def released_alive(self) -> list[Released]:
        """Storages that were released and have not ended, oldest release first."""
        self.drain()
        return list(self._released.values())

    def drain(self) -> None:
        """Log the ends that callbacks have seen since the last call; each flush of the log does."""
        while self._ended:
            entry, ts_ns = self._ended.popleft()
            if self._alive.get(entry.key) is entry:
                del self._alive[entry.key]
            self._released.pop(entry.storage_id, None)
            self._add((entry.storage_id, END, ts_ns, NONE, NONE, NONE, NONE, NONE, NONE))

    def close(self) -> None:
        """Drop every reference, so that no callback runs afterwards."""
        self.drain()
        self._alive.clear()
        self._released.clear()


def _on(device_type: str | None) -> Callable[[Any], bool]:
    """Whether a tensor is on a type of device; PyTorch's own flags where it has them, ten times as fast."""
    if device_type is None:
        return lambda tensor: True
    if device_type in {"cpu", "cuda"}:
        return attrgetter(f"is_{device_type}")
    return lambda tensor: bool(tensor.device.type == device_type)


def _data_pointer(storage: Any) -> int:
    address: int = storage.data_ptr()
    return address
