"""trace-invalidated: a later pass that prefetches nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.ranks import MIB, STEP_NS, Rows, event, know, peak, phases, rank
from tests.written import write_tables

from zeropeak.reports import open_run
from zeropeak.reports.findings.trace_invalidated import find

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.reports.findings import Finding


def tables(prefetches: str, modules: tuple[str, ...] = ()) -> Rows:
    """One step a letter: p prefetches, - does not; both fetch. ``modules``: order of each forward, a letter each."""
    steps = len(prefetches)
    events = [event("fetch", step, number=10 + step) for step in range(steps)]
    events += [
        event("prefetch", s, number=50 + s, full=3 * MIB) for s, letter in enumerate(prefetches) if letter == "p"
    ]
    runs = [
        {
            "module": name,
            "direction": "forward",
            "start_ns": STEP_NS * (step + 1) + place,
            "step": step,
            "micro_step": 0,
        }
        for step, names in enumerate(modules)
        for place, name in enumerate(names)
    ]
    return {
        "ranks": [rank()],
        "phases": phases(steps),
        "zero_events": events,
        "module_ranges": [{"rank": 0, "event_id": 100 + n, "phase": "forward", **row} for n, row in enumerate(runs)],
        "peaks": [peak((10 + step) * MIB, step=step) for step in range(steps)],
    }


def judged(path: Path, rows: Rows, zero: Any = None) -> Finding:
    [found] = find(
        open_run(write_tables(path, {k: v for k, v in rows.items() if v}, zero={"stage": 3, **(zero or {})}))
    )
    return found


def test_a_step_without_prefetch_after_one_with_is_confirmed_and_the_module_named(tmp_path: Path) -> None:
    found = judged(tmp_path, tables("-pp-p", ("abc", "abc", "acb", "acb", "acb")))
    assert (found.verdict, found.step, found.cause) == ("confirmed", 3, "module-order-changed")
    assert found.bytes == MIB  # the peaks of the steps: 12 and 13 MiB
    assert found.headline.startswith(
        "Step 3 prefetched nothing and fetched 1.00 MiB on demand; step 2 had prefetched 3.00 MiB. In step 2, at "
    )
    assert "the forward of c ran where step 1 had the forward of b." in found.headline
    assert [row["prefetches"] for row in found.evidence[0].rows] == [0, 1, 1, 0, 1]


def test_the_same_order_leaves_the_cause_open(tmp_path: Path) -> None:
    found = judged(tmp_path, tables("-pp-", ("ab",) * 4))
    assert (found.verdict, found.cause) == ("confirmed", None)
    assert "The order of modules that the capture saw is the same in both." in found.headline


def test_a_lower_peak_without_prefetch_costs_no_memory(tmp_path: Path) -> None:
    rows = tables("-pp-")
    rows["peaks"][3]["allocated_bytes"] = 5 * MIB
    found = judged(tmp_path, rows)
    assert (found.verdict, found.bytes) == ("confirmed", 0)
    assert "The peak is 7.00 MiB lower than in step 2." in found.headline


def test_step_0_never_prefetches_and_that_is_no_finding(tmp_path: Path) -> None:
    found = judged(tmp_path, tables("-ppp"))
    assert (found.verdict, found.bytes) == ("ruled_out", 0)
    assert "step 0 never does" in found.headline


def test_two_steps_are_ruled_out_only_by_their_order(tmp_path: Path) -> None:
    assert judged(tmp_path / "same", tables("-p", ("ab", "ab"))).verdict == "ruled_out"
    assert judged(tmp_path / "other", tables("-p", ("ab", "ba"))).verdict == "unknown"
    assert judged(tmp_path / "none", tables("-p")).verdict == "unknown"


def test_a_step_that_fetches_nothing_needs_no_prefetch(tmp_path: Path) -> None:
    rows = tables("-pp-")
    rows["zero_events"] = [row for row in rows["zero_events"] if row["step"] != 3]
    assert judged(tmp_path, rows).verdict == "ruled_out"


def test_an_order_that_always_changes_never_prefetches(tmp_path: Path) -> None:
    assert judged(tmp_path / "a", tables("---", ("ab", "ba", "ab"))).verdict == "confirmed"
    assert judged(tmp_path / "b", tables("---", ("ab", "ab", "ab"))).verdict == "suspected"


@pytest.mark.parametrize("prefetches", ["-", "--"])
def test_too_few_steps_are_unknown(tmp_path: Path, prefetches: str) -> None:
    found = judged(tmp_path, tables(prefetches))
    assert (found.verdict, found.advice) == ("unknown", "Capture three steps.")


def test_a_step_cut_short_is_not_compared(tmp_path: Path) -> None:
    rows = tables("-pp-")
    rows["phases"][-2]["end_ns"] = None  # the last backward
    assert judged(tmp_path, rows).verdict == "ruled_out"


def test_where_prefetch_is_off_it_cannot_occur(tmp_path: Path) -> None:
    assert judged(tmp_path, tables("---"), zero={"stage3_prefetch_bucket_size": 0}).verdict == "not_applicable"


def test_a_missing_hook_or_gathers_of_unknown_kind_are_unknown(tmp_path: Path) -> None:
    know(tmp_path / "a", zero={"stage": 3}, hooks_missing=[{"name": "fetch and prefetch", "why": "not there"}])
    assert judged(tmp_path / "a", tables("-pp-")).verdict == "unknown"
    rows = tables("----")
    for row in rows["zero_events"]:
        row["kind"] = None
    assert judged(tmp_path / "b", rows).headline == "The capture does not tell prefetches from fetches."
