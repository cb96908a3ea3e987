"""The bytes of a snapshot file, unpacked and limited."""

from __future__ import annotations

import io
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from pathlib import Path

GZIP_MAGIC: Final = b"\x1f\x8b"

CHUNK_BYTES: Final = 1 << 16
"""Small on purpose: the unpickler peeks at 128 KiB and copies all that is buffered each time."""

GZIP_RATIO: Final = 16
"""About how much smaller gzip makes a snapshot; the captures at hand shrink to a 15th."""


class Unpacked(io.RawIOBase):
    """The bytes of a plain or gzip file, up to a limit.

    Several gzip members are read as one; bytes after the last one that are not gzip are no part of the pickle.
    """

    def __init__(self, file: BinaryIO, path: Path, max_bytes: int) -> None:
        super().__init__()
        self._file = file
        self._path = path
        self._left = max_bytes
        self._max_bytes = max_bytes
        self._input = file.read(CHUNK_BYTES)
        self.packed = self._input[:2] == GZIP_MAGIC
        self._decoder = zlib.decompressobj(wbits=31) if self.packed else None

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill ``buffer``; returns 0 at the end. Raises TraceError past the limit and for damaged gzip data."""
        view = memoryview(buffer).cast("B")
        data = self._inflate(len(view)) if self.packed else self._plain(len(view))
        count = len(data)
        view[:count] = data
        self._left -= count
        if self._left < 0:
            raise TraceError(
                self._path,
                f"holds more than {self._max_bytes} bytes of pickle; record less with "
                "torch.cuda.memory._record_memory_history(max_entries=...)",
            )
        return count

    def _plain(self, limit: int) -> bytes:
        data = self._input[:limit] or self._file.read(limit)
        self._input = self._input[limit:]
        return data

    def _inflate(self, limit: int) -> bytes:
        while True:
            decoder = self._decoder
            assert decoder is not None
            if decoder.eof:
                rest = decoder.unused_data or self._file.read(CHUNK_BYTES)
                if rest[:2] != GZIP_MAGIC:
                    return b""
                decoder = self._decoder = zlib.decompressobj(wbits=31)
                self._input = rest
            if not self._input:
                self._input = self._file.read(CHUNK_BYTES)
                if not self._input:
                    raise TraceError(self._path, "the gzip data stops before its end; copy or record it again")
            try:
                data = decoder.decompress(self._input, limit)
            except zlib.error as error:
                raise TraceError(self._path, f"the gzip data is damaged ({error}); copy or record it again") from error
            self._input = decoder.unconsumed_tail
            if data:
                return data


def opened(file: BinaryIO, path: Path, max_bytes: int) -> tuple[io.BufferedReader, int]:
    """The unpacked bytes of an open file, and about how many there are.

    Raises:
        TraceError: when reading, past ``max_bytes`` and for damaged gzip data.
    """
    unpacked = Unpacked(file, path, max_bytes)
    size = path.stat().st_size
    return io.BufferedReader(unpacked, CHUNK_BYTES), min(size * GZIP_RATIO if unpacked.packed else size, max_bytes)
