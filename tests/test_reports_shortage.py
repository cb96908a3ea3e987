"""Out of memory, and what lies outside PyTorch's allocators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.written import write_tables

from zeropeak.reports import open_run
from zeropeak.reports.answer import answer
from zeropeak.reports.outside import outside
from zeropeak.reports.outside import sentence as outside_sentence
from zeropeak.reports.shortage import sentence, shortages

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


def rank(number: int, device: str = "cuda:0") -> dict[str, Any]:
    return {
        "rank": number, "world_size": 2, "status": "out_of_memory", "first_ns": 0, "last_ns": 100, "node": 0,
        "device": device, "memory_source": "snapshot", "memory_partial": False,
    }  # fmt: skip


def refused() -> dict[str, list[dict[str, Any]]]:
    """Weights of 3 GiB are alive; a request for 2 GiB is refused at 50, in a wait within layer 1's forward."""
    return {
        "ranks": [rank(0)],
        "phases": [{"rank": 0, "event_id": 1, "phase": "forward", "step": 0, "start_ns": 10, "end_ns": None}],
        "module_ranges": [
            {"rank": 0, "event_id": 2, "module": "", "direction": "forward", "start_ns": 11},
            {"rank": 0, "event_id": 3, "module": "layers.1", "direction": "forward", "start_ns": 40},
        ],
        "zero_events": [
            {"rank": 0, "event_id": 4, "kind": "fetch", "name": "fetch layers.0", "start_ns": 12, "end_ns": 20},
            {"rank": 0, "event_id": 5, "kind": "wait", "name": "wait layers.1", "start_ns": 45},
        ],
        "memory_events": [
            {"rank": 0, "ts_ns": 15, "action": "alloc", "size_bytes": 3 * GIB, "allocated_bytes": 3 * GIB,
             "reserved_bytes": 4 * GIB},
            {"rank": 0, "ts_ns": 30, "action": "oom", "size_bytes": GIB},
            {"rank": 0, "ts_ns": 50, "action": "oom", "size_bytes": 2 * GIB},
            {"rank": 0, "ts_ns": 60, "action": "free", "size_bytes": 3 * GIB, "allocated_bytes": 0,
             "reserved_bytes": 4 * GIB},
        ],
        "memory_blocks": [
            {"rank": 0, "block_id": 0, "size_bytes": 3 * GIB, "born_ns": 15, "free_requested_ns": 60,
             "category": "param_shard", "source": "snapshot"},
        ],
        "peaks": [{"rank": 0, "scope": "run", "ts_ns": 15, "allocated_bytes": 3 * GIB}],
    }  # fmt: skip


def test_the_last_refused_request_is_told_with_what_was_held(tmp_path: Path) -> None:
    run = open_run(write_tables(tmp_path, refused(), gpu_memory_bytes=5 * GIB))
    [found] = shortages(run)
    assert sentence(found, 5 * GIB) == (
        "Rank 0 asked for 2.00 GiB in the forward of step 0, module layers.1, during wait layers.1, and was refused: "
        "it held 3.00 GiB, 1.00 GiB more in its cache. It was allowed 5.00 GiB. Alive then: 3.00 GiB parameter shards. "
        "1 earlier request had been refused too."
    )
    assert answer(run, []).short()[1].startswith("Out of memory: Rank 0 asked for 2.00 GiB")


def test_without_curve_and_events_it_says_what_is_not_known(tmp_path: Path) -> None:
    rows = {"ranks": refused()["ranks"], "memory_events": refused()["memory_events"][1:2]}
    [found] = shortages(open_run(write_tables(tmp_path, rows)))
    assert sentence(found, None) == (
        "Rank 0 asked for 1.00 GiB with no ZeRO event in flight, and was refused: it held an unknown amount."
    )


def marks(*rows: tuple[int, str, int, int | None]) -> list[dict[str, Any]]:
    return [
        {"rank": number, "step": 0, "micro_step": 0, "mark": mark, "ts_ns": place, "reserved_bytes": reserved * GIB,
         "device_used_bytes": None if used is None else used * GIB}
        for place, (number, mark, reserved, used) in enumerate(rows)
    ]  # fmt: skip


def test_ranks_that_share_a_device_are_taken_together(tmp_path: Path) -> None:
    rows = {
        "ranks": [rank(0), rank(1)],
        "marks": marks((0, "forward", 10, 24), (1, "forward", 11, 25), (0, "backward", 12, 30)),
    }
    [found] = outside(open_run(write_tables(tmp_path, rows)))
    assert (found.used_bytes, found.reserved_bytes, found.size_bytes) == (25 * GIB, 21 * GIB, 4 * GIB)
    assert "25.0 GiB in use when its 2 ranks had reserved 21.0 GiB: 4.00 GiB are contexts" in outside_sentence([found])


def test_a_device_that_nvml_was_not_asked_about_is_left_out(tmp_path: Path) -> None:
    rows = {"ranks": [rank(0), rank(1, "cuda:1")], "marks": marks((0, "forward", 10, None), (1, "forward", 10, 12))}
    assert [one.device for one in outside(open_run(write_tables(tmp_path, rows)))] == ["cuda:1"]
