"""cached-not-allocated: what the allocator reserved beyond the most that was ever allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.ranks import MIB, Rows, peak, phases, rank
from tests.written import write_tables

from zeropeak.reports import open_run
from zeropeak.reports.findings.cached_not_allocated import find

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.reports.findings import Finding


def tables(*segments: tuple[int, int, int], allocated: int = 100, source: str = "snapshot", **facts: Any) -> Rows:
    """Segments in MiB (size, allocated then, reserved after it), one every 10 ns of the first backward."""
    table = "memory_samples" if source == "counters" else "memory_events"
    rows: list[dict[str, Any]] = [
        {"rank": 0, "ts_ns": 130 + n, "allocated_bytes": held * MIB, "reserved_bytes": reserved * MIB}
        for n, (_, held, reserved) in enumerate(segments)
    ]
    if table == "memory_events":
        for row, (size, _, _) in zip(rows, segments, strict=True):
            row |= {"action": "segment_alloc", "size_bytes": size * MIB, "device": "cuda:0"}
    return {
        "ranks": [rank(source=source, device="cuda:0", **facts)],
        "phases": phases(2),
        table: rows,
        "peaks": [peak(allocated * MIB, ts=120, source=source, allocator_peak_bytes=allocated * MIB)],
    }


def judged(path: Path, rows: Rows, **manifest: Any) -> Finding:
    [found] = find(open_run(write_tables(path, rows, zero={"stage": 3}, **manifest)))
    return found


def test_segments_taken_while_as_much_lay_free_are_fragmentation(tmp_path: Path) -> None:
    found = judged(tmp_path, tables((90, 90, 90), (12, 70, 102), (20, 60, 122)))
    assert (found.verdict, found.bytes, found.cause) == ("confirmed", 22 * MIB, "fragmentation")
    assert (found.knob, found.value) == ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert "up to 122 MiB in the backward of step 0, 22.0 MiB (22 %) above the 100 MiB" in found.headline
    assert "of the segments taken past that, 2 (32.0 MiB) came while as much lay free in the cache" in found.headline
    assert "20.0 MiB beside 42.0 MiB free" in found.headline
    assert [row["size_bytes"] for row in found.evidence[1].rows] == [20 * MIB, 12 * MIB]


def test_segments_that_the_cache_could_not_have_given_have_no_cause(tmp_path: Path) -> None:
    found = judged(tmp_path, tables((90, 90, 90), (40, 85, 130)))
    assert (found.verdict, found.bytes, found.cause) == ("confirmed", 30 * MIB, None)


def test_a_cache_within_five_percent_is_ruled_out_with_its_bytes(tmp_path: Path) -> None:
    found = judged(tmp_path, tables((90, 90, 90), (14, 60, 104)))
    assert (found.verdict, found.bytes, found.advice) == ("ruled_out", 4 * MIB, None)


def test_a_large_cache_below_the_peak_is_no_finding(tmp_path: Path) -> None:
    # 70 MiB lie free at that moment, but the peak of 100 MiB needs them.
    assert judged(tmp_path, tables((100, 30, 100))).verdict == "ruled_out"


def test_counters_confirm_the_bytes_and_leave_the_cause_open(tmp_path: Path) -> None:
    found = judged(tmp_path, tables((90, 90, 90), (20, 60, 120), source="counters"))
    assert (found.verdict, found.bytes, found.cause) == ("confirmed", 20 * MIB, None)
    assert "without its segments it is not told whether that is fragmentation" in found.headline
    assert found.advice is not None
    assert "`zeropeak torch`" in found.advice


def test_segments_given_back_during_the_steps_are_said(tmp_path: Path) -> None:
    rows = tables((90, 90, 90), (30, 60, 120))
    back = {"rank": 0, "ts_ns": 135, "action": "segment_free", "size_bytes": 5 * MIB, "device": "cuda:0"}
    init = {**back, "ts_ns": 50}
    rows["memory_events"] += [back, init, {**back, "ts_ns": 136, "action": "oom", "size_bytes": 7}]
    headline = judged(tmp_path, rows).headline
    assert "1 segment (5.00 MiB) went back to the device during the steps" in headline
    assert headline.endswith("1 out-of-memory error.")


def test_the_cpu_has_no_cache(tmp_path: Path) -> None:
    found = judged(tmp_path, {"ranks": [rank()], "peaks": [peak(MIB)]})
    assert (found.verdict, found.bytes) == ("not_applicable", None)


@pytest.mark.parametrize("lost", ["peaks", "memory_events", "curve"])
def test_without_reserved_or_allocated_it_abstains(tmp_path: Path, lost: str) -> None:
    rows = tables((90, 90, 90), (20, 60, 120))
    if lost == "curve":
        rows["peaks"][0] |= {"partial": True, "allocator_peak_bytes": None}
    else:
        del rows[lost]
    found = judged(tmp_path, rows)
    assert (found.verdict, found.bytes) == ("unknown", None)


def test_a_simulated_run_predicts(tmp_path: Path) -> None:
    assert judged(tmp_path, tables((90, 90, 90), (20, 60, 120)), basis="simulated").verdict == "predicted"
