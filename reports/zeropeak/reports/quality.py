"""What a reader must know about the data before believing the report: losses, mends, cuts, clocks, changed knobs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zeropeak.profile.labels import Status
from zeropeak.profile.privacy import without_folders
from zeropeak.reports import composition, setting, unattributed, words
from zeropeak.reports.basis import limits, simulated
from zeropeak.reports.given import of_files, remarks
from zeropeak.reports.origin import run_origin_ns
from zeropeak.reports.selection import shown_ranks
from zeropeak.reports.story import read_story
from zeropeak.reports.units import count, duration, exact, moment, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zeropeak.reports.run import Run

_SERIOUS: Final = ("error", "lost")
_JOINED: Final = "nvtx_joined"
_MOST_ASKED: Final = 4
"""Ranks without a curve that are asked whether they reserved memory: all are of one capture."""


@dataclass(frozen=True)
class Line:
    """One sentence. ``serious``: something is missing or wrong, as against worth knowing."""

    text: str
    serious: bool = False


def lines(run: Run) -> list[Line]:
    """All sentences, serious ones first."""
    found = [line for part in _PARTS for line in part(run)]
    return sorted(found, key=lambda line: not line.serious)


def _status(run: Run) -> Iterator[Line]:
    status = run.manifest.get("status")
    if status in {None, "complete"}:
        return
    if status == Status.RUNNING:
        yield Line("The capture did not end in order, or is still running.", serious=True)
        return
    failure = run.manifest.get("failure")
    why = ""
    if isinstance(failure, dict):
        who = f" on rank {failure['rank']}" if failure.get("rank") is not None else ""
        why = f": {failure.get('kind', 'failure')}{who}, {without_folders(str(failure.get('message', '')))}"
    yield Line(f"The run did not end by itself (status {status}{why}).", serious=True)


def _ranks(run: Run) -> Iterator[Line]:
    what = "No file was given" if of_files(run) else "Nothing was captured"
    if run.missing_ranks:
        yield Line(f"{what} of {shown_ranks(run.missing_ranks)}.", serious=True)
    elif missing := run.missing_count:
        yield Line(f"{what} of {count(missing, 'rank')}.", serious=True)
    table = run.arrow("ranks", columns=["rank", "status", "last_ns", "memory_source", "memory_partial"])
    rows = sorted(table.to_pylist(), key=lambda row: row["rank"])
    origin = run_origin_ns(run)
    ended: defaultdict[str, list[tuple[int, int | None]]] = defaultdict(list)
    for row in rows:
        if row["status"] not in {None, "complete"}:
            ended[row["status"]].append((row["rank"], row["last_ns"]))
    for status, members in ended.items():
        last = f"; its data ends at {moment(members[0][1], origin)}" if len(members) == 1 else ""
        yield Line(f"{shown_ranks([rank for rank, _ in members]).capitalize()} ended as {status}{last}.", serious=True)
    blind = [row["rank"] for row in rows if row["memory_source"] is None]
    if blind:
        reserved = any(words.reserved_bytes(read_story(run, rank)) for rank in blind[:_MOST_ASKED])
        what = "curve of allocated memory" if reserved else "memory curve"
        how = ": record torch.profiler with profile_memory=True, or dump torch.cuda.memory's history"
        yield Line(f"No {what} for {shown_ranks(blind)}{how if of_files(run) else ''}.", serious=True)
    partial = [row["rank"] for row in rows if row["memory_partial"] and row["memory_source"] is not None]
    if partial:
        missed = "covers only what the files recorded of the run" if of_files(run) else "misses a part of the run"
        yield Line(f"The memory curve of {shown_ranks(partial)} {missed}: peaks may be higher.", serious=True)
    sampled = [row["rank"] for row in rows if row["memory_source"] == "counters"]
    if sampled:
        yield Line(
            f"The memory curve of {shown_ranks(sampled)} is counters read around each event: between two, memory "
            "may have been higher."
        )


def _counts(run: Run) -> Iterator[Line]:
    """Rows of import_stats above zero, summed over files and ranks."""
    totals: defaultdict[tuple[str, str], int] = defaultdict(int)
    details: dict[tuple[str, str], str] = {}
    ranks: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for row in run.arrow("import_stats").to_pylist():
        key = row["severity"], row["what"]
        totals[key] += row["count"]
        if row["detail"]:
            details.setdefault(key, row["detail"])
        if row["rank"] is not None and row["count"]:
            ranks[key].add(row["rank"])
    for key, total in list(totals.items()):
        severity, what = key
        if not total or severity not in {*_SERIOUS, "mended"} or what.endswith("_bytes"):
            continue
        bytes_ = totals.get((severity, f"{what}_bytes"), 0)
        word = {"error": "Wrong", "lost": "Lost", "mended": "Mended"}[severity]
        where = f" on {shown_ranks(sorted(ranks[key]))}" if ranks[key] else ""
        of = f", {size(bytes_)}" if bytes_ else ""
        detail = without_folders(details[key]) if key in details else what.replace("_", " ")
        yield Line(f"{word}{where}: {detail} ({total:,}{of}).", serious=severity in _SERIOUS)
    if joined := totals.get(("info", _JOINED), 0):
        missed = sum(
            n
            for (severity, what), n in totals.items()
            if severity in _SERIOUS and what.startswith(("nvtx_", "event_without"))
        )
        yield Line(f"{count(joined, 'NVTX range')} joined to the event log by id, {missed:,} missed.")


def _clocks(run: Run) -> Iterator[Line]:
    table = run.arrow("clocks", columns=["source", "shared_events", "residual_ns", "residual_max_ns"]).to_pylist()
    by_source: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in table:
        if row["residual_ns"] is not None:
            by_source[row["source"] or "?"].append(row)
    for source, rows in by_source.items():
        shared = sum(row["shared_events"] or 0 for row in rows)
        worst = max(row["residual_max_ns"] or row["residual_ns"] for row in rows)
        typical = int(np.median([row["residual_ns"] for row in rows]))
        what = (
            f"Clocks of other machines: fitted on {shared:,} collectives in common"
            if source == "collectives"
            else f"Clock of {source}: fitted on {shared:,} shared events"
        )
        yield Line(f"{what}, typical error {duration(typical)}, largest {duration(worst)}.")


def _hooks(run: Run) -> Iterator[Line]:
    missing: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in run.rank_ids:
        for hook in setting.hooks_missing(run, rank).items():
            missing[hook].append(rank)
    for (name, why), ranks in missing.items():
        because = f" ({without_folders(why)})" if why else ""
        yield Line(f'Hook "{name}"{because}: its events are missing on {shown_ranks(ranks)}.', serious=True)


def _sums(run: Run) -> Iterator[Line]:
    for one in composition.at_peaks(run):
        if one.gap_bytes:
            yield Line(
                f"Rank {one.rank}: the parts of the peak do not sum to what was allocated, by {exact(one.gap_bytes)}.",
                serious=True,
            )


def _prediction(run: Run) -> Iterator[Line]:
    if simulated(run):
        yield from (Line(text) for text in limits(run))


def _unexplained(run: Run) -> Iterator[Line]:
    for sentence in unattributed.sentences(run):
        yield Line(sentence, serious=True)
    if agreement := unattributed.activations_checked(run):
        yield Line(agreement)


def _config(run: Run) -> Iterator[Line]:
    by_why: defaultdict[str, int] = defaultdict(int)
    for change in run.manifest.get("config_changes") or []:
        by_why[str(change.get("why", "changed"))] += 1
    if total := sum(by_why.values()):
        whys = ", ".join(f"{number} {why}" for why, number in by_why.items())
        verb = "differs" if total == 1 else "differ"
        yield Line(
            f"{count(total, 'knob')} of this run {verb} from the config as given: {whys}. The page on knobs lists them."
        )
    for note in run.manifest.get("notes") or []:
        yield Line(without_folders(str(note)))


def _files(run: Run) -> Iterator[Line]:
    yield from map(Line, remarks(run))


_PARTS: Final[tuple[Callable[[Run], Iterator[Line]], ...]] = (
    _status,
    _ranks,
    _counts,
    _sums,
    _unexplained,
    _hooks,
    _files,
    _clocks,
    _prediction,
    _config,
)
