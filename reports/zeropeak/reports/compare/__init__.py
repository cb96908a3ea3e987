"""Runs side by side: what each held, in what they differ, and whether the cause that a finding names holds."""

from __future__ import annotations

from zeropeak.reports.compare.comparison import Comparison, compare
from zeropeak.reports.compare.side import Side
from zeropeak.reports.compare.write import Written, write_comparison

__all__ = ["Comparison", "Side", "Written", "compare", "write_comparison"]
