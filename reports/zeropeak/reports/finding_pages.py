"""The page on findings: each one that is so in full, and what was measured where the others are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zeropeak.reports.figures import style
from zeropeak.reports.findings import TITLES, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeropeak.reports.pages import Pages
    from zeropeak.reports.verdicts import Group

_MOST_MODULES: Final = 8
_LITTLE_IN: Final = 2.0
"""Of page 1 on its second page, above which the findings begin on one of their own."""
_REST: Final = (
    (Verdict.UNKNOWN, "Not known"),
    (Verdict.RULED_OUT, "Ruled out"),
    (Verdict.NOT_APPLICABLE, "Cannot occur in this run"),
)


def finding_pages(pages: Pages, groups: Sequence[Group]) -> None:
    """Pages with all findings, after what little page 1 left for a second one; nothing without findings."""
    if not groups:
        return
    pages.page_unless_fresh(_LITTLE_IN)
    pages.heading("Findings")
    for group in groups:
        if group.sure or group.lead.verdict is Verdict.SUSPECTED:
            _in_full(pages, group)
    order = list(TITLES)
    for verdict, title in _REST:
        members = [group for group in groups if group.lead.verdict is verdict]
        if not members:
            continue
        pages.space(0.1)
        pages.heading(title, 11)
        for group in sorted(members, key=lambda one: order.index(one.lead.id) if one.lead.id in order else -1):
            who = "" if len(group.findings) == group.total else f" on {group.who}"
            advice = f" {group.lead.advice}" if group.lead.advice else ""
            text = f"{group.lead.id}{who}: {group.of}{group.lead.headline}{advice}"
            pages.paragraph(text, mark="•", size=style.SIZE_LABEL)


def _in_full(pages: Pages, group: Group) -> None:
    lead = group.lead
    pages.heading(group.title, 11, keep_in=1.2)
    weight = f", {group.weight}" if group.weight else ""
    pages.line(f"{group.verdict}{weight}")
    pages.paragraph(f"{group.of}{lead.headline}", "What")
    if lead.notes:
        pages.paragraph(" ".join(lead.notes), "Held by")
    if lead.modules:
        more = len(lead.modules) - _MOST_MODULES
        names = ", ".join(lead.modules[:_MOST_MODULES])
        pages.paragraph(names + (f" and {more} more" if more > 0 else ""), "Modules")
    if lead.advice:
        pages.paragraph(lead.advice, "Advice")
    pages.space(0.05)
