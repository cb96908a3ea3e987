"""Findings: one module each, a plain function from a run to findings, listed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zeropeak.reports.findings import retained_after_release
from zeropeak.reports.findings.finding import Basis, Evidence, Expected, Finding, Verdict, ordered, to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeropeak.reports.run import Run

FINDINGS: Final[dict[str, Callable[[Run], list[Finding]]]] = {
    retained_after_release.ID: retained_after_release.find,
}
"""Every finding by its id. Each function gives one finding a rank, missing ranks included."""

IDS: Final = tuple(FINDINGS)
"""Ids of all findings."""


def find_all(run: Run) -> list[Finding]:
    """All findings of a run, in the order of findings.json."""
    return ordered(finding for find in FINDINGS.values() for finding in find(run))


__all__ = ["FINDINGS", "IDS", "Basis", "Evidence", "Expected", "Finding", "Verdict", "find_all", "ordered", "to_json"]
