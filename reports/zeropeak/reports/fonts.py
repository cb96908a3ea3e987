"""How wide text is, and how it is made to fit: wrapped at words, or shortened in the middle.

Widths are in points, from the font that matplotlib ships, so a page looks the same on every machine.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import matplotlib
from matplotlib.font_manager import get_font

from zeropeak.reports.names import middle

if TYPE_CHECKING:
    from matplotlib.ft2font import FT2Font

FAMILY: Final = "DejaVu Sans"
_FILES: Final = {False: "DejaVuSans.ttf", True: "DejaVuSans-Bold.ttf"}
_UNITS: Final = 1000.0
_REPLACEMENT: Final = "\N{WHITE SQUARE}"


def width(text: str, size: float, bold: bool = False) -> float:
    """Width of one line in points."""
    return sum(_advance(character, bold) for character in text) * size / _UNITS


def fit(text: str, width_pt: float, size: float, bold: bool = False) -> str:
    """The text, or as much of both its ends as fits in ``width_pt``."""
    text = printable(text)
    if width(text, size, bold) <= width_pt:
        return text
    low, high = 1, len(text)
    while low < high:
        length = (low + high + 1) // 2
        low, high = (length, high) if width(middle(text, length), size, bold) <= width_pt else (low, length - 1)
    return middle(text, low)


def wrap(text: str, width_pt: float, size: float, bold: bool = False) -> list[str]:
    """Lines that fit in ``width_pt``, broken at spaces; a word that is wider than a line is shortened."""
    lines: list[str] = []
    line = ""
    for word in printable(text).split():
        word = fit(word, width_pt, size, bold)
        longer = f"{line} {word}" if line else word
        if line and width(longer, size, bold) > width_pt:
            lines.append(line)
            line = word
        else:
            line = longer
    return [*lines, line] if line else lines


def printable(text: str) -> str:
    """The text with everything that the font cannot draw replaced by a square; line breaks become spaces."""
    spaced = " ".join(text.split())
    return "".join(character if _known(character) else _REPLACEMENT for character in spaced)


@lru_cache(maxsize=2)
def _font(bold: bool) -> FT2Font:
    return get_font(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / _FILES[bold])


@lru_cache(maxsize=4096)
def _known(character: str) -> bool:
    return character == " " or (character.isprintable() and _font(False).get_char_index(ord(character)) != 0)


@lru_cache(maxsize=4096)
def _advance(character: str, bold: bool) -> float:
    font = _font(bold)
    font.set_size(_UNITS, 72)
    return float(font.load_char(ord(character)).linearHoriAdvance) / 65536
