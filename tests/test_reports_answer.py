"""Page 1: what is said of ranks that peak alike, of the events before a peak, of small findings and of knobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.written import write_files

from zeropeak.reports import open_run
from zeropeak.reports.answer import answer
from zeropeak.reports.figures import memory_curve, peak_zoom, ranks, released_alive
from zeropeak.reports.findings import Basis, Finding, Verdict, find_all
from zeropeak.reports.findings.retained_words import Later
from zeropeak.reports.sections import GLOSSARY
from zeropeak.reports.story import read_story

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.reports import Run

MS = 1_000_000
MIB = 1 << 20


def make(path: Path, *peaks: int, module: str = "", wait_ms: int = 30, parts: Any = (), **manifest: Any) -> Run:
    """Ranks with a peak each, 40 ms into the backward; one event of 5 ms before it."""
    zero = {"stage": 3, "memory_efficient_linear": False, **manifest.pop("zero", {})}
    config = {"zero_optimization": zero, "bf16": {"enabled": True}}
    about = {"schema": 1, "name": "r", "world_size": len(peaks), "ds_config": config, **manifest}
    path.mkdir(exist_ok=True)
    (path / "run.json").write_text(json.dumps(about))
    written: dict[str, list[dict[str, Any]]] = {}
    for rank, peak in enumerate(peaks):
        (path / "raw" / f"rank-{rank}").mkdir(parents=True)
        (path / "raw" / f"rank-{rank}" / "rank.json").write_text(json.dumps({"zero": zero}))
        wait = {"event_id": 1, "kind": "wait", "name": "wait lm_head", "module": "lm_head"}
        moments = ("init", -1, 0), ("forward", 0, 20), ("backward", 0, 60)
        top = {"scope": "run", "ts_ns": 40 * MS, "allocated_bytes": peak}
        tables: dict[str, list[dict[str, Any]]] = {
            "ranks": [{"status": "complete", "first_ns": 0, "last_ns": 60 * MS, "memory_source": "kineto"}],
            "phases": [
                {"phase": phase, "step": 0, "start_ns": a * MS, "end_ns": b * MS}
                for phase, a, b in (("forward", 10, 20), ("backward", 21, 60))
            ],
            "zero_events": [{**wait, "start_ns": wait_ms * MS, "end_ns": (wait_ms + 5) * MS}],
            "marks": [
                {"step": step, "micro_step": 0, "mark": mark, "ts_ns": ts * MS, "allocated_bytes": (ts + 1) * MIB}
                for mark, step, ts in moments
            ],
            "memory_events": [
                {"ts_ns": ts * MS, "action": "alloc", "size_bytes": 8, "allocated_bytes": size}
                for ts, size in ((5, peak - MIB), (40, peak), (50, peak - MIB))
            ],
            "peaks": [{**top, "last_event_id": 1, "module": module}],
            "peak_composition": [
                {"scope": "run", "category": category, "size_bytes": size} for category, size in parts
            ],
        }
        for name, rows in tables.items():
            written.setdefault(name, []).extend({"rank": rank, **row} for row in rows)
    write_files(path, written)
    return open_run(path)


@pytest.mark.parametrize(
    ("peaks", "said"),
    [
        ((100, 100), "Both ranks peak alike at 100 MiB"),
        ((500, 496, 498), "All 3 ranks peak alike at 496 MiB to 500 MiB"),
        ((100, 98), "Rank 0 peaks highest"),
    ],
)
def test_peaks_within_one_percent_are_alike_in_headline_and_figure(
    tmp_path: Path, peaks: tuple[int, ...], said: str
) -> None:
    run = make(tmp_path, *(peak * MIB for peak in peaks))
    assert answer(run, []).headline.startswith(said)
    assert ranks.build(run).title.startswith(said)


@pytest.mark.parametrize(
    ("wait_ms", "module", "said"),
    [
        (30, "", "in the backward of step 0, 5.00 ms after wait lm_head."),
        (30, "layers.3", "in the backward of step 0, 5.00 ms after wait lm_head in module layers.3."),
        (12, "", "in the backward of step 0, with no ZeRO event in flight in this backward yet."),
    ],
)
def test_only_an_event_of_the_same_phase_is_named_before_a_peak(
    tmp_path: Path, wait_ms: int, module: str, said: str
) -> None:
    page = answer(make(tmp_path, 100 * MIB, wait_ms=wait_ms, module=module), [])
    assert page.headline == f"Rank 0 peaks at 100 MiB, {said}"


def test_the_numbers_of_a_bug_report_are_on_page_1_and_in_the_terminal(tmp_path: Path) -> None:
    page = answer(make(tmp_path, 100 * MIB), [])
    line = "Allocated: 1.00 MiB after init, 21.0 MiB after the first forward, peak 100 MiB (rank 0)."
    assert line in page.short()


def test_a_small_finding_is_confirmed_but_small(tmp_path: Path) -> None:
    found = Finding("x", Verdict.CONFIRMED, Basis.MEASURED, 0, bytes=9, allocated_bytes=1000, headline="It is so.")
    said = answer(make(tmp_path, MIB), [found]).short()
    assert "Small: x (x): confirmed, but small, on rank 0, 9 B (<1 %)." in said
    assert "Verdict: None of 1 finding is confirmed with any weight." in said


@pytest.mark.parametrize(
    ("category", "knob", "said"),
    [
        ("gradient_buckets", "reduce_bucket_size", "reduce_bucket_size (500,000,000 elements x 2 B)."),
        ("kept_for_reuse", "max_reuse_distance", "stage3_max_reuse_distance (500,000,000 elements x 2 B)."),
        ("activations", "reduce_bucket_size", None),
    ],
)
def test_the_knob_of_the_largest_part_is_named(tmp_path: Path, category: str, knob: str, said: str | None) -> None:
    parts = ((category, 90 * MIB), ("inputs", 10 * MIB))
    lines = answer(make(tmp_path, 100 * MIB, parts=parts, zero={knob: 500_000_000}), []).short()
    found = [line for line in lines if line.startswith("Largest part: ")]
    what = f"Largest part: 90.0 MiB {category.replace('_', ' ')}, set by zero_optimization."
    assert found == ([] if said is None else [what + said])


def test_the_largest_part_is_left_to_a_finding_that_names_its_knob(tmp_path: Path) -> None:
    parts = (("kept_for_reuse", 90 * MIB), ("inputs", 10 * MIB))
    run = make(tmp_path, 100 * MIB, parts=parts)
    found = Finding("x", Verdict.CONFIRMED, Basis.MEASURED, 0, knob="zero_optimization.stage3_max_reuse_distance")
    assert not [line for line in answer(run, [found]).short() if line.startswith("Largest part")]
    assert [line for line in answer(run, []).short() if line.startswith("Largest part")]


def test_weights_kept_for_reuse_explain_what_later_steps_retain_less() -> None:
    later = Later(step=1, always=True, size_bytes=23 * MIB // 2, count=31, less_bytes=MIB, less_count=2)
    assert later.sentence() == (
        "from step 1 on 11.5 MiB in 31 weights, since 1.00 MiB (2 weights) is kept for reuse "
        "(stage3_max_reuse_distance) instead of released"
    )


def test_a_failed_run_says_to_mend_its_error(tmp_path: Path) -> None:
    failure = {"rank": 2, "kind": "exception", "message": "ValueError: no", "exit_code": 1}
    run = make(tmp_path, MIB, world_size=2, failure=failure)
    advice = find_all(run)[-1].advice
    assert advice == "Mend the error of rank 2 (ValueError: no) and capture again."


def test_below_stage_3_no_figure_speaks_of_released_weights(tmp_path: Path) -> None:
    run = make(tmp_path, 10 * MIB, zero={"stage": 2})
    assert released_alive.build(run).title == "Stage 2 releases no weights"
    for drawing in (memory_curve.drawing(read_story(run, 0), 0), peak_zoom.drawing(read_story(run, 0), 0)):
        assert "vermilion" not in drawing.caption


def test_a_window_of_small_change_gets_an_axis_of_its_own(tmp_path: Path) -> None:
    small = peak_zoom.drawing(read_story(make(tmp_path / "a", 100 * MIB), 0), 0)
    assert "an axis that begins at 98.8 MiB instead of 0" in small.caption
    assert "Highlighted" not in small.caption
    large = peak_zoom.drawing(read_story(make(tmp_path / "b", 2 * MIB), 0), 0)
    assert "instead of 0" not in large.caption


def test_kept_for_reuse_is_among_the_words() -> None:
    assert "kept for reuse" in dict(GLOSSARY)
