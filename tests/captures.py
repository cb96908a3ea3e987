"""Where large captures and cases lie that are not part of the checkout: ``$ZEROPEAK_CAPTURES``, else ``../shared``.

The folder has ``captures/`` (whole runs) and ``cases/<reader>/`` (other tools' files). Tests of what is not there are
skipped; a folder that was named and is not there is an error.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

VARIABLE: Final = "ZEROPEAK_CAPTURES"


def _folder() -> Path:
    named = os.environ.get(VARIABLE)
    if named and not Path(named).is_dir():
        raise pytest.UsageError(f"{VARIABLE}={named}: no such folder")
    return Path(named) if named else Path(__file__).resolve().parents[2] / "shared"


FOLDER: Final = _folder()
CAPTURES: Final = FOLDER / "captures"

needs_captures: Final = pytest.mark.skipif(
    not CAPTURES.is_dir(), reason=f"no captures beside the checkout; {VARIABLE} names their folder"
)


def cases(reader: str, pattern: str = "*") -> list[Path]:
    """Files of one reader, in order; empty without them."""
    return sorted((FOLDER / "cases" / reader).glob(pattern))


def needs(files: Sequence[Path]) -> pytest.MarkDecorator:
    """Skip a test where these files are not."""
    return pytest.mark.skipif(
        not files or not all(path.exists() for path in files),
        reason=f"no cases beside the checkout; {VARIABLE} names their folder",
    )


def h200(case: str) -> Path:
    """The archive of one run of Pythia-6.9B on two H200: s2m0, s3m0 (the knob is false), s3m1."""
    return CAPTURES / f"pythia6.9b_2xH200_{case}.tar"


def unpack(archive: Path, folder: Path, *names: str) -> Path:
    """Some files of an archive, or all; the folder."""
    with tarfile.open(archive) as tar:
        for name in names:
            tar.extract(name, folder, filter="data")
        if not names:
            tar.extractall(folder, filter="data")
    return folder
