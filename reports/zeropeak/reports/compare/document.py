"""comparison.pdf: verdict and table on page 1, then figures, then every rank and every setting that differs."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

from matplotlib.backends.backend_pdf import PdfPages

from zeropeak.reports import sections
from zeropeak.reports.compare.answer import percent_off
from zeropeak.reports.compare.moment import MOMENTS
from zeropeak.reports.compare.overlap import covered
from zeropeak.reports.compare.settings import shown
from zeropeak.reports.figures import style
from zeropeak.reports.pages import Column, Pages
from zeropeak.reports.selection import shown_ranks
from zeropeak.reports.units import size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zeropeak.reports.answer import Answer
    from zeropeak.reports.compare.comparison import Comparison
    from zeropeak.reports.compare.trial import Point, Trial
    from zeropeak.reports.figures.drawing import Drawing

_DASH: Final = "-"
_MOST_RANKS: Final = 16
"""Ranks in the table of points; of more, those with the largest error."""


def write(path: Path, name: str, comparison: Comparison, answer: Answer, drawings: Sequence[Drawing]) -> None:
    """Write the PDF. Call inside ``style.applied()``.

    Raises:
        OSError: it cannot be written.
    """
    metadata: dict[str, Any] = {"Title": f"zeropeak comparison: {name}", "Creator": "zeropeak", "CreationDate": None}
    content = io.BytesIO()
    with PdfPages(content, metadata=metadata) as pdf:
        pages = Pages(pdf, f"zeropeak, comparison {name}, {_basis(comparison)}")
        _first_page(pages, comparison, answer)
        for drawing in drawings:
            pages.figure(drawing)
        pages.page()
        for trial in comparison.trials:
            _points(pages, trial)
        _settings(pages, comparison)
        sections.glossary(pages)
        pages.close()
    path.write_bytes(content.getvalue())


def _basis(comparison: Comparison) -> str:
    simulated = [side.label for side in comparison.sides if side.simulated]
    return f"simulated: {', '.join(simulated)}" if simulated else "measured"


def _first_page(pages: Pages, comparison: Comparison, answer: Answer) -> None:
    pages.page()
    titles = ", ".join(side.title for side in comparison.sides)
    ranks = shown_ranks(comparison.common.ranks) if comparison.common.ranks else "no rank in common"
    pages.line(f"{titles}; {ranks}; {covered(comparison.common)}")
    pages.heading(f"{answer.headline}" + ("" if answer.headline.endswith(".") else "."), 15)
    pages.space(0.05)
    table(pages, comparison)
    for paragraph in answer.paragraphs:
        pages.paragraph(paragraph.text, paragraph.label, paragraph.strong)
    for index, line in enumerate(comparison.limits):
        pages.paragraph(line, "Limits" if index == 0 else "", mark="!", size=style.SIZE_LABEL)
    captured = [f"{side.title}: {side.captured}" for side in comparison.sides if side.captured]
    for index, line in enumerate(captured):
        pages.paragraph(f"{line}.", "Runs" if index == 0 else "", mark="•", size=style.SIZE_LABEL)


def table(pages: Pages, comparison: Comparison) -> None:
    """The bug report's table: as reported beside as measured, when the model is the report's."""
    reported = any(row.reported for row in comparison.rows)
    columns = [Column("run", 22)]
    for moment in MOMENTS:
        if reported and moment.at != "peak":
            columns.append(Column("as reported", 12, right=True))
        columns.append(Column(moment.name, 20 if moment.at == "forward" else 11, right=True))
    columns += [Column("peak on", 17), Column("its ranks", 18), Column("basis", 10)]
    rows = []
    for row in comparison.rows:
        cells = [row.side.title]
        for cell in row.cells:
            if reported and cell.moment.at != "peak":
                cells.append(cell.reported or _DASH)
            cells.append(cell.words())
        peak = row.cells[-1]
        rows.append([*cells, peak.who(len(row.side.ranks)), peak.spread(), row.side.basis.value])
    pages.table(columns, rows)
    source = next((row.reported.source for row in comparison.rows if row.reported), None)
    if source:
        pages.paragraph(f"As reported: {source}.", "", size=style.SIZE_SMALL)


def _points(pages: Pages, trial: Trial) -> None:
    points = sorted(trial.points, key=lambda point: (point.moment.name, point.rank))
    if len({point.rank for point in points}) > _MOST_RANKS:
        points = sorted(points, key=lambda point: -abs(point.error or 0))[:_MOST_RANKS]
    pages.keep_together(len(points))
    pages.heading(
        f"{trial.finding}, {trial.knob} {shown(trial.value)}: {trial.before.title} to {trial.after.title}", 11
    )
    columns = [
        Column("rank", 6, right=True),
        Column("", 24),
        Column(trial.before.title, 18, right=True),
        Column(trial.after.title, 18, right=True),
        Column("saving predicted", 16, right=True),
        Column("saving", 16, right=True),
        Column("prediction off by", 16, right=True),
    ]
    pages.table(columns, [_point_row(point) for point in points])


def _point_row(point: Point) -> list[str]:
    return [
        str(point.rank),
        point.moment.name,
        size(point.before_bytes),
        size(point.after_bytes),
        size(point.predicted_bytes),
        size(point.saved_bytes),
        _DASH if point.error is None else percent_off(point.error),
    ]


def _settings(pages: Pages, comparison: Comparison) -> None:
    """Every setting in which any two runs differ, with its value in each."""
    values: dict[str, dict[str, object]] = {}
    for pair in comparison.pairs:
        for one in pair.differences.settings:
            known = values.setdefault(one.key, {})
            known[pair.before.label], known[pair.after.label] = one.before, one.after
    if not values:
        return
    pages.keep_together(len(values))
    pages.heading("Settings that differ", 11)
    labels = [side.label for side in comparison.sides]
    columns = [
        Column("setting (sizes of knobs in elements)", 44),
        *(Column(side.title, 18) for side in comparison.sides),
    ]
    rows = [
        [key, *(shown(known[label]) if label in known else _DASH for label in labels)] for key, known in values.items()
    ]
    pages.table(columns, rows)
