"""A paragraph of page 1."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paragraph:
    """A label in the margin and its text; ``strong`` ones are also what a terminal shows."""

    label: str
    text: str
    strong: bool = False
