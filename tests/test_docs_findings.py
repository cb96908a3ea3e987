"""docs/findings.md has a section for every finding and no other."""

from __future__ import annotations

import re
from pathlib import Path

from zeropeak.reports.findings import IDS

PAGE = Path(__file__).parents[1] / "docs" / "findings.md"


def test_the_page_lists_every_finding_once() -> None:
    text = PAGE.read_text()
    assert sorted(re.findall(r"^## (\S+)$", text, re.MULTILINE)) == sorted(IDS)
    sections = re.split(r"^## \S+\n", text, flags=re.MULTILINE)[1:]
    assert [len(section.strip().split("\n\n")) for section in sections] == [1] * len(IDS), "one paragraph a finding"
