"""What page 1 and a terminal say of all findings: what is so first, by bytes; the rest in a line each."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from zeropeak.reports.findings import TITLES, Verdict
from zeropeak.reports.findings.judging import NOTICEABLE
from zeropeak.reports.paragraph import Paragraph
from zeropeak.reports.selection import all_ranks
from zeropeak.reports.units import count, percent, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zeropeak.reports.findings import Finding

SURE: Final = (Verdict.CONFIRMED, Verdict.PREDICTED)
MOST_SHOWN: Final = 3
"""Findings that page 1 tells in sentences; the page on findings has all."""
_SENTENCE: Final = re.compile(r"(?<=[\w)`])\. (?=[A-Z])")
_MANY: Final = 4
"""Ids in a list from which their number is said instead."""


@dataclass(frozen=True)
class Group:
    """Findings of several ranks that say the same.

    Attributes:
        findings: one a rank, of one id, verdict, cause and holder.
        lead: the one whose figures are told: of the rank with the highest peak, else of the most bytes.
        total: ranks of the job.
    """

    findings: Sequence[Finding]
    lead: Finding
    total: int

    @property
    def sure(self) -> bool:
        """Whether it is measured (or predicted) to be so."""
        return self.lead.verdict in SURE

    @property
    def small(self) -> bool:
        """Whether it is so, but of no weight in what was allocated."""
        lead = self.lead
        return self.sure and bool(lead.bytes and lead.allocated_bytes) and _below(lead.bytes, lead.allocated_bytes)

    @property
    def title(self) -> str:
        """For people, with the id: "Released weights stay alive (retained-after-release)"."""
        return f"{TITLES.get(self.lead.id, self.lead.id)} ({self.lead.id})"

    @property
    def who(self) -> str:
        """Ranks: "all 4 ranks"."""
        return all_ranks([finding.rank for finding in self.findings], self.total)

    @property
    def verdict(self) -> str:
        """With its ranks and cause: "confirmed on all 4 ranks, cause x (suspected)"."""
        lead = self.lead
        text = f"{lead.verdict.value.replace('_', ' ')}{', but small,' if self.small else ''} on {self.who}"
        if not lead.cause:
            return text
        # Only a named holder, or a finding that needs none, establishes a cause.
        guess = lead.id == "retained-after-release" and not lead.holder
        return f"{text}, cause {lead.cause}{' (suspected)' if guess else ''}"

    @property
    def of(self) -> str:
        """Which rank the figures are of, when the ranks' differ: "On rank 2: "."""
        same = len({finding.headline for finding in self.findings}) == 1
        return "" if same else f"On rank {self.lead.rank}: "

    @property
    def weight(self) -> str:
        """Bytes and their share: "15.5 MiB (68 %)"; empty when not measured."""
        lead = self.lead
        if lead.bytes is None:
            return ""
        share = f" ({percent(lead.bytes, lead.allocated_bytes)})" if lead.allocated_bytes else ""
        return f"{size(lead.bytes)}{share}"


def grouped(findings: Iterable[Finding], total: int, worst: int | None) -> list[Group]:
    """Findings of ranks that say the same, together; in the order of the first of each.

    Args:
        findings: in the order of findings.json.
        total: ranks of the job.
        worst: rank with the highest peak.
    """
    groups: defaultdict[tuple[str | None, ...], list[Finding]] = defaultdict(list)
    for one in findings:
        # Of what is not so, and of what is not known, the cause and holder are of no matter.
        told = (one.cause, one.holder) if one.verdict in {*SURE, Verdict.SUSPECTED} else (None, None)
        groups[one.id, one.verdict, *told].append(one)
    return [Group(members, _lead(members, worst), total) for members in groups.values()]


def verdict_paragraphs(groups: Sequence[Group]) -> list[Paragraph]:
    """Page 1's paragraphs on the findings; the strong ones are also a terminal's.

    What cannot occur in this run is on the page on findings only.
    """
    told = [group for group in groups if group.sure and not group.small]
    paragraphs = _first(told[0]) if told else _none(groups)
    paragraphs += [_also(group) for group in told[1:MOST_SHOWN]]
    paragraphs += _rest(told[MOST_SHOWN:])
    suspected = [group for group in groups if group.lead.verdict is Verdict.SUSPECTED]
    paragraphs += [_also(group, "Suspected") for group in suspected[:MOST_SHOWN]]
    paragraphs += _rest(suspected[MOST_SHOWN:], "Suspected")
    paragraphs += _small([group for group in groups if group.small])
    seen = {group.lead.id for group in [*told, *suspected]}
    paragraphs += _ruled_out([g for g in groups if g.lead.verdict is Verdict.RULED_OUT and g.lead.id not in seen])
    return paragraphs + _unknown([group for group in groups if group.lead.verdict is Verdict.UNKNOWN])


