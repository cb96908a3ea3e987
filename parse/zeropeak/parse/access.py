"""Files that may not be read: one line that names the file instead of the machine's exception."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn a lack of rights inside into a TraceError that names the file, else ``path``."""
    try:
        yield
    except PermissionError as error:
        raise TraceError(
            error.filename or path,
            f"cannot be read ({os.strerror(error.errno or 13)}); change its rights, or parse a copy",
        ) from error


def need_readable(path: Path) -> None:
    """Open a file and close it again.

    Raises:
        TraceError: no right to read it.
    """
    with reading(path), path.open("rb"):
        pass


def entries(folder: Path) -> list[str]:
    """Names in a folder, sorted; none when there is no such folder. (``glob`` is silent about one it may not read.)

    Raises:
        TraceError: no right to read it.
    """
    with reading(folder):
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
