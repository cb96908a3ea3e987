"""All readers in one place, and which of them a file is for, by its content."""

from __future__ import annotations

import gzip
import lzma
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.parse.sink import Sink, Source


class Reader(Protocol):
    """A reader's one function."""

    def __call__(self, path: Path, sink: Sink, **options: Any) -> Source:
        """Read a file's rows into a sink."""


HEAD_BYTES: Final = 4096

PEEK_BYTES: Final = 1 << 18
"""torch writes ``distributedInfo`` before the events, within the first few kilobytes."""

_PHASE: Final = re.compile(rb'"ph"\s*:\s*"')
_RANK: Final = re.compile(rb'"distributedInfo"\s*:\s*\{[^}]*?"rank"\s*:\s*(\d{1,9})\b')
_SQLITE: Final = b"SQLite format 3\x00"
_MAGIC: Final = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


def sniff(path: Path) -> str:
    """Which reader a file is for: kineto, nsys or snapshot.

    Raises:
        TraceError: it is none of them, or empty.
    """
    head = _head(path)
    if not head:
        raise TraceError(path, "the file is empty: the tool that wrote it failed; capture or export it again")
    if head.startswith(_SQLITE) or path.suffix == ".nsys-rep":
        return "nsys"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] in (b"{", b"["):
        return "kineto"
    if head[:1] == b"\x80" and len(head) > 1 and head[1] <= 5:
        return "snapshot"
    raise TraceError(
        path, "neither a torch.profiler trace (JSON), an nsys export (sqlite) nor a torch.cuda.memory snapshot (pickle)"
    )


READERS: Final = {
    "kineto": "zeropeak.parse.kineto.reader",
    "nsys": "zeropeak.parse.nsys",
    "snapshot": "zeropeak.parse.snapshot.reader",
    "simulated": "zeropeak.parse.simulated",
}
"""Module of each reader; its function ``read`` is the reader. A new one goes here, into :func:`sniff`, nowhere else.
``simulated`` is only read in a run directory, beside the event log whose clock it shares: nothing sniffs it."""


def is_timeline(path: Path) -> bool:
    """Whether a JSON file has events of a chrome trace near its begin; for files that nobody named."""
    head = _head(path, PEEK_BYTES)
    return b'"traceEvents"' in head or _PHASE.search(head) is not None


def reader(kind: str) -> Reader:
    """The reader of a kind; imported on first use, since each brings its own decoder."""
    read: Reader = import_module(READERS[kind]).read
    return read


def peek_rank(path: Path, kind: str) -> int | None:
    """Rank that a file says it is of, near its begin; None when it does not say so there."""
    if kind != "kineto":
        return None
    match = _RANK.search(_head(path, PEEK_BYTES))
    return int(match[1]) if match else None


def _head(path: Path, size: int = HEAD_BYTES) -> bytes:
    """First bytes of a file, decompressed; what there is when the stream is damaged."""
    with path.open("rb") as file:
        raw = file.read(size)
    packing = next((name for magic, name in _MAGIC.items() if raw.startswith(magic)), None)
    if packing == "zstd":
        import zstandard

        with path.open("rb") as file:
            return bytes(zstandard.ZstdDecompressor().stream_reader(file).read(size))
    if packing is None:
        return raw
    opener = gzip.open if packing == "gzip" else lzma.open
    try:
        with opener(path, "rb") as file:
            return bytes(file.read(size))
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise TraceError(path, f"damaged {packing} file ({error}); copy it again") from error
