"""What the capture does not hold: so the other verdicts are weaker, or may change with a whole one.

Each gap is said with what it weakens and with the option of the capture that closes it. Page 1 lists losses row by row
(:mod:`zeropeak.reports.quality`); this is the verdict on them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from zeropeak.profile.privacy import without_folders
from zeropeak.reports import setting, words
from zeropeak.reports.findings.finding import Evidence, Finding
from zeropeak.reports.findings.judging import NOTICEABLE, judge, mend, noticeable, ruled_out, sure
from zeropeak.reports.origin import run_origin_ns
from zeropeak.reports.scopes import scope_peaks
from zeropeak.reports.story import UNATTRIBUTED, read_story
from zeropeak.reports.units import count, moment, percent, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zeropeak.reports.run import Run
    from zeropeak.reports.story import Story

ID: Final = "history-incomplete"
TITLE: Final = "The capture does not hold everything"
_LOST: Final = ("lost", "error")
_MOST_LOSSES: Final = 3


@dataclass(frozen=True)
class Gap:
    """One thing that the capture lacks.

    It has no bytes of its own: those that have no owner are in the text and the evidence.

    Attributes:
        cause: stable identifier.
        text: what is missing and what that weakens, without its end.
        cure: what to capture instead, a sentence.
        evidence: rows that show it.
    """

    cause: str
    text: str
    cure: str
    evidence: Evidence | None = None


def find(run: Run) -> list[Finding]:
    """One finding a rank, missing ranks included."""
    return judge(run, ID, of_rank)


def of_rank(run: Run, blank: Finding) -> Finding:
    """The finding on one rank, filled in from a blank one."""
    story = read_story(run, blank.rank)
    gaps = [gap for look in _GAPS for gap in look(run, story)]
    owned = sum(part.size_bytes for part in story.composition if part.category == UNATTRIBUTED)
    if not gaps:
        left = f"; {size(owned)} of it have no owner" if story.composition else ""
        return ruled_out(
            blank,
            "The rank ran to its end, its memory curve covers the run, no hook was missing and no reader lost "
            f"anything; the peak is composed of known blocks{left}.",
            max(owned, 0),
        )
    texts = "; ".join(gap.text for gap in gaps)
    cures = dict.fromkeys(gap.cure for gap in gaps)
    return replace(
        blank,
        verdict=sure(blank),
        cause=gaps[0].cause,
        allocated_bytes=story.peak.highest_bytes if story.peak else None,
        headline=f"{texts[0].upper()}{texts[1:]}.",
        advice=" ".join(cures),
        evidence=[gap.evidence for gap in gaps if gap.evidence],
    )


def _cut(run: Run, story: Story) -> Iterator[Gap]:
    if story.cut:
        ends = moment(story.end_ns, run_origin_ns(run))
        yield Gap(
            "rank-cut",
            f"the rank's data ends at {ends} ({story.status}), so later peaks are not covered",
            mend(run) or "Capture the run to its end, with fewer --steps or a smaller --seq if it takes too long.",
            _rank_evidence(run, story.rank),
        )


def _no_log(run: Run, story: Story) -> Iterator[Gap]:
    if not len(story.events) and not story.phases:
        yield Gap(
            "no-event-log",
            "there are no ZeRO events and no phases, so no byte can be laid to a fetch, release or step",
            "Capture with `zeropeak nsys` or `zeropeak torch`, which record both.",
        )


def _curve(run: Run, story: Story) -> Iterator[Gap]:
    facts = run.rank_facts(story.rank)
    entries, most = facts.get("history_entries"), facts.get("history_max_entries")
    if story.peak is None:
        yield Gap("no-memory-curve", "there is no memory curve, so where memory peaked is not known", _whole(run))
    elif isinstance(entries, int) and isinstance(most, int) and entries >= most:
        yield Gap(
            "history-ring-full",
            f"the allocator's history was full ({entries:,} entries) and dropped its oldest, so earlier peaks and the "
            "owners of older blocks are not known",
            "Capture with fewer --steps: the history then holds all of them.",
            _rank_evidence(run, story.rank),
        )
    elif not story.cut and (story.memory_partial or _uncovered(run, story)):
        yield Gap(
            "curve-partial",
            "the memory curve misses a part of the run, where memory may have been higher",
            _whole(run),
            _rank_evidence(run, story.rank),
        )


def _uncovered(run: Run, story: Story) -> bool:
    return any(peak.row["partial"] for peak in scope_peaks(run, story.rank) if peak.scope == "run")


def _owners(run: Run, story: Story) -> Iterator[Gap]:
    """A peak between two samples, or made of blocks that nobody recorded."""
    peak = story.peak
    if peak is None:
        return
    hidden = peak.highest_bytes - peak.allocated_bytes
    owned = sum(part.size_bytes for part in story.composition if part.category == UNATTRIBUTED)
    if peak.sampled and (peak.allocator_bytes is None or noticeable(hidden, peak)):
        above = f"{size(hidden)} above the highest sample" if hidden else "maybe above the highest sample"
        yield Gap(
            "counters-only",
            f"memory was read around events only and peaked {above}, at a moment that is not known",
            _whole(run),
        )
    if not story.composition or owned >= NOTICEABLE * peak.highest_bytes:
        what = f"{size(owned)} of the peak ({percent(owned, peak.highest_bytes)}) have no owner"
        missing = "blocks were not recorded" if words.by_allocator(peak) or peak.sampled else "no source names them"
        yield Gap(
            "blocks-not-recorded" if peak.sampled else "blocks-without-owner",
            f"{what if story.composition else 'what was alive at the peak is not known'}: {missing}, so findings on "
            "activations, gradients and workspace cannot be sure",
            _whole(run),
            _parts_evidence(story, owned),
        )


def _hooks(run: Run, story: Story) -> Iterator[Gap]:
    missing = setting.hooks_missing(run, story.rank)
    if missing:
        names = ", ".join(f'"{name}"{f" ({without_folders(why)})" if why else ""}' for name, why in missing.items())
        yield Gap(
            "hooks-missing",
            f"{count(len(missing), 'hook point')} saw nothing or not all: {names}",
            "Capture with a DeepSpeed that has these hook points; where one stepped aside, report it as a bug of "
            "zeropeak.",
        )


def _losses(run: Run, story: Story) -> Iterator[Gap]:
    """What readers lost of this rank, or of files that belong to several; of a cut rank it is said already."""
    if story.cut:
        return
    table = run.keep((ID, "import_stats"), lambda: run.arrow("import_stats"))
    lost = table.filter(pc.and_(pc.is_in(table["severity"], value_set=_lost_words()), pc.greater(table["count"], 0)))
    rows = [row for row in lost.to_pylist() if row["rank"] in {None, story.rank}]
    rows = [row for row in rows if not row["what"].endswith("_bytes")]
    if rows:
        told = ", ".join(
            f"{without_folders(row['detail'] or row['what'].replace('_', ' '))} ({row['count']:,})"
            for row in rows[:_MOST_LOSSES]
        )
        more = f" and {len(rows) - _MOST_LOSSES} more kinds" if len(rows) > _MOST_LOSSES else ""
        yield Gap(
            "rows-lost",
            f"readers lost rows: {told}{more}",
            "Capture again and let the run end by itself; if files were copied, copy them whole.",
            Evidence("import_stats", {"severity": "lost"}, rows[:_MOST_LOSSES], "what readers lost"),
        )


def _lost_words() -> Any:
    import pyarrow as pa

    return pa.array(_LOST)


def _whole(run: Run) -> str:
    """The capture that records every block, for the device of the run."""
    if run.manifest.get("device") == "cpu":
        return "Capture with `zeropeak nsys` or `zeropeak torch` from the start of the process to its end."
    return "Capture with `zeropeak torch`: on GPUs its memory history has every block with its moment."


def _rank_evidence(run: Run, rank: int) -> Evidence:
    columns = ["rank", "status", "last_ns", "memory_source", "memory_partial"]
    return Evidence("ranks", {"rank": rank}, run.arrow("ranks", rank, columns).to_pylist(), "how the rank ended")


def _parts_evidence(story: Story, owned: int) -> Evidence | None:
    if not story.composition:
        return None
    where = {"rank": story.rank, "scope": "run", "category": UNATTRIBUTED}
    return Evidence("peak_composition", where, [{"rank": story.rank, "size_bytes": owned}], "bytes without an owner")


_GAPS: Final[tuple[Callable[[Run, Story], Iterator[Gap]], ...]] = (_cut, _curve, _no_log, _hooks, _losses, _owners)
