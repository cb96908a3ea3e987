"""The moment that a report counts times from: the begin of the first forward; init lies before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from zeropeak.profile.errors import UsageError
from zeropeak.profile.labels import TICK_NS, Basis
from zeropeak.reports.columns import NEVER, ints
from zeropeak.reports.given import of_files

if TYPE_CHECKING:
    from zeropeak.reports.run import Run

FIRST_FORWARD: Final = "the first forward began"
RUN_START: Final = "the run's start"
FILES_BEGIN: Final = "the files' begin"
"""Nobody knows how long a run had been going when files from elsewhere begin."""


def run_origin_ns(run: Run) -> int:
    """The moment that times are counted from: the begin of the first forward of any rank, else the run's start."""
    forward = _first_forward_ns(run)
    return _run_start_ns(run) if forward is None else forward


def run_origin(run: Run) -> str:
    """What :func:`run_origin_ns` is, for people."""
    if _first_forward_ns(run) is not None:
        return FIRST_FORWARD
    return FILES_BEGIN if of_files(run) else RUN_START


def _first_forward_ns(run: Run) -> int | None:
    return run.keep("first forward", lambda: _earliest_forward_ns(run))


def _earliest_forward_ns(run: Run) -> int | None:
    phases = run.arrow("phases", columns=["phase", "start_ns"])
    starts = ints(phases.filter(pc.equal(phases["phase"], "forward")), "start_ns", NEVER)
    return int(starts.min()) if len(starts) and starts.min() != NEVER else None


def _run_start_ns(run: Run) -> int:
    """The first thing seen of any rank."""
    first = ints(run.arrow("ranks", columns=["first_ns"]), "first_ns", NEVER)
    return int(first.min()) if len(first) and first.min() != NEVER else 0


def run_moment_ns(run: Run, at_s: float) -> int:
    """A moment in seconds (ticks of a predicted run), counted as the report counts, in run time; init is negative.

    Raises:
        UsageError: it lies outside the run.
    """
    last = ints(run.arrow("ranks", columns=["last_ns"]), "last_ns")
    start_ns, origin_ns = _run_start_ns(run), run_origin_ns(run)
    unit, name, decimals = (TICK_NS, "ticks", 0) if run.basis is Basis.SIMULATED else (1e9, "s", 3)
    first, latest = (start_ns - origin_ns) / unit, (int(last.max(initial=start_ns)) - origin_ns) / unit
    if not first <= at_s <= latest:
        raise UsageError(
            f"{at_s:g} {name} is outside the run, which goes from {first:.{decimals}f} {name} to "
            f"{latest:.{decimals}f} {name} (0 is "
            f"{run_origin(run)}); give a moment between these"
        )
    return origin_ns + round(at_s * unit)
