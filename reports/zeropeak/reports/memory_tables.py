"""Tables of the report about what was alive: the largest parameters, streams, late frees, autograd's share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zeropeak.reports import alive
from zeropeak.reports.figures import style
from zeropeak.reports.late_frees import UNKNOWN, late_frees
from zeropeak.reports.pages import Column
from zeropeak.reports.units import count, duration, percent, size

if TYPE_CHECKING:
    from zeropeak.reports.alive import Group
    from zeropeak.reports.pages import Pages
    from zeropeak.reports.run import Run

_TOP: Final = 12
_DASH: Final = "-"


def largest_parameters(pages: Pages, run: Run, rank: int) -> None:
    """The parameters with the most bytes at a rank's peak: shards, gathered weights and gradients together."""
    found = alive.at_peak(run, rank)
    groups = alive.by_parameter(found) if found else []
    if not groups or found is None:
        return
    rows = [_parameter(group, found.total_bytes) for group in groups[:_TOP]]
    if rest := groups[_TOP:]:
        bytes_ = sum(group.size_bytes for group in rest)
        rows.append([count(len(rest), "smaller group"), _DASH, size(bytes_), percent(bytes_, found.total_bytes), _DASH])
    columns = [
        Column("parameter", 44),
        Column("count", 7, right=True),
        Column("bytes", 10, right=True),
        Column("share", 8, right=True),
        Column("as", 60),
    ]
    pages.keep_together(len(rows))
    pages.heading(f"Rank {rank}: the largest parameters at its peak", 11)
    pages.table(columns, rows)
    streams = alive.by_stream(found)
    if len(streams) > 1:
        told = [f"{number}: {size(bytes_)} in {count(blocks, 'block')}" for number, (bytes_, blocks) in streams.items()]
        pages.paragraph("; ".join(told[:_TOP]), "By stream", size=style.SIZE_LABEL)


def _parameter(group: Group, total: int) -> list[str]:
    parts = sorted(group.parts.items(), key=lambda part: -part[1])
    what = ", ".join(f"{style.category_label(name)} {size(bytes_)}" for name, bytes_ in parts)
    return [group.name, f"{group.members:,}", size(group.size_bytes), percent(group.size_bytes, total), what]


def late(pages: Pages, run: Run, rank: int) -> None:
    """Releases that did not end a parameter's memory on one rank, by cause and module."""
    found = late_frees(run, rank)
    if not found:
        return
    total = sum(one.byte_seconds for one in found)
    rows = [
        [
            "not told" if one.cause == UNKNOWN else one.cause,
            one.module or "everything at once",
            f"{one.decisions:,}",
            size(one.most_bytes),
            duration(one.longest_ns),
            f"{size(round(one.byte_seconds))}·s",
            percent(round(one.byte_seconds), round(total)),
            one.holder or _DASH,
        ]
        for one in found[:_TOP]
    ]
    if rest := found[_TOP:]:
        left = round(sum(one.byte_seconds for one in rest))
        decisions = f"{sum(one.decisions for one in rest):,}"
        rows.append([count(len(rest), "smaller group"), _DASH, decisions, _DASH, _DASH, f"{size(left)}·s",
                     percent(left, round(total)), _DASH])  # fmt: skip
    columns = [
        Column("cause", 18),
        Column("module that let go", 40),
        Column("times", 8, right=True),
        Column("most in a step", 14, right=True),
        Column("longest", 10, right=True),
        Column("bytes x time", 14, right=True),
        Column("share", 8, right=True),
        Column("held by", 30),
    ]
    pages.keep_together(len(rows))
    pages.heading(f"Rank {rank}: releases that did not end a weight's memory, by cause", 11)
    pages.table(columns, rows)
