"""Pages of a PDF filled from the top: headings, paragraphs with a label in the margin, tables, figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from zeropeak.reports import fonts
from zeropeak.reports.figures import style
from zeropeak.reports.figures.style import Panel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.backends.backend_pdf import PdfPages

    from zeropeak.reports.figures.drawing import Drawing

WIDTH_IN: Final = 11.69
HEIGHT_IN: Final = 8.27
"""A4, landscape; fits letter when printed to fit."""
_LEFT_IN: Final = (WIDTH_IN - style.WIDTH_IN) / 2
_TOP_IN: Final = 0.5
_BOTTOM_IN: Final = 0.62
LABEL_IN: Final = 1.15
_LEADING: Final = 1.42
_ROW: Final = 1.55


@dataclass(frozen=True)
class Column:
    """A column of a table; ``share`` of the width, numbers at the right."""

    title: str
    share: float
    right: bool = False


class Pages:
    """Writes pages one after the other; a page that is full begins the next one.

    Args:
        pdf: open PDF.
        footer: small line at the foot of every page.
    """

    def __init__(self, pdf: PdfPages, footer: str) -> None:
        self._pdf = pdf
        self._footer = footer
        self._number = 0
        self._panel: Panel | None = None
        self._left_in = 0.0

    def close(self) -> None:
        """Finish the page that is open."""
        if self._panel is not None:
            self._pdf.savefig(self._panel.figure)  # type: ignore[no-untyped-call]
            self._panel = None

    def page(self) -> Panel:
        """Begin a page."""
        self.close()
        self._number += 1
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN))
        panel = Panel(figure, _LEFT_IN, _BOTTOM_IN, style.WIDTH_IN, HEIGHT_IN - _TOP_IN - _BOTTOM_IN)
        panel.text(
            0,
            -0.3,
            fonts.fit(self._footer, (panel.width - 1) * 72, style.SIZE_SMALL),
            style.SIZE_SMALL,
            color=style.QUIET,
        )
        panel.text(panel.width, -0.3, f"page {self._number}", style.SIZE_SMALL, color=style.QUIET, ha="right")
        self._panel, self._left_in = panel, panel.height
        return panel

    def room(self, needed_in: float) -> Panel:
        """The open page when so much is left on it, else a new one."""
        if self._panel is None or self._left_in < needed_in:
            return self.page()
        return self._panel

    def page_unless_fresh(self, used_in: float) -> None:
        """Begin a page unless at most so much is used of the open one."""
        if self._panel is None or self._panel.height - self._left_in > used_in:
            self.page()

    def space(self, height_in: float) -> None:
        """Leave some room."""
        self._left_in -= height_in

    def keep_together(self, rows: int) -> None:
        """Begin a new page unless a heading and a table of so many rows fit on this one, or on none."""
        needed = 0.9 + rows * style.SIZE_LABEL * _ROW / 72
        if needed < HEIGHT_IN - _TOP_IN - _BOTTOM_IN:
            self.room(needed)

    def heading(self, text: str, size: float = style.SIZE_TITLE, keep_in: float = 0.8) -> None:
        """A heading of as many lines as it needs, kept together with what follows."""
        lines = fonts.wrap(text, style.WIDTH_IN * 72, size, bold=True)
        step = size * 1.3 / 72
        panel = self.room(step * len(lines) + keep_in)
        for line in lines:
            self._left_in -= step
            panel.text(0, self._left_in, line, size, weight="bold")
        self._left_in -= 0.1

    def line(self, text: str) -> None:
        """One quiet line over the whole width."""
        size = style.SIZE_LABEL
        panel = self.room(size * _LEADING / 72)
        self._left_in -= size * _LEADING / 72
        panel.text(0, self._left_in, fonts.fit(text, style.WIDTH_IN * 72, size), size, color=style.QUIET)
        self._left_in -= 0.05

    def paragraph(
        self, text: str, label: str = "", strong: bool = False, size: float = style.SIZE_TEXT, mark: str = ""
    ) -> None:
        """A paragraph, with a label in the margin; ``mark`` stands before its first line (a bullet)."""
        indent = LABEL_IN + (0.16 if mark else 0)
        lines = fonts.wrap(text, (style.WIDTH_IN - indent) * 72, size)
        step = size * _LEADING / 72
        for index, line in enumerate(lines):
            panel = self.room(step)
            self._left_in -= step
            if index == 0 and label:
                panel.text(0, self._left_in, label, size, color=style.QUIET, weight="bold" if strong else "normal")
            if index == 0 and mark:
                panel.text(LABEL_IN, self._left_in, mark, size, color=style.QUIET)
            panel.text(indent, self._left_in, line, size)
        self._left_in -= 0.02 if mark else 0.09

    def table(
        self,
        columns: Sequence[Column],
        rows: Sequence[Sequence[str]],
        strong: Sequence[int] = (),
        size: float = style.SIZE_LABEL,
        bold: bool = True,
    ) -> None:
        """A table over the whole width; the head is repeated on every page.

        Cells that are too long are shortened in the middle. ``strong``: indexes of rows to shade, in bold if ``bold``.
        """
        step = size * _ROW / 72
        total = sum(column.share for column in columns)
        widths = [style.WIDTH_IN * column.share / total for column in columns]
        head = True
        for index, row in enumerate(rows):
            before = self._panel
            panel = self.room(step * (2.2 if head else 1))
            if head or panel is not before:
                self._row(
                    panel, columns, widths, [column.title for column in columns], step, size, style.QUIET, bold=False
                )
                self._rule(panel)
                head = False
            if index in strong:
                self._shade(panel, step)
            self._row(panel, columns, widths, row, step, size, style.INK, bold=bold and index in strong)
        self._left_in -= 0.15

    def figure(self, drawing: Drawing) -> None:
        """A page with one figure and how to read it."""
        panel = self.page()
        lines = fonts.wrap(drawing.caption, style.WIDTH_IN * 72, style.SIZE_LABEL)
        step = style.SIZE_LABEL * _LEADING / 72
        below = step * len(lines) + 0.1
        height = min(style.HEIGHT_IN, panel.height - below)
        drawing.draw(panel.part(0, panel.height - height, panel.width, height))
        for index, line in enumerate(lines):
            panel.text(0, panel.height - height - 0.12 - step * (index + 1), line, style.SIZE_LABEL, color=style.QUIET)
        self._left_in = 0

    def _row(
        self,
        panel: Panel,
        columns: Sequence[Column],
        widths: Sequence[float],
        cells: Sequence[str],
        step: float,
        size: float,
        colour: str,
        bold: bool,
    ) -> None:
        self._left_in -= step
        left = 0.0
        for column, width, cell in zip(columns, widths, cells, strict=True):
            text = fonts.fit(cell, (width - 0.1) * 72, size, bold)
            at = left + width - 0.1 if column.right else left
            panel.text(
                at,
                self._left_in,
                text,
                size,
                color=colour,
                ha="right" if column.right else "left",
                weight="bold" if bold else "normal",
            )
            left += width

    def _rule(self, panel: Panel) -> None:
        self._left_in -= 0.05
        panel.figure.add_artist(
            Rectangle(*panel.place(0, self._left_in, panel.width, 0.008), facecolor=style.QUIET, linewidth=0)
        )

    def _shade(self, panel: Panel, step: float) -> None:
        place = panel.place(-0.05, self._left_in - step * 1.24, panel.width + 0.1, step)
        panel.figure.add_artist(Rectangle(*place, facecolor=style.STRESSED, linewidth=0, zorder=-1))
