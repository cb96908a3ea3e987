"""The PDF: the answer on page 1, then figures, tables, knobs and words."""

from __future__ import annotations

import io
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from matplotlib.backends.backend_pdf import PdfPages

from zeropeak.reports import memory_tables, quality, sections
from zeropeak.reports.basis import simulated
from zeropeak.reports.figures import style
from zeropeak.reports.finding_pages import finding_pages
from zeropeak.reports.given import files_in_words, of_files
from zeropeak.reports.pages import Pages
from zeropeak.reports.selection import alike, peak_bytes, select
from zeropeak.reports.story import read_story
from zeropeak.reports.units import count
from zeropeak.reports.verdicts import grouped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from zeropeak.reports.answer import Answer
    from zeropeak.reports.figures.drawing import Drawing
    from zeropeak.reports.findings import Finding
    from zeropeak.reports.run import Run

RANKS_ON_PAGE_1: Final = 8
MOST_RANKS: Final = 64
"""Ranks in the table of all ranks, two pages: a job may have thousands."""
EVENT_TABLES: Final = 4


def write(path: Path, run: Run, answer: Answer, findings: Sequence[Finding], drawings: Sequence[Drawing]) -> None:
    """Write the PDF. Call inside ``style.applied()``.

    Raises:
        OSError: it cannot be written.
    """
    # No author, host or date: the same run gives the same file anywhere.
    metadata: dict[str, Any] = {"Title": f"zeropeak report: {run.name}", "Creator": "zeropeak", "CreationDate": None}
    # In memory first: on a full disk PdfPages, while closing, hides the disk's error behind one of zlib's.
    content = io.BytesIO()
    with PdfPages(content, metadata=metadata) as pdf:
        pages = Pages(pdf, _footer(run))
        _first_page(pages, run, answer, findings)
        finding_pages(pages, grouped(findings, len(run.rank_ids) + run.missing_count, answer.worst))
        for drawing in drawings:
            pages.figure(drawing)
        _tables(pages, run, findings)
        pages.page()
        sections.knobs(pages, run)
        pages.space(0.1)
        _details(pages, run)
        pages.space(0.1)
        sections.glossary(pages)
        pages.close()
    path.write_bytes(content.getvalue())


def _footer(run: Run) -> str:
    manifest = run.manifest
    version = (manifest.get("versions") or {}).get("zeropeak")
    return f"zeropeak{f' {version}' if version else ''}, run {run.name}, {run.basis}"


def _first_page(pages: Pages, run: Run, answer: Answer, findings: Sequence[Finding]) -> None:
    pages.page()
    pages.line(_what_ran(run))
    pages.heading(answer.headline, 15)
    pages.space(0.05)
    for paragraph in answer.paragraphs:
        pages.paragraph(paragraph.text, paragraph.label, paragraph.strong)
    ranks = sorted({*run.rank_ids, *run.missing_ranks})
    shown = ranks if len(ranks) <= RANKS_ON_PAGE_1 else sorted({*select(run, RANKS_ON_PAGE_1).ranks})
    if ranks:
        pages.space(0.05)
        sections.ranks_table(pages, run, shown, findings, None if alike(peak_bytes(run)) else answer.worst)
    if len(shown) < len(ranks):
        where = "all are" if len(ranks) <= MOST_RANKS else f"{MOST_RANKS} are"
        pages.paragraph(
            f"{len(shown)} of {len(ranks)} ranks, from the highest to the lowest peak; {where} in a table further on.",
            "Ranks",
        )
    _quality(pages, run)


def _what_ran(run: Run) -> str:
    manifest = run.manifest
    model = manifest.get("model") or {}
    parts = [
        f"Run {run.name}",
        _what_for(manifest),
        " ".join(model[key] for key in ("preset", "class") if model.get(key)),
        _ranks(manifest) or (count(len(run.rank_ids), "rank") if of_files(run) else ""),
        count(manifest["steps"], "step") if manifest.get("steps") else "",
        _how(run),
    ]
    return ", ".join(part for part in parts if part)


def _what_for(manifest: Mapping[str, Any]) -> str:
    """The user's script, else the config."""
    if manifest.get("script"):
        return f"script {PurePath(manifest['script']).name}"
    return f"config {manifest['config_name']}" if manifest.get("config_name") else ""


def _how(run: Run) -> str:
    """Where the figures come from."""
    if of_files(run):
        return f"read from {files_in_words(run)}"
    if simulated(run):
        return "predicted, not measured"
    return f"captured with {run.manifest['tool']}" if run.manifest.get("tool") else ""


def _ranks(manifest: Mapping[str, Any]) -> str:
    world = manifest.get("world_size")
    if not world:
        return ""
    known = {"cuda": "GPU", "cpu": "CPU", "simulated": "a simulated GPU"}
    device = known.get(manifest.get("device") or "", "a device that is not known")
    if manifest.get("device") == "simulated":
        return f"rank 0 of {world} on {device}"
    if manifest.get("fake_world"):
        return f"rank 0 of {world} on a fake process group, {device}"
    return f"{count(world, 'rank')} on {device}"


def _quality(pages: Pages, run: Run) -> None:
    """What is missing or wrong; what was mended or joined is on the page on data."""
    lines = quality.lines(run)
    serious = [line for line in lines if line.serious]
    for index, line in enumerate(serious):
        pages.paragraph(line.text, "Data" if index == 0 else "", mark="!", size=style.SIZE_LABEL)
    if not serious:
        more = "anything; what was mended and joined is on the page on data" if lines else "or mended anything"
        pages.paragraph(f"Every rank is complete and no reader lost {more}.", "Data", size=style.SIZE_LABEL)


def _details(pages: Pages, run: Run) -> None:
    lines = [line for line in quality.lines(run) if not line.serious]
    if lines:
        pages.keep_together(len(lines))
        pages.heading("Data", 11)
    for line in lines:
        pages.paragraph(line.text, mark="•", size=style.SIZE_LABEL)


def _tables(pages: Pages, run: Run, findings: Sequence[Finding]) -> None:
    shown = select(run, EVENT_TABLES)
    pages.close()
    for rank in shown.ranks:
        sections.events_table(pages, run, read_story(run, rank))
    sections.retained_table(pages, run, findings)
    for rank in shown.ranks[:1] if alike(peak_bytes(run)) else shown.ranks:
        memory_tables.late(pages, run, rank)
        memory_tables.largest_parameters(pages, run, rank)
    ranks = sorted({*run.rank_ids, *run.missing_ranks})
    if len(ranks) > MOST_RANKS:
        chosen = select(run, MOST_RANKS).ranks
        pages.heading(f"{len(chosen)} of {len(ranks)} ranks", 11)
        sections.ranks_table(pages, run, chosen, findings, None)
        pages.paragraph(
            "Chosen in equal strides from the highest to the lowest peak, both among them. The table peaks has the "
            "peak of each rank, findings.json every rank's findings.",
            size=style.SIZE_LABEL,
        )
    elif len(ranks) > RANKS_ON_PAGE_1:
        pages.heading("All ranks", 11)
        sections.ranks_table(pages, run, ranks, findings, None)
