"""Reading the Arrow IPC streams of the event log, whole or cut in the middle of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from zeropeak.parse.access import need_readable

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.parse.sink import Sink

END_BYTES: Final = 8
"""Length of the end-of-stream marker: a stream cut inside it has lost nothing."""

_DAMAGE: Final = (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError, MemoryError)
"""What decoding flipped bytes raises."""


def read_stream(path: Path, sink: Sink) -> tuple[pa.Table | None, bool]:
    """Read every whole batch of a stream; count what cannot be read as lost.

    Args:
        path: ``raw/rank-<r>/<stream>.arrows``.
        sink: takes the counts.

    Returns:
        The rows (None when the file is missing, empty or no Arrow stream), and whether the stream is whole.
    """
    name = path.stem
    if not path.is_file():
        sink.count(f"{name}_stream_missing", 1, "lost", f"no {path.name}: the rank ended before its first flush")
        return None, False
    size = path.stat().st_size
    if size == 0:
        sink.count(f"{name}_stream_empty", 1, "lost", f"{path.name} is empty: the rank ended before its first flush")
        return None, False
    batches: list[pa.RecordBatch] = []
    whole_bytes = 0
    need_readable(path)
    with pa.OSFile(str(path)) as file:
        try:
            stream = pa.ipc.open_stream(file)
        except _DAMAGE as error:
            why = " ".join(str(error).split())[:200]
            sink.count(f"{name}_stream_unreadable", 1, "error", f"{path.name} is no Arrow stream: {why}")
            return None, False
        whole_bytes = file.tell()
        try:
            for batch in stream:
                batch.validate(full=True)
                batches.append(batch)
                whole_bytes = file.tell()
        except _DAMAGE:
            if size - whole_bytes > END_BYTES:
                sink.count(
                    f"{name}_bytes_lost", size - whole_bytes, "lost", f"{path.name} stops in the middle of a batch"
                )
            return pa.Table.from_batches(batches, stream.schema), False
    return pa.Table.from_batches(batches, stream.schema), True
