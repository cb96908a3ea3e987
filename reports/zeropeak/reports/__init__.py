"""Tables to causes, figures, the PDF and findings.json."""

from __future__ import annotations

from zeropeak.reports.report import ReportResult, write_report
from zeropeak.reports.run import Run, open_run

__all__ = ["ReportResult", "Run", "open_run", "write_report"]
