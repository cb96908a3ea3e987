"""Registered storages: what a block of memory holds, from when, and when it really ended.

A storage's end is seen by a weak reference's callback on PyTorch's storage object, which PyTorch keeps alive as long
as the memory is (views and autograd included), so the time of death is exact and nothing is polled.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from zeropeak.profile.packed import BEGIN, END, NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeropeak.profile.eventlog import EventLog
    from zeropeak.profile.labels import Stored


class Alive(NamedTuple):
    """A registered storage that has not ended."""

    storage_id: int
    size_bytes: int
    address: int
    param_id: int | None
    reference: weakref.ref[Any]


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
        self._log = log
        self._clock = clock
        self._add = log.adder("storages")
        self.address = address or _data_pointer
        self._device_type = device.split(":")[0] if device else None
        self._ids = itertools.count(1)
        self._alive: dict[int, Alive] = {}  # by the storage's C++ address, which is unique while it lives
        self._released: dict[int, Released] = {}  # by storage id
        # Callbacks run wherever Python drops the last reference, also in the middle of a log write: they only append.
        self._ended: deque[tuple[int, int, int]] = deque()

    def register(
        self, tensor: Any, category: Stored, owner: str | None, param_id: int | None = None, event_id: int | None = None
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
        if self._ended:
            self.drain()
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._alive.get(key)
        if known is not None:
            return known
        size = storage.nbytes()
        if not size or self._device_type not in {None, tensor.device.type}:
            return None
        number = next(self._ids)
        ended = self._ended
        clock = self._clock
        reference = weakref.ref(storage, lambda _: ended.append((key, number, clock())))
        entry = self._alive[key] = Alive(number, size, self.address(storage), param_id, reference)
        texts = self._log.texts
        self._add(
            (
                number,
                BEGIN,
                clock(),
                entry.address,
                size,
                texts.of(category.value),
                NONE if owner is None else texts.of(owner),
                NONE if param_id is None else param_id,
                NONE if event_id is None else event_id,
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
        self.drain()
        number = next(self._ids)
        texts = self._log.texts
        row = (number, BEGIN, self._clock(), address, size, texts.of(category.value), texts.of(owner), NONE, NONE)
        self._add(row)
        return number

    def by_key(self) -> dict[int, Alive]:
        """Registered storages that have not ended, by their C++ address."""
        self.drain()
        return dict(self._alive)

    def release(self, storage: Alive, param_id: int, event_id: int) -> None:
        """Note that a parameter let go of a storage; it is :meth:`released_alive` until it ends."""
        self._released[storage.storage_id] = Released(storage, param_id, event_id)
        self.drain()

    def released_alive(self) -> list[Released]:
        """Storages that were released and have not ended, oldest release first."""
        self.drain()
        return list(self._released.values())

    def drain(self) -> None:
        """Log the ends that callbacks have seen since the last call."""
        while self._ended:
            key, number, ts_ns = self._ended.popleft()
            entry = self._alive.get(key)
            if entry is not None and entry.storage_id == number:
                del self._alive[key]
            self._released.pop(number, None)
            self._add((number, END, ts_ns, NONE, NONE, NONE, NONE, NONE, NONE))

    def close(self) -> None:
        """Drop every reference, so that no callback runs afterwards."""
        self.drain()
        self._alive.clear()
        self._released.clear()


def _data_pointer(storage: Any) -> int:
    address: int = storage.data_ptr()
    return address
