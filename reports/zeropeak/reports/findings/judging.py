"""What every finding does the same way: one a rank, a verdict only where the data carries it, else the way out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from zeropeak.profile.privacy import without_folders
from zeropeak.reports import given, setting
from zeropeak.reports.findings.finding import Basis, Evidence, Finding, Verdict
from zeropeak.reports.selection import ALIKE
from zeropeak.reports.units import percent, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Peak, Story

NOTICEABLE: Final = ALIKE
"""Share of a rank's peak from which bytes are a finding. Two peaks that differ by less are called alike everywhere in
a report, so less could neither be told from the difference between ranks, nor be seen to go when a knob is turned."""
PARTITIONS: Final = 3
"""First ZeRO stage that gathers and releases parameters."""


def judge(run: Run, id_: str, of_rank: Callable[[Run, Finding], Finding]) -> list[Finding]:
    """One finding a rank, missing ranks included.

    Args:
        id_: the finding's id.
        of_rank: gets a blank finding (unknown, of one rank) and fills it in.
    """
    found = [of_rank(run, blank(run, id_, rank)) for rank in run.rank_ids]
    return found + [missing(run, id_, rank) for rank in run.missing_ranks]


def blank(run: Run, id_: str, rank: int) -> Finding:
    """A finding that says nothing yet."""
    return Finding(id_, Verdict.UNKNOWN, run.basis, rank)


def sure(finding: Finding) -> Verdict:
    """The strongest verdict that the basis allows."""
    strongest = {Basis.SIMULATED: Verdict.PREDICTED, Basis.TEXT: Verdict.SUSPECTED}
    return strongest.get(finding.basis, Verdict.CONFIRMED)


def unknown(finding: Finding, headline: str, advice: str) -> Finding:
    """The data does not carry a verdict: what is missing, and which capture would tell."""
    return replace(finding, verdict=Verdict.UNKNOWN, headline=headline, advice=advice)


def not_applicable(finding: Finding, headline: str) -> Finding:
    """It cannot occur in this setting."""
    return replace(finding, verdict=Verdict.NOT_APPLICABLE, headline=headline)


def ruled_out(finding: Finding, headline: str, bytes_: int, evidence: Iterable[Evidence] = ()) -> Finding:
    """Measured, and it is not so, or too little to be seen in a peak: the bytes are said all the same."""
    return replace(finding, verdict=Verdict.RULED_OUT, headline=headline, bytes=bytes_, evidence=list(evidence))


def missing(run: Run, id_: str, rank: int) -> Finding:
    """Of a rank that left nothing behind."""
    what, way_out = given.no_rank(run)
    return unknown(blank(run, id_, rank), what, mend(run) or way_out)


def mend(run: Run) -> str | None:
    """The way out of a capture that failed; None when the manifest holds no failure."""
    failure = run.manifest.get("failure") or {}
    if not failure:
        return None
    if failure.get("kind") == "interrupt":
        return "The capture was interrupted: capture again and let it end by itself."
    whose = f" of rank {failure['rank']}" if failure.get("rank") is not None else ""
    message = without_folders(str(failure.get("message") or failure.get("kind") or "no message")).strip()
    return f"Mend the error{whose} ({message}) and capture again."


def unpartitioned(run: Run, finding: Finding) -> Finding | None:
    """The finding when the run's ZeRO stage is not known or partitions no parameters; None when it does."""
    stage = setting.stage(run, finding.rank)
    if stage is None:
        return unknown(finding, *given.no_stage(run))
    if stage < PARTITIONS:
        why = "does not partition parameters, so none are gathered and released"
        return not_applicable(finding, f"ZeRO stage {stage} {why}.")
    return None


def unattributed_peak(run: Run, finding: Finding, story: Story) -> Finding | None:
    """The finding when it is not known where memory peaked or what was alive then; None when both are."""
    if story.peak is None:
        return unknown(
            finding,
            "The rank has no memory curve, so what was alive at its peak is not known.",
            mend(run) or "Capture with `zeropeak torch`, or with `zeropeak nsys` on the machine that trains.",
        )
    if not story.composition:
        return unknown(
            finding,
            "The tables hold no composition of the peak, so what was alive then is not known.",
            mend(run)
            or "Capture with `zeropeak nsys` or `zeropeak torch`, whose event log says what each block holds.",
        )
    return None


def unseen(run: Run, finding: Finding, hooks: Iterable[str], what: str) -> Finding | None:
    """The finding when one of the hook points that it rests on saw nothing; None when all did.

    Args:
        hooks: names of the hook points.
        what: what they see, in the plural: "Releases".
    """
    gone = setting.hooks_missing(run, finding.rank)
    for name in hooks:
        if name in gone:
            why = f" ({without_folders(gone[name])})" if gone[name] else ""
            return unknown(
                finding,
                f'{what} were not all seen: hook "{name}" is missing{why}.',
                "Capture with a DeepSpeed that has this hook point, and where it is said to have stepped aside, report "
                "it as a bug of zeropeak.",
            )
    return None


def noticeable(bytes_: int, peak: Peak) -> bool:
    """Whether bytes are enough of a peak to be seen in it: see :data:`NOTICEABLE`."""
    return bytes_ > 0 and bytes_ >= NOTICEABLE * peak.highest_bytes


def of_peak(bytes_: int, peak: Peak) -> str:
    """Bytes, and their share of a peak, for people.

    "512 KiB, 1 % of the peak"
    """
    return f"{size(bytes_)}, {percent(bytes_, peak.highest_bytes)} of the peak" if bytes_ else "nothing"
