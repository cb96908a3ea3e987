"""Runs made of files that zeropeak did not capture: which files, and what they do not tell, in plain words."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from zeropeak.parse.provenance import FILES
from zeropeak.profile.privacy import without_folders
from zeropeak.reports.selection import shown_ranks
from zeropeak.reports.units import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeropeak.reports.run import Run

KINDS: Final = {"kineto": "torch.profiler trace", "nsys": "Nsight Systems export", "snapshot": "memory snapshot"}
"""Kinds of files, for people."""

_WORTH_SAYING: Final = (
    "file_refused",
    "rank_assumed",
    "rank_overruled",
    "ranks_by_process_order",
    "clock_unknown",
    "clock_by_base_time",
)
"""Counts of the import that whoever gave the files should know of."""

_MOST: Final = 6
"""Files that are named; of more, how many there are."""


def of_files(run: Run) -> bool:
    """Whether the run was made of such files."""
    return run.manifest.get("tool") == FILES


def files_in_words(run: Run) -> str:
    """How many files of which kind: "4 files (2 torch.profiler traces, 2 memory snapshots)"."""
    kinds = Counter(KINDS.get(source.get("kind") or "", "file") for source in run.manifest.get("sources") or [])
    parts = ", ".join(count(number, kind) for kind, number in sorted(kinds.items()))
    total = sum(kinds.values())
    return parts if total == 1 or not kinds else f"{total} files ({parts})"


def no_stage(run: Run) -> tuple[str, str]:
    """Headline and advice of a finding that needs what only zeropeak's own capture knows."""
    advice = "Capture with `zeropeak nsys` or `zeropeak torch`."
    if not of_files(run):
        return "The run does not say its ZeRO stage.", advice
    what = "No file tells which ZeRO stage ran, or what became of the weights that it released."
    return what, f"{advice} Its event log follows each weight from its gather to its end."


def no_rank(run: Run) -> tuple[str, str]:
    """Headline and advice of a finding on a rank of which there is nothing."""
    if of_files(run):
        return "No file of this rank was given.", "Parse its files together with the others."
    return (
        "The rank left nothing behind.",
        "Capture again; if the rank dies at its start, its own error output tells why.",
    )


def remarks(run: Run) -> Iterator[str]:
    """Sentences on the files and how they were read; none of a run that zeropeak captured."""
    sources = run.manifest.get("sources") or []
    if not of_files(run) or not sources:
        return
    named = [
        f"{without_folders(source.get('file') or '?')} ({KINDS.get(source.get('kind') or '', 'file')}"
        f"{', ' + shown_ranks(source['ranks']) if source.get('ranks') else ''})"
        for source in sources
    ]
    more = f" and {len(named) - _MOST} more" if len(named) > _MOST else ""
    yield f"Made of {', '.join(named[:_MOST])}{more}; what came before and after is not known."
    alone: list[int] = []
    for row in run.arrow("import_stats").to_pylist():
        if row["what"] == "clocks_not_compared" and row["count"] and row["rank"] is not None:
            alone.append(row["rank"])
        if row["what"] in _WORTH_SAYING and row["count"] and row["detail"]:
            rank = f", rank {row['rank']}" if row["rank"] is not None else ""
            said = without_folders(row["detail"])
            said = f"not read ({said})" if row["what"] == "file_refused" else said
            yield f"{without_folders(row['file'] or 'the files')}{rank}: {said}."
    if alone:
        yield (
            f"The clock of {shown_ranks(sorted(alone))} is as in the files: too few collectives in common with the "
            "other ranks to check it. If the machines differ, times between ranks may be off by milliseconds or more."
        )
