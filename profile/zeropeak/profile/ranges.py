"""Where an event shows outside the log: NVTX ranges and torch.profiler ranges, each carrying the event's id.

An NVTX range has a stable name and the id as its int64 payload. One attributes object per name is reused with only the
payload changed: names or attributes made per event grow nvtx's caches without bound.
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Protocol

from zeropeak.profile.errors import ZeropeakError
from zeropeak.profile.labels import NVTX_DOMAIN, RECORD_PREFIX

INJECTION_VARIABLE: Final = "NVTX_INJECTION64_PATH"
"""Set by ``nsys profile`` in the profiled process: how a process knows that nsys listens."""


class Ranges(Protocol):
    """One kind of range that events are shown as."""

    def handle(self, name: str, category: str) -> Any:
        """What shows events of a name: asked for once, given to the others again and again."""

    def push(self, handle: Any, event_id: int) -> object:
        """Open a range that is closed on the same thread in reverse order."""

    def pop(self, token: object) -> None:
        """Close what :meth:`push` opened."""

    def start(self, handle: Any, event_id: int) -> object:
        """Open a range that any thread may close at any time."""

    def end(self, token: object) -> None:
        """Close what :meth:`start` opened."""

    def mark(self, handle: Any, event_id: int) -> None:
        """A point in time."""


class NvtxRanges:
    """Ranges in NVTX domain ``zeropeak``.

    Raises:
        ZeropeakError: nsys is attached but the installed ``nvtx`` package would drop every range (0.2.12 and newer
            with nsys before 2025), or ``nvtx`` is missing. Without nsys attached, nothing is raised.
    """

    def __init__(self) -> None:
        attached = INJECTION_VARIABLE in os.environ
        try:
            installed = version("nvtx")
        except PackageNotFoundError:
            raise ZeropeakError("package nvtx is missing: pip install nvtx==0.2.11") from None
        nvtx = import_module("nvtx")
        self._domain: Any = nvtx.get_domain(NVTX_DOMAIN)
        self.listening = type(self._domain).__name__ != "DummyDomain"
        if attached and not self.listening:
            raise ZeropeakError(
                f"nsys is attached but nvtx {installed} records nothing with this nsys: "
                "pip install nvtx==0.2.11, or use nsys 2025 or newer"
            )
        self._lock = threading.Lock()
        if hasattr(self._domain, "push_range"):  # nvtx >= 0.2.12
            self._push = self._domain.push_range
            self._pop = self._domain.pop_range
            self._start = self._domain.start_range
            self._end = self._domain.end_range
            self._mark = self._domain.mark
        else:
            library, handle = import_module("nvtx._lib"), self._domain.handle
            self._push = lambda attributes: library.push_range(attributes, handle)
            self._pop = lambda: library.pop_range(handle)
            self._start = lambda attributes: library.start_range(attributes, handle)
            self._end = library.end_range
            self._mark = lambda attributes: library.mark(attributes, handle)

    def handle(self, name: str, category: str) -> Any:
        """See :class:`Ranges`."""
        return self._domain.get_event_attributes(name, _COLORS.get(category, "gray"), category, 0)

    def push(self, handle: Any, event_id: int) -> object:
        """See :class:`Ranges`."""
        with self._lock:  # two threads may use one attributes object
            handle.payload = event_id
            return self._push(handle)

    def pop(self, token: object) -> None:
        """See :class:`Ranges`."""
        self._pop()

    def start(self, handle: Any, event_id: int) -> object:
        """See :class:`Ranges`."""
        with self._lock:
            handle.payload = event_id
            token: object = self._start(handle)
        return token

    def end(self, token: object) -> None:
        """See :class:`Ranges`."""
        self._end(token)

    def mark(self, handle: Any, event_id: int) -> None:
        """See :class:`Ranges`."""
        with self._lock:
            handle.payload = event_id
            self._mark(handle)


_COLORS: Final = {
    "fetch": 0x0072B2,
    "prefetch": 0x56B4E9,
    "wait": 0xE69F00,
    "release": 0x009E73,
    "free": 0x1B1B1B,
    "gather": 0xCC79A7,
    "reduce": 0x7A5195,
    "all_gather": 0x0072B2,
    "step": 0x8A8A8A,
    "module": 0x999999,
    "phase": 0x666666,
}
"""As in the report's figures (``zeropeak.reports.figures.style.EVENT_COLOURS``, a test compares them)."""


class RecordFunctionRanges:
    """Ranges in a running torch.profiler trace, named ``zeropeak::<name>`` with the arg ``event_id``.

    The arg appears when the profiler runs with ``record_shapes=True``. A range that is closed on another thread than
    it was opened on would confuse the profiler; such events (modules, phases) are shown as points here.
    """

    def __init__(self) -> None:
        self._range = import_module("torch._C._profiler")._RecordFunctionFast

    def handle(self, name: str, category: str) -> str:
        """See :class:`Ranges`."""
        return RECORD_PREFIX + name

    def push(self, handle: str, event_id: int) -> object:
        """See :class:`Ranges`."""
        opened = self._range(handle, [], {"event_id": event_id})
        opened.__enter__()
        return opened

    def pop(self, token: object) -> None:
        """See :class:`Ranges`."""
        token.__exit__(None, None, None)  # type: ignore[attr-defined]

    def start(self, handle: str, event_id: int) -> object:
        """See :class:`Ranges`."""
        self.mark(handle, event_id)
        return None

    def end(self, token: object) -> None:
        """See :class:`Ranges`."""

    def mark(self, handle: str, event_id: int) -> None:
        """See :class:`Ranges`."""
        self.pop(self.push(handle, event_id))
