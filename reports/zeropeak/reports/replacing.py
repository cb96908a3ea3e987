"""A report folder written aside and put in place as a whole: the old one stays when writing fails."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zeropeak.profile.errors import ZeropeakError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Give an empty folder beside ``target``; it takes the target's place when the block ends well.

    Raises:
        ZeropeakError: no room or permission to write.
    """
    draft = Path()
    try:
        draft = Path(tempfile.mkdtemp(prefix=".report-", dir=target.parent))
        yield draft
        _swap(draft, target)
    except OSError as error:
        raise ZeropeakError(
            f"{target}: cannot be written ({error.strerror or type(error).__name__}); free some space or copy the run "
            "to where you may write. A report that was there is unchanged"
        ) from error
    finally:
        if draft.name:
            shutil.rmtree(draft, ignore_errors=True)


def _swap(draft: Path, target: Path) -> None:
    """Put the draft in the target's place: two renames, the first undone when the second fails."""
    draft.chmod(0o755)
    if not target.exists():
        draft.rename(target)
        return
    old = draft.with_name(f"{draft.name}.old")
    target.rename(old)
    try:
        draft.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
