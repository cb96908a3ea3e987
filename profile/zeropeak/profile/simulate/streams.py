"""Streams and events of the simulated device: numbers, so that each allocation knows the stream it was made on."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from zeropeak.profile.simulate.ledger import Ledger


class Streams:
    """The current stream of the process, and the classes that DeepSpeed asks an accelerator for.

    Args:
        ledger: told which stream is current.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._numbers = itertools.count(1)
        self.default = SimulatedStream(0)
        self.current = self.default

    def make(self, *_: object, **__: object) -> SimulatedStream:
        """A new stream."""
        return SimulatedStream(next(self._numbers))

    def use(self, stream: SimulatedStream | None) -> Use:
        """Context in which ``stream`` is current."""
        return Use(self, stream or self.current)

    def set(self, stream: SimulatedStream) -> None:
        """Make a stream the current one."""
        self.current = stream
        self._ledger.stream = stream.stream_id


class SimulatedStream:
    """A stream that runs nothing."""

    def __init__(self, number: int) -> None:
        self.stream_id = number
        self.cuda_stream = number

    def wait_stream(self, stream: object) -> None:
        """Everything has happened already."""

    def wait_event(self, event: object) -> None:
        """Everything has happened already."""

    def record_event(self, event: SimulatedEvent | None = None) -> SimulatedEvent:
        """An event that is over."""
        return event or SimulatedEvent()

    def synchronize(self) -> None:
        """Everything has happened already."""

    def query(self) -> bool:
        """Everything has happened already."""
        return True


class SimulatedEvent:
    """An event that is over as soon as it is recorded."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def record(self, stream: object = None) -> None:
        """Nothing to do."""

    def wait(self, stream: object = None) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """It is over."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, other: object) -> float:
        """Nothing takes time."""
        return 0.0


class Use:
    """Context in which a stream is current."""

    def __init__(self, streams: Streams, stream: SimulatedStream) -> None:
        self._streams = streams
        self._stream = stream
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = self._streams.current
        self._streams.set(self._stream)
        return self

    def __exit__(self, *_: object) -> None:
        self._streams.set(self._before)
