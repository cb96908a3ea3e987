"""The version, in one place, which pyproject.toml reads from here; and those of what is installed beside it."""

from __future__ import annotations

import sys
from typing import Final

__version__ = "0.1.0"

PACKAGES: Final = ("torch", "deepspeed", "transformers", "peft", "nvtx")
"""Packages whose versions decide what a run does with memory."""


def installed(*packages: str) -> dict[str, str | None]:
    """Versions of zeropeak, Python and packages; None for one that is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # the command's --help does without

    found: dict[str, str | None] = {
        "zeropeak": __version__,
        "python": ".".join(str(part) for part in sys.version_info[:3]),
    }
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
