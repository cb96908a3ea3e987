"""Which part of a trace file to read, and what the file may be at most."""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_BYTES: Final = 1 << 40
"""Default limit on the decompressed size: the largest traces that users report are 0.2 TB."""

MAX_RATIO: Final = 400
"""Default limit on decompressed / compressed size: traces reach 13 (gzip) to 25 (xz), a bomb 1,000 and more."""


class Limits(NamedTuple):
    """What a file may be."""

    max_bytes: int = MAX_BYTES
    """Decompressed size."""
    max_ratio: int = MAX_RATIO
    """Decompressed size / compressed size."""


class Part(NamedTuple):
    """Offsets in the text: the events after the first boundary behind ``begin`` up to the first behind ``stop``."""

    begin: int = 0
    stop: int | None = None


DEFAULTS: Final = Limits()
WHOLE: Final = Part()
