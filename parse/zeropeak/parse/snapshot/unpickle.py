"""Loads the pickle of a memory snapshot without ever running anything that is in it.

Everything but plain data (dict, list, tuple, str, int, float, bool, None) is refused by name. A file cannot make the
reader use more memory than it may: the pickle's own size is limited, and so is the address space while it loads,
because a few bytes of pickle can ask for gigabytes (a memo index of four billion, a declared length, a flood of dicts).
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from zeropeak.parse.snapshot.machine import GaveUp, Machine, unframed
from zeropeak.parse.snapshot.unpack import opened
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_PICKLE_BYTES: Final = 8 << 30
"""Largest pickle that is read, unpacked. Dumps of 1.8 GB occur; torch's own page fails at 1 GB."""

AVAILABLE_SHARE: Final = 0.8
"""Share of the machine's available memory that loading may take. A snapshot takes about 5 bytes for one of pickle."""

CUT: Final = "stops before its end; copy or record it again"
HOW_TO_WRITE: Final = "write one with torch.cuda.memory._dump_snapshot(path)"

_ADDRESS_SPACE = threading.Lock()


class Refused(pickle.UnpicklingError):
    """The pickle asks for something that is not plain data."""


class PlainUnpickler(pickle.Unpickler):
    """Unpickles plain data; anything that names code raises :class:`Refused`."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        """Refuse every class and function; the file never gets as far as an import."""
        raise Refused(f"it asks for {module}.{name}, and no class is ever loaded; {HOW_TO_WRITE}")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        """Refuse references to objects outside the file (tensors saved by torch.save)."""
        raise Refused(f"it refers to an object outside the file ({str(pid)[:60]!r}); {HOW_TO_WRITE}")


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """Run without the cyclic garbage collector, which walks a million fresh dicts again and again for nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def available_bytes() -> int | None:
    """Memory that the machine could give to a process now; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return int(next(found, "0")) * 1024 or None


@contextlib.contextmanager
def address_space(extra_bytes: int | None) -> Iterator[None]:
    """Let the process grow by ``extra_bytes`` at most: an allocation past that raises MemoryError.

    The limit is the process's, so one thread at a time holds it. Without /proc there is no limit.
    """
    statm = Path("/proc/self/statm")
    if extra_bytes is None or not statm.exists():
        yield
        return
    import resource  # Where there is no /proc, there may be no such module either.

    with _ADDRESS_SPACE:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        size = int(statm.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") + extra_bytes
        bounds = [bound for bound in (size, soft, hard) if bound != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def load(path: Path, *, max_bytes: int = MAX_PICKLE_BYTES, memory_bytes: int | None = None) -> dict[str, Any]:
    """Load a snapshot: a dict with a list ``device_traces``, a list ``segments``, or both.

    Keep the garbage collector off (:func:`collector_off`) while the result is alive.

    Args:
        path: a pickle, plain or gzip, whatever its name.
        max_bytes: largest pickle, unpacked.
        memory_bytes: memory that loading may take; by default 80 % of what is available now.

    Returns:
        The snapshot as torch wrote it; traces are :class:`~zeropeak.parse.snapshot.machine.Trace` objects where they
        were decoded in runs, else lists of dicts.

    Raises:
        TraceError: not a pickle, cut, over a limit, asks for a class, or holds something else than a snapshot.
    """
    if memory_bytes is None and (available := available_bytes()) is not None:
        memory_bytes = int(available * AVAILABLE_SHARE)
    try:
        with address_space(memory_bytes):
            found = _scan(path, max_bytes)
            if found is None:
                found = _unpickle(path, max_bytes)
    except Refused as error:
        raise TraceError(path, f"not a memory snapshot: {error}") from error
    except MemoryError as error:
        raise TraceError(
            path,
            f"loading it takes more than the {memory_bytes} bytes of memory it may take; use a machine with more "
            "memory, or record less with torch.cuda.memory._record_memory_history(max_entries=...)",
        ) from error
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error.strerror or error}") from error
    return _require_snapshot(path, found)


def _scan(path: Path, max_bytes: int) -> Any:
    """The fast way, for files as torch's own function writes them; None when this is not one."""
    with path.open("rb") as file:
        reader, expected_bytes = opened(file, path, max_bytes)
        _require_pickle(path, reader.peek(4)[:4])
        data = unframed(reader, expected_bytes)
    try:
        return None if data is None else Machine(data).load()
    except GaveUp:
        return None


def _unpickle(path: Path, max_bytes: int) -> Any:
    """The way for any pickle of plain data."""
    with path.open("rb") as file:
        reader, _ = opened(file, path, max_bytes)
        try:
            return PlainUnpickler(reader).load()
        except Refused:
            raise
        except EOFError as error:
            raise TraceError(path, f"the pickle {CUT}") from error
        except (
            pickle.UnpicklingError,
            AttributeError,
            IndexError,
            KeyError,
            OverflowError,
            TypeError,
            ValueError,
        ) as error:
            # What the unpickler raises for bytes that are no pickle, as its documentation lists them.
            if "truncated" in str(error):
                raise TraceError(path, f"the pickle {CUT}") from error
            raise TraceError(path, f"not a readable pickle ({error}); {HOW_TO_WRITE}") from error


def _require_pickle(path: Path, head: bytes) -> None:
    if not head:
        raise TraceError(path, f"the file is empty; {HOW_TO_WRITE}")
    if head[:2] == b"PK":
        raise TraceError(path, f"a zip archive (torch.save writes those), not a memory snapshot; {HOW_TO_WRITE}")
    if len(head) < 2 or head[0] != 0x80 or not 2 <= head[1] <= pickle.HIGHEST_PROTOCOL:
        raise TraceError(path, f"not a pickle; {HOW_TO_WRITE}")


def _require_snapshot(path: Path, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TraceError(path, f"a pickle of a {type(found).__name__}, not a memory snapshot; {HOW_TO_WRITE}")
    parts = [found[key] for key in ("device_traces", "segments") if key in found]
    if not parts or not all(isinstance(part, list) for part in parts):
        keys = ", ".join(str(key)[:40] for key in list(found)[:4]) or "no keys"
        raise TraceError(path, f"a pickle of a dict with {keys}, not a memory snapshot; {HOW_TO_WRITE}")
    return found
