"""Gathers that are in memory twice, and blocks that come back late from another stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.written import write_tables
from tests.zero3 import Model, other, peak_of, zero3

from zeropeak.reports import open_run
from zeropeak.reports.findings import gather_double_buffer, record_stream_delay

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.reports.findings.finding import Finding

ZERO = "zero_optimization."
PAIR = Model({"a": (100,), "b": (9000, 10)})
"""The peak lies where ``b`` is copied out of its flat buffer."""


def test_copies_beside_their_flat_buffer(tmp_path: Path) -> None:
    run = zero3(tmp_path, PAIR)
    [found] = gather_double_buffer.find(run)
    assert (found.verdict, found.bytes) == ("confirmed", 2 * 9010)
    assert (found.knob, found.value) == (f"{ZERO}stage3_allgather_sequential", True)
    assert found.expected[0].then_bytes == peak_of(run) - 2 * 9010
    assert found.headline == (
        "2 parameters were in memory twice at the peak, copied out of 1 flat buffer (17.6 KiB) that had not ended: "
        "17.6 KiB, 47 % of the peak."
    )
    copied = next(one for one in found.evidence if one.what == "the largest copies")
    assert [(row["owner"], row["size_bytes"]) for row in copied.rows] == [("b.1", 18_000), ("b.2", 20)]


def test_one_parameter_is_a_view_of_its_buffer(tmp_path: Path) -> None:
    [single] = gather_double_buffer.find(zero3(tmp_path / "0", other(PAIR, modules={"a": (100,), "b": (9000,)})))
    assert (single.verdict, single.headline) == (
        "ruled_out",
        "No gather of this run moved more than one parameter, so none was copied.",
    )
    # Copied, but the peak lies elsewhere.
    [away] = gather_double_buffer.find(zero3(tmp_path / "1", other(PAIR, work={("", "loss"): 90_000})))
    assert (away.verdict, away.bytes) == ("ruled_out", 0)
    assert away.headline.endswith("nothing (at most 17.6 KiB, when 36.2 KiB were allocated).")


def test_an_older_deepspeed_has_no_such_knob(tmp_path: Path) -> None:
    zero = {"stage": 3, "prefetch_bucket_size": 0}
    [found] = gather_double_buffer.find(zero3(tmp_path, PAIR, facts={"zero": zero}))
    assert (found.verdict, found.knob, found.value) == ("confirmed", None, None)
    assert found.advice is not None
    assert found.advice.startswith(f"This DeepSpeed has no {ZERO}stage3_allgather_sequential, ")


def test_without_the_hook_of_the_flat_buffer_nothing_is_said(tmp_path: Path) -> None:
    missing = [{"name": "coalesced gather launched", "why": "gone"}]
    [found] = gather_double_buffer.find(zero3(tmp_path, PAIR, facts={"hooks_missing": missing}))
    assert found.verdict == "unknown"


def cuda(path: Path, late_ns: int, *, category: str | None = "gather_buffer", **changes: Any) -> Finding:
    """A block of 400 bytes is let go of at 20,000 beside 600 others; at 21,000 another 390 are allocated."""
    blocks = [(1, 600, 0, None, None), (2, 400, 10_000, 20_000, 20_000 + late_ns), (3, 390, 21_000, 40_000, 40_000)]
    curve = ((0, 600), (10_000, 1000), (20_000, 600), (21_000, 990), (40_000, 600))
    ranks = {"rank": 0, "world_size": 1, "status": "complete", "device": "cuda:0", "memory_source": "snapshot"}
    rows: dict[str, list[dict[str, Any]]] = {
        "ranks": [ranks | changes],
        "memory_blocks": [
            {"rank": 0, "block_id": number, "device": "cuda:0", "size_bytes": size, "born_ns": born,
             "free_requested_ns": asked, "freed_ns": back, "category": category if number == 2 else None}
            for number, size, born, asked, back in blocks
        ],
        "memory_events": [
            {"rank": 0, "device": "cuda:0", "ts_ns": ts, "action": "alloc", "size_bytes": 1, "allocated_bytes": size}
            for ts, size in curve
        ],
        "peaks": [{"rank": 0, "scope": "run", "ts_ns": 10_000, "allocated_bytes": 1000, "source": "snapshot"}],
    }  # fmt: skip
    [found] = record_stream_delay.find(open_run(write_tables(path, rows, zero={"stage": 3, "overlap_comm": True})))
    return found


def test_memory_that_waits_for_another_stream_raises_what_is_needed(tmp_path: Path) -> None:
    found = cuda(tmp_path, 5000)
    assert (found.verdict, found.bytes) == ("confirmed", 390)
    assert (found.knob, found.value) == (f"{ZERO}overlap_comm", False)
    assert found.headline == (
        "400 B of freed memory was waiting for another stream when allocated and waiting together were highest: "
        "1.36 KiB, 390 B (39 %) above the highest allocated alone. 400 B of it is gathered parameters and their "
        "buffers; blocks waited up to 5.00 µs."
    )
    assert found.advice is not None
    assert "up to 390 B less is needed of the device (1.36 KiB to 0.98 KiB)" in found.advice
    assert [row["block_id"] for row in found.evidence[0].rows] == [2]


def test_a_block_that_is_back_before_the_next_allocation_is_no_finding(tmp_path: Path) -> None:
    found = cuda(tmp_path, 900)
    assert (found.verdict, found.bytes) == ("ruled_out", 0)
    assert found.headline == (
        "0 blocks came back later than asked for, by up to 900 ns; counted until then, they do not raise the peak (at "
        "most 400 B waited at any time)."
    )


def test_what_waits_may_not_be_zeros(tmp_path: Path) -> None:
    found = cuda(tmp_path, 5000, category=None)
    assert (found.verdict, found.knob, found.value) == ("confirmed", None, None)
    assert found.advice is not None
    assert found.advice.startswith("Most of it is not what ZeRO gathers: look at what records streams ")


def test_only_an_allocator_history_tells_of_waiting(tmp_path: Path) -> None:
    counters = cuda(tmp_path / "0", 5000, memory_source="counters")
    assert (counters.verdict, counters.advice) == (
        "unknown",
        "Capture with `zeropeak torch`, which records it.",
    )
    assert cuda(tmp_path / "1", 5000, device="cpu").verdict == "not_applicable"


def test_before_the_first_gather_nothing_is_known(tmp_path: Path) -> None:
    rows: dict[str, list[dict[str, Any]]] = {
        "ranks": [{"rank": 0, "world_size": 1, "memory_source": "kineto"}],
        "peaks": [{"rank": 0, "scope": "run", "ts_ns": 1, "allocated_bytes": 9}],
        "peak_composition": [{"rank": 0, "scope": "run", "category": "unattributed", "size_bytes": 9}],
    }
    [found] = gather_double_buffer.find(open_run(write_tables(tmp_path, rows, zero={"stage": 3})))
    assert (found.verdict, found.headline) == ("unknown", "No gather was captured.")
