"""Gradient buckets: what they set aside and what the run puts into them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.written import write_tables

from zeropeak.reports import open_run
from zeropeak.reports.findings import reduce_bucket

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.reports.findings.finding import Finding

ZERO = "zero_optimization."
KNOB = f"{ZERO}reduce_bucket_size"
BASE = 10_000


def run(
    path: Path,
    *,
    bucket: int = 1000,
    buckets: int = 1,
    reduced: tuple[int, ...] = (600, 300),
    copy: int = 0,
    stage: int = 3,
    size: int | None = None,
    **more: Any,
) -> Finding:
    """Buckets of 2 bytes an element and a copy for a reduction beside 10,000 bytes; one parameter a reduction."""
    held = [("ipg bucket", 2 * bucket if size is None else size)] * buckets + (
        [("reduce buffer", copy)] if copy else []
    )
    top = BASE + sum(bytes_ for _, bytes_ in held)
    rows: dict[str, list[dict[str, Any]]] = {
        "ranks": [{"rank": 0, "world_size": 1, "status": "complete", "memory_source": "kineto"}],
        "params": [
            {"rank": 0, "param_id": number, "numel": numel, "full_bytes": 2 * numel, "trainable": True}
            for number, numel in enumerate(reduced)
        ],
        "zero_events": [
            {"rank": 0, "event_id": number, "kind": "reduce", "name": "reduce", "step": 0, "start_ns": 50 + number}
            for number in range(len(reduced))
        ],
        "zero_event_params": [
            {"rank": 0, "event_id": number, "param_id": number} for number in range(len(reduced))
        ],
        "memory_blocks": [
            {"rank": 0, "block_id": number, "size_bytes": bytes_, "born_ns": 10, "category": "gradient_bucket",
             "owner": owner, "free_requested_ns": 90}
            for number, (owner, bytes_) in enumerate(held)
        ],
        "memory_events": [
            {"rank": 0, "ts_ns": ts, "action": "alloc", "size_bytes": 1, "allocated_bytes": allocated}
            for ts, allocated in ((0, BASE), (10, top), (90, BASE))
        ],
        "peaks": [{"rank": 0, "scope": "run", "ts_ns": 10, "allocated_bytes": top}],
        "peak_composition": [
            {"rank": 0, "scope": "run", "category": "gradient_buckets", "size_bytes": top - BASE},
            {"rank": 0, "scope": "run", "category": "activations", "size_bytes": BASE},
        ],
    }  # fmt: skip
    rows |= more.pop("rows", {})
    zero = {"stage": stage, "reduce_bucket_size": bucket, **more}
    [found] = reduce_bucket.find(open_run(write_tables(path, rows, zero=zero)))
    return found


def test_a_bucket_larger_than_all_it_ever_holds(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert (found.verdict, found.bytes, found.knob, found.value) == ("confirmed", 2000, KNOB, 600)
    assert [(one.now_bytes, one.then_bytes) for one in found.expected] == [(12_000, 11_200)]
    assert found.headline == (
        "Gradient buckets held 1.95 KiB, 17 % of the peak: 1 bucket of 1,000 elements, 1.95 KiB; the fullest reduction "
        "held 600 elements."
    )
    assert found.advice == (
        f"Set {KNOB} to 600 (elements): expect 800 B less at the peak (11.7 KiB to 10.9 KiB). No reduction of this run "
        "was larger, so their number stays."
    )
    fullest = next(one for one in found.evidence if one.table == "zero_events")
    assert [row["numel"] for row in fullest.rows] == [600, 300]


def test_a_full_bucket_is_halved_and_so_is_its_copy(tmp_path: Path) -> None:
    found = run(tmp_path, reduced=(1000, 900), copy=2000)
    assert (found.verdict, found.bytes, found.value) == ("confirmed", 4000, 500)
    assert [(one.now_bytes, one.then_bytes) for one in found.expected] == [(14_000, 12_000)]
    assert found.advice is not None
    assert found.advice.endswith(
        "About twice as many reductions, 2 a step here: the smaller the bucket, the more of them."
    )
    assert "1.95 KiB in copies for reductions" in found.headline


def test_what_the_allocator_rounds_up_is_no_element(tmp_path: Path) -> None:
    assert run(tmp_path, size=2512).expected[0].then_bytes == 12_512 - 800


def test_overlapping_communication_makes_two_buckets_in_stage_2(tmp_path: Path) -> None:
    found = run(tmp_path, buckets=2, stage=2, overlap_comm=True)
    assert (found.bytes, found.value) == (4000, 600)
    assert [(one.now_bytes, one.then_bytes) for one in found.expected] == [(14_000, 12_400)]
    assert found.advice is not None
    assert found.advice.endswith(
        f"Or set {ZERO}overlap_comm to false, for one bucket instead of two: 1.95 KiB less at the peak (13.7 KiB to "
        "11.7 KiB)."
    )


def test_what_the_all_gathers_of_stage_2_allocate_is_looked_at(tmp_path: Path) -> None:
    rows = {
        "zero_events": [{"rank": 0, "event_id": 9, "kind": "all_gather", "name": "all_gather", "start_ns": 80}],
        "memory_blocks": [
            {"rank": 0, "block_id": 0, "size_bytes": 2000, "born_ns": 10, "category": "gradient_bucket",
             "owner": "ipg bucket", "free_requested_ns": 90},
            {"rank": 0, "block_id": 1, "size_bytes": 70, "born_ns": 80, "freed_ns": 85, "born_event_id": 9},
        ],
    }  # fmt: skip
    found = run(tmp_path, stage=2, rows=rows)
    assert found.notes == [
        f"{ZERO}allgather_bucket_size does not matter for this peak: the all-gathers after the step allocated at most "
        "70 B, none of it then."
    ]


def test_near_misses_of_the_bucket(tmp_path: Path) -> None:
    small = run(tmp_path / "0", bucket=50, reduced=(10,))
    assert (small.verdict, small.bytes) == ("ruled_out", 100)
    assert small.headline == "Gradient buckets held 100 B, <1 % of the peak (at most 100 B at any time)."
    # Barely larger than its contents: the rest is not worth a change by itself, half of it may be.
    assert run(tmp_path / "1", reduced=(999,)).value == 500
    assert run(tmp_path / "2", stage=0).verdict == "not_applicable"


def test_no_bucket_seen_is_unknown(tmp_path: Path) -> None:
    found = run(tmp_path, buckets=0)
    assert (found.verdict, found.headline) == ("unknown", "No gradient bucket was registered in this run.")


def test_without_a_reduction_all_gradients_together_bound_the_bucket(tmp_path: Path) -> None:
    found = run(tmp_path, rows={"zero_events": [], "zero_event_params": []})
    assert found.value == 900
    assert "all gradients together have 900 elements" in found.headline
