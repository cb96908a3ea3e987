"""Rows of an sqlite query as plain columns, in this process or from another that reads ahead.

Making Python objects of the cells is most of the work of reading an export, so for a large table a light process (no
numpy, no pyarrow) does that, and hands over columns while this one makes tables of those before. The pipe between them
holds less than one batch: memory stays the same at any size.
"""

from __future__ import annotations

import gc
import pickle
import sqlite3
import subprocess
import sys
from array import array
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

BATCH_ROWS: Final = 65_536

FETCH_ROWS: Final = 4096
"""Rows that are Python objects at a time: so few stay in the processor's cache, which halves the time."""


class Column(NamedTuple):
    """Values of one column.

    Attributes:
        length: how many.
        numbers: int64, 0 for null; of texts their lengths. None where the values are all null, or not all of one kind.
        text: the texts one after the other; None for numbers.
        valid: a byte for each value, 1 where it is not null; None when all are, or none is.
        odd: the values as they are, where they are neither all numbers nor all texts.
    """

    length: int
    numbers: bytes | None = None
    text: bytes | None = None
    valid: bytes | None = None
    odd: list[object] | None = None


def open_read_only(path: Path | str) -> sqlite3.Connection:
    """A connection that gives texts as bytes, since sqlite checks nothing."""
    from pathlib import Path

    db = sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    db.text_factory = bytes
    return db


def fetch(db: sqlite3.Connection, query: str) -> Iterator[list[list[Column]]]:
    """Batches of rows: for each column of the query its pieces.

    Raises:
        sqlite3.Error: as sqlite does.
    """
    cursor = db.execute(query)
    cursor.arraysize = FETCH_ROWS
    pieces: list[list[Column]] = [[] for _ in cursor.description]
    count = 0
    while rows := cursor.fetchmany():
        for column, values in zip(pieces, zip(*rows, strict=True), strict=True):
            column.append(pack(values))
        count += len(rows)
        if count >= BATCH_ROWS:
            yield pieces
            pieces, count = [[] for _ in pieces], 0
    if count:
        yield pieces


def pack(values: Sequence[Any]) -> Column:
    """Values of one column, as sqlite gives them."""
    count = len(values)
    try:
        return Column(count, array("q", values).tobytes())
    except (TypeError, OverflowError):
        pass
    nulls = values.count(None)
    if nulls == count:
        return Column(count)
    valid = bytes([value is not None for value in values]) if nulls else None
    kinds = set(map(type, values))
    try:
        if kinds <= {int, type(None)}:
            return Column(count, array("q", [value or 0 for value in values]).tobytes(), None, valid)
    except OverflowError:
        pass
    if kinds <= {bytes, type(None)}:
        texts = [value or b"" for value in values]
        return Column(count, array("q", map(len, texts)).tobytes(), b"".join(texts), valid)
    return Column(count, odd=list(values))


def fetch_ahead(path: Path, query: str) -> Iterator[list[list[Column]]]:
    """As :func:`fetch`, by another process that is one batch ahead.

    Raises:
        sqlite3.Error: what sqlite said there, or that the process ended before it was done.
    """
    call = f"import sys; sys.path[:] = {sys.path!r}; from zeropeak.parse.nsys_rows import main; main({str(path)!r})"
    command = [sys.executable, "-S", "-c", call]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(query.encode())
            process.stdin.close()
            while True:
                try:
                    found = pickle.load(process.stdout)
                except EOFError:
                    raise sqlite3.OperationalError(
                        f"the process that read it ended with status {process.wait()}"
                    ) from None
                if found is None:
                    return
                if isinstance(found, str):
                    raise sqlite3.DatabaseError(found)
                yield found
        finally:
            process.kill()


def main(path: str) -> None:
    """The other process: takes a query from stdin; gives batches, then None, or sqlite's words on an error."""
    gc.disable()  # tuples by the million, and no cycles
    query, out = sys.stdin.read(), sys.stdout.buffer

    def send(value: object) -> None:
        pickle.dump(value, out, pickle.HIGHEST_PROTOCOL)

    try:
        db = open_read_only(path)
        for batch in fetch(db, query):
            send(batch)
    except sqlite3.Error as error:
        send(str(error))
    else:
        send(None)
    out.flush()
