"""Write a comparison's report folder: comparison.pdf, a PNG for each figure, comparison.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from zeropeak.profile.privacy import scrubbed
from zeropeak.reports.replacing import replacing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zeropeak.reports.compare.comparison import Comparison

FILE: Final = "comparison.json"


@dataclass(frozen=True)
class Written:
    """What was written, and what is said of it in a terminal.

    Attributes:
        paths: comparison.pdf first, then the PNGs and comparison.json.
        lines: table, limits, verdicts, differences.
    """

    paths: Sequence[Path]
    lines: Sequence[str]


def write_comparison(comparison: Comparison, folder: Path) -> Written:
    """Write ``folder/report`` in place of the one that is there; the old one stays when this fails.

    Raises:
        ZeropeakError: no room or permission to write.
    """
    # Here, so that whoever only opens tables does not wait for matplotlib.
    from zeropeak.reports.compare import document
    from zeropeak.reports.compare.answer import answer
    from zeropeak.reports.compare.figures import drawings
    from zeropeak.reports.compare.lines import table_lines
    from zeropeak.reports.figures import style

    folder.mkdir(parents=True, exist_ok=True)
    page_1 = answer(comparison)
    said = page_1.short()[1:]  # the headline says once more what the paragraphs do
    lines = [*table_lines(comparison), *said]
    names = ["comparison.pdf"]
    with replacing(folder / "report") as draft:
        content = scrubbed(comparison.to_json(page_1.short()))
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        (draft / FILE).write_text(text + "\n", encoding="utf-8")
        with style.applied():
            figures = drawings(comparison)
            document.write(draft / names[0], folder.name, comparison, page_1, figures)
            for drawing in figures:
                names.append(style.save_png(draft, drawing.name, drawing.draw))
    return Written([folder / "report" / name for name in (*names, FILE)], lines)
