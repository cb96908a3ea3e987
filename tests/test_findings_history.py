"""history-incomplete: what a capture lacks, what that weakens, and what closes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.ranks import MIB, Rows, event, know, parts, peak, phases, rank
from tests.written import write_tables

from zeropeak.reports import open_run
from zeropeak.reports.findings.history_incomplete import find

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.reports.findings import Finding


def tables(unattributed: int = 0, **facts: Any) -> Rows:
    """A whole run with a peak of 100 MiB, so much of it without an owner."""
    return {
        "ranks": [rank(**facts)],
        "phases": phases(1),
        "zero_events": [event("fetch", 0)],
        "peaks": [peak(100 * MIB, ts=110)],
        "peak_composition": parts({"activations": (100 - unattributed) * MIB, "unattributed": unattributed * MIB}),
    }


def judged(path: Path, rows: Rows, **manifest: Any) -> Finding:
    [found] = find(open_run(write_tables(path, rows, zero={"stage": 3}, device="cuda", **manifest)))
    return found


def test_a_whole_capture_is_ruled_out_with_the_bytes_that_have_no_owner(tmp_path: Path) -> None:
    rows = tables()
    rows["peak_composition"][1]["size_bytes"] = 1000
    found = judged(tmp_path, rows)
    assert (found.verdict, found.bytes, found.advice) == ("ruled_out", 1000, None)


def test_a_full_ring_asks_for_fewer_steps(tmp_path: Path) -> None:
    know(tmp_path, history_entries=500, history_max_entries=500)
    found = judged(tmp_path, tables(memory_partial=True, source="snapshot"))
    assert (found.verdict, found.cause, found.bytes) == ("confirmed", "history-ring-full", None)
    assert found.advice == "Capture with fewer --steps: the history then holds all of them."


def test_a_ring_that_never_filled_is_whole(tmp_path: Path) -> None:
    know(tmp_path, history_entries=499, history_max_entries=500)
    assert judged(tmp_path, tables(source="snapshot")).verdict == "ruled_out"


def test_counters_without_owners_ask_for_the_memory_history(tmp_path: Path) -> None:
    rows = tables(44, source="counters")
    rows["peaks"][0] |= {"source": "counters", "allocator_peak_bytes": 103 * MIB}
    found = judged(tmp_path, rows)
    assert (found.verdict, found.cause) == ("confirmed", "counters-only")
    assert "peaked 3.00 MiB above the highest sample" in found.headline
    assert "44.0 MiB of the peak (43 %) have no owner: blocks were not recorded" in found.headline
    assert found.advice == "Capture with `zeropeak torch`: on GPUs its memory history has every block with its moment."


def test_less_than_a_percent_without_an_owner_is_no_gap(tmp_path: Path) -> None:
    rows = tables()
    rows["peak_composition"][1]["size_bytes"] = MIB - 1
    assert judged(tmp_path, rows).verdict == "ruled_out"


def test_a_rank_that_was_cut_is_said_once(tmp_path: Path) -> None:
    rows = tables(status="out_of_memory", memory_partial=True)
    rows["import_stats"] = [
        {
            "rank": 0,
            "file": "a",
            "what": "events_cut",
            "severity": "lost",
            "count": 3,
            "detail": "events without an end",
        }
    ]
    found = judged(tmp_path, rows)
    assert (found.cause, found.headline.count(";")) == ("rank-cut", 0)
    assert "(out_of_memory), so later peaks are not covered" in found.headline


def test_lost_rows_count_and_mended_ones_do_not(tmp_path: Path) -> None:
    lost = {"file": "a", "what": "rows_dropped", "severity": "lost", "count": 7, "detail": "rows of /home/ann/events"}
    rows = tables()
    rows["import_stats"] = [{**lost, "rank": 0}]
    found = judged(tmp_path / "a", rows)
    assert (found.verdict, found.cause) == ("confirmed", "rows-lost")
    assert found.headline == "Readers lost rows: rows of …/events (7)."
    rows["import_stats"] = [{**lost, "rank": 0, "severity": "mended"}, {**lost, "rank": 0, "count": 0}]
    assert judged(tmp_path / "b", rows).verdict == "ruled_out"


def test_rows_lost_of_another_rank_are_not_this_ones(tmp_path: Path) -> None:
    rows = tables()
    rows["ranks"].append(rank(1))
    rows["import_stats"] = [{"rank": 1, "file": "a", "what": "x", "severity": "error", "count": 1}]
    verdicts = [one.verdict for one in find(open_run(write_tables(tmp_path, rows, world_size=2)))]
    assert verdicts[0] == "ruled_out"


def test_missing_hooks_are_named(tmp_path: Path) -> None:
    know(tmp_path, hooks_missing=[{"name": "free", "why": "this DeepSpeed has none"}])
    found = judged(tmp_path, tables())
    assert (found.verdict, found.cause) == ("confirmed", "hooks-missing")
    assert 'saw nothing or not all: "free" (this DeepSpeed has none)' in found.headline


def test_a_foreign_trace_without_events_says_what_would_have_them(tmp_path: Path) -> None:
    rows = tables()
    del rows["zero_events"], rows["phases"]
    found = judged(tmp_path, rows)
    assert found.cause == "no-event-log"
    assert found.advice is not None
    assert "`zeropeak nsys` or `zeropeak torch`" in found.advice


def test_no_curve_is_a_gap_and_a_partial_one_too(tmp_path: Path) -> None:
    rows = tables(source=None)
    del rows["peaks"], rows["peak_composition"]
    assert judged(tmp_path / "a", rows).cause == "no-memory-curve"
    assert judged(tmp_path / "b", tables(memory_partial=True)).cause == "curve-partial"