def first_sentence(text: str) -> str:
    """The first sentence of a text.

    >>> first_sentence("Use DeepSpeed 0.19.4 or newer: 1.00 KiB less. Or do not.")
    'Use DeepSpeed 0.19.4 or newer: 1.00 KiB less.'
    """
    head, *rest = _SENTENCE.split(text, maxsplit=1)
    return f"{head}." if rest else head


def _below(bytes_: int | None, allocated_bytes: int | None) -> bool:
    return (bytes_ or 0) < NOTICEABLE * (allocated_bytes or 0)


def _lead(members: Sequence[Finding], worst: int | None) -> Finding:
    return next((one for one in members if one.rank == worst), max(members, key=lambda one: one.bytes or 0))


def _first(group: Group) -> list[Paragraph]:
    """The one that matters most, in full."""
    lead = group.lead
    paragraphs = [Paragraph("Verdict", f"{group.title}: {group.verdict}. {group.of}{lead.headline}", strong=True)]
    if lead.notes:
        paragraphs.append(Paragraph("Held by", " ".join(lead.notes)))
    if lead.advice:
        capture = lead.advice.startswith("Capture") or not (lead.knob or lead.cause)
        paragraphs.append(Paragraph("To know" if capture else "Change", lead.advice, strong=True))
    return paragraphs


def _also(group: Group, label: str = "Also") -> Paragraph:
    """One of the others: how much and what to do, in two sentences."""
    weight = f": {group.weight}" if group.weight else ""
    advice = f" {first_sentence(group.lead.advice)}" if group.lead.advice else ""
    return Paragraph(label, f"{group.title}: {group.verdict}{weight}.{advice}", strong=True)


def _rest(groups: Sequence[Group], label: str = "Also") -> list[Paragraph]:
    if not groups:
        return []
    named = "; ".join(f"{group.lead.id}{f', {group.weight}' if group.weight else ''}" for group in groups)
    return [Paragraph(label, f"{named}. See the page on findings.", strong=True)]


def _none(groups: Sequence[Group]) -> list[Paragraph]:
    if not groups:
        return []
    number = count(len({group.lead.id for group in groups}), "finding")
    weight = " with any weight" if any(group.small for group in groups) else ""
    return [Paragraph("Verdict", f"None of {number} is confirmed{weight}.", strong=True)]


def _small(groups: Sequence[Group]) -> list[Paragraph]:
    if not groups:
        return []
    named = "; ".join(f"{group.title}: {group.verdict}, {group.weight}" for group in groups)
    return [Paragraph("Small", f"{named}.", strong=True)]


def _ruled_out(groups: Sequence[Group]) -> list[Paragraph]:
    if not groups:
        return []
    named = ", ".join(
        f"{g.lead.id}{f' ({size(g.lead.bytes)})' if g.lead.bytes else ''}{_some(g)}" for g in _by_id(groups)
    )
    return [Paragraph("Ruled out", f"{named}.", strong=True)]


def _unknown(groups: Sequence[Group]) -> list[Paragraph]:
    """What could not be told: the reasons, by what would tell."""
    ways: defaultdict[str, defaultdict[tuple[str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for group in groups:
        way = first_sentence(group.lead.advice or "")
        ways[way][group.lead.headline, _some(group)].append(group.lead.id)
    parts = []
    for way, reasons in ways.items():
        told = [
            f"{', '.join(ids) if len(ids) < _MANY else count(len(ids), 'finding')}{ranks}: {why}"
            for (why, ranks), ids in reasons.items()
        ]
        hidden = len(told) - MOST_SHOWN
        more = [f"And {count(hidden, 'more reason')}: see the page on findings."] if hidden > 0 else []
        parts += [*told[:MOST_SHOWN], *more, *([way] if way else [])]
    return [Paragraph("Unknown", " ".join(parts), strong=True)] if parts else []


def _by_id(groups: Sequence[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: list(TITLES).index(group.lead.id) if group.lead.id in TITLES else 0)


def _some(group: Group) -> str:
    """The ranks, when they are not all of the job's."""
    return "" if len(group.findings) == group.total else f" on {group.who}"
