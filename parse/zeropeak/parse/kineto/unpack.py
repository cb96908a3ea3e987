"""Bytes of a trace file: decompressed as a stream, bounded, and as far as they go when the file is cut or damaged."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol

from isal import isal_zlib

from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import FileIO
    from pathlib import Path

    from zeropeak.parse.kineto.part import Limits

INPUT_BYTES: Final = 16 << 10
"""Compressed bytes taken from the file at a time."""

OUTPUT_BYTES: Final = 128 << 10
"""Decompressed bytes taken from a stream at a time: at most so many before a damage are lost with it."""

ZSTD_BYTES: Final = 4 << 10
"""The same for zstd, where trailing garbage too costs what the failing read had."""

RATIO_FROM: Final = 64 << 20
"""Decompressed size up to which the ratio does not matter."""


class _Decompressor(Protocol):
    """What isal's and lzma's decompressors have in common."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


class Blocks:
    """Decompressed bytes of one file, in order.

    A compressed stream that ends early or turns into garbage gives what it can; ``problem`` then says what is wrong.

    Args:
        path: file; gzip, xz and zstd are told by content, anything else is taken as it is.
        limits: on its size.
        progress: called with (bytes read of the file, bytes of the file) after each read.
    """

    def __init__(self, path: Path | str, limits: Limits, progress: Callable[[int, int], None] | None = None) -> None:
        self.problem: str | None = None
        """What ended a compressed stream early, after the end: a clause for a person."""
        self.trailing = 0
        """Bytes after the end of the compressed stream that belong to no stream."""
        self._path, self._limits, self._progress = path, limits, progress
        self._file: FileIO = open(path, "rb", buffering=0)  # noqa: PTH123, SIM115  (closed in close)
        self._size = os.fstat(self._file.fileno()).st_size
        self._out = 0
        self._plain = False
        self._read_block = self._opened()

    def readinto(self, view: memoryview) -> int:
        """Fill the front of ``view``; the number of bytes, 0 at the end.

        Raises:
            TraceError: the decompressed size passes a limit.
        """
        count = self._read_block(view)
        self._out += count
        if self._out > self._limits.max_bytes:
            raise TraceError(
                self._path,
                f"more than {self._limits.max_bytes:,} bytes decompressed; pass a larger max_bytes if that is right",
            )
        taken = self._file.tell()
        if self._out > RATIO_FROM and self._out > self._limits.max_ratio * taken:
            raise TraceError(
                self._path,
                f"expands to more than {self._limits.max_ratio} times its size, as no trace "
                "does; pass a larger max_ratio if that is right",
            )
        if self._progress:
            self._progress(taken, self._size)
        return count

    def skip(self, count: int) -> int:
        """Pass over ``count`` bytes; how many there were."""
        if self._plain:
            return self._file.seek(min(count, self._size))
        scratch, left = memoryview(bytearray(OUTPUT_BYTES)), count
        while left and (got := self.readinto(scratch[: min(left, OUTPUT_BYTES)])):
            left -= got
        return count - left

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _opened(self) -> Callable[[memoryview], int]:
        magic = self._file.read(6)
        self._file.seek(0)
        if magic.startswith(b"\x1f\x8b"):
            error: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # its stub says an instance
            return _Streams(self, lambda: isal_zlib.decompressobj(31), magic[:2], error).readinto
        if magic.startswith(b"\xfd7zXZ\0"):
            import lzma  # here and not above: few traces need it, and starting up is a part of the time to beat

            return _Streams(self, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), magic, lzma.LZMAError).readinto
        if magic.startswith(b"\x28\xb5\x2f\xfd"):
            return self._zstd()
        self._plain = True
        return self._file.readinto

    def _zstd(self) -> Callable[[memoryview], int]:
        import pyarrow as pa  # here and not above, for the same reason

        stream = pa.CompressedInputStream(self._file, "zstd")

        def readinto(view: memoryview) -> int:
            if self.problem:
                return 0
            try:
                return int(stream.readinto(view[:ZSTD_BYTES]))
            except OSError as error:
                self.problem = f"zstd stream damaged or cut ({error})"
                return 0

        return readinto


class _Streams:
    """One or more gzip or xz streams after each other."""

    def __init__(
        self, blocks: Blocks, start: Callable[[], _Decompressor], magic: bytes, error: type[Exception]
    ) -> None:
        self._blocks, self._start, self._magic, self._error = blocks, start, magic, error
        self._stream = start()
        self._waiting = b""
        self._done = False

    def readinto(self, view: memoryview) -> int:
        while not self._done:
            data = self._waiting or self._blocks._file.read(INPUT_BYTES) or b""
            try:
                got = self._stream.decompress(data, min(len(view), OUTPUT_BYTES))
            except self._error as error:
                self._end(f"compressed stream damaged ({error})")
                break
            self._waiting = getattr(self._stream, "unconsumed_tail", b"")  # lzma keeps such input to itself
            if self._stream.eof:
                self._next()
            elif not data and not got:
                self._end("compressed stream cut before its end")
            if got:
                view[: len(got)] = got
                return len(got)
        return 0

    def _end(self, problem: str) -> None:
        self._done = True
        self._blocks.problem = problem

    def _next(self) -> None:
        rest = self._stream.unused_data
        if len(rest) < len(self._magic):
            rest += self._blocks._file.read(INPUT_BYTES) or b""
        if rest.startswith(self._magic):
            self._stream, self._waiting = self._start(), rest
            return
        self._done = True
        self._blocks.trailing = len(rest) + self._blocks._size - self._blocks._file.tell()
