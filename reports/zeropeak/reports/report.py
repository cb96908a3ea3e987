"""Write a run's report folder: report.pdf, a PNG for each figure, findings.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zeropeak.reports.basis import simulated
from zeropeak.reports.origin import run_moment_ns
from zeropeak.reports.replacing import replacing
from zeropeak.reports.run import open_whole_run
from zeropeak.reports.units import in_ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeropeak.reports.findings import Finding
    from zeropeak.reports.run import Run


@dataclass(frozen=True)
class ReportResult:
    """What was written.

    Attributes:
        paths: report.pdf first, then the PNGs and findings.json.
        answer: page 1 in a few lines, for a terminal.
    """

    paths: Sequence[Path]
    findings: Sequence[Finding]
    answer: Sequence[str]


def write_report(run_dir: Path, *, at_s: float | None = None) -> ReportResult:
    """Write ``run_dir/report``, in place of the report that is there; the old one stays when this fails.

    Args:
        run_dir: run directory with tables.
        at_s: a moment, in seconds (ticks of a predicted run) since the first forward began (negative in init), whose
            composition is wanted beside the peak's.

    Raises:
        UsageError: the moment lies outside the run.
        ZeropeakError: no tables or not all of them, a newer schema, or no room or permission to write.
        TraceError: a damaged table.
    """
    run = open_whole_run(run_dir)
    at_ns = None if at_s is None else run_moment_ns(run, at_s)
    target = Path(run_dir) / "report"
    with replacing(target) as draft:
        written, findings, answer = _write(run, draft, at_ns)
    return ReportResult([target / name for name in written], findings, answer)


def _write(run: Run, folder: Path, at_ns: int | None) -> tuple[list[str], list[Finding], list[str]]:
    with in_ticks(simulated(run)):
        return _write_files(run, folder, at_ns)


def _write_files(run: Run, folder: Path, at_ns: int | None) -> tuple[list[str], list[Finding], list[str]]:
    # Here, so that whoever only opens tables does not wait for matplotlib.
    from zeropeak.reports import document
    from zeropeak.reports.answer import answer
    from zeropeak.reports.figures import drawings, style
    from zeropeak.reports.findings import find_all, to_json

    findings = find_all(run)
    page_1 = answer(run, findings)
    content = json.dumps(
        to_json(run.name, findings, run.basis.value),
        indent=1,
        ensure_ascii=False,
        allow_nan=False,
    )
    (folder / "findings.json").write_text(content + "\n", encoding="utf-8")
    names = ["report.pdf"]
    with style.applied():
        figures = drawings(run, at_ns)
        document.write(folder / "report.pdf", run, page_1, findings, figures)
        for drawing in figures:
            names.append(style.save_png(folder, drawing.name, drawing.draw))
    return [*names, "findings.json"], findings, page_1.short()
