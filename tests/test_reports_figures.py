"""Figures: their data, and that each one draws on full, many-ranked, curveless, cut and empty runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.written import write_files

from zeropeak.reports import composition, figures, open_run, selection
from zeropeak.reports import run as run_module
from zeropeak.reports.answer import answer
from zeropeak.reports.around import When, around, parameters
from zeropeak.reports.curve import Curve
from zeropeak.reports.figures import lanes, memory_curve, parts, peak_zoom, ranks, released_alive, series, style
from zeropeak.reports.findings import find_all
from zeropeak.reports.origin import run_origin_ns
from zeropeak.reports.story import read_story

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from zeropeak.reports import Run

MS = 1_000_000
KIB = 1024


def rank_tables(rank: int, events: int = 40) -> dict[str, list[dict[str, Any]]]:
    """A rank of one step: memory climbs by 1 KiB an event in forward and falls in backward; peak in the middle."""
    half = events // 2
    rows: dict[str, list[dict[str, Any]]] = {
        "ranks": [
            {
                "rank": rank,
                "world_size": 99,
                "status": "complete",
                "first_ns": 0,
                "last_ns": (events + 4) * MS,
                "memory_source": "kineto",
                "memory_partial": False,
            }
        ],
        "phases": [
            {"rank": rank, "phase": phase, "step": step, "start_ns": a * MS, "end_ns": b * MS}
            for phase, step, a, b in (
                ("init", -1, 0, 2),
                ("forward", 0, 2, half + 2),
                ("backward", 0, half + 2, events + 3),
            )
        ],
        "marks": [
            {
                "rank": rank,
                "step": 0,
                "micro_step": 0,
                "mark": "forward",
                "ts_ns": (half + 2) * MS,
                "released_alive_bytes": half * KIB,
                "released_alive_count": half,
                "allocated_bytes": (half + rank) * KIB,
            }
        ],
    }
    rows["zero_events"], rows["memory_events"], rows["memory_blocks"], rows["zero_event_params"] = [], [], [], []
    for n in range(events):
        at = (n + 2) * MS
        size = (rank + 1 + (n if n < half else events - n)) * KIB
        kind = ("wait", "free")[n % 2]
        end = at if kind == "free" else at + MS // 2
        rows["zero_events"].append(
            {
                "rank": rank,
                "event_id": n + 1,
                "kind": kind,
                "name": f"{kind} layers.{n}",
                "module": f"layers.{n}",
                "start_ns": at,
                "end_ns": end,
                "full_bytes": KIB,
            }
        )
        rows["zero_event_params"].append(
            {"rank": rank, "event_id": n + 1, "param_id": n, "param": f"layers.{n}.weight"}
        )
        rows["memory_events"].append(
            {"rank": rank, "ts_ns": at + 1, "action": "alloc", "size_bytes": KIB, "allocated_bytes": size}
        )
        if n < half:
            rows["memory_blocks"].append(
                {
                    "rank": rank,
                    "block_id": n,
                    "size_bytes": KIB,
                    "born_ns": at,
                    "released_ns": at + 1,
                    "free_requested_ns": (events + 2 - n) * MS,
                    "category": "param_full",
                }
            )
    top = (rank + 1 + half) * KIB
    rows["peaks"] = [
        {
            "rank": rank,
            "scope": "run",
            "ts_ns": (half + 2) * MS + 1,
            "allocated_bytes": top,
            "event_id": half + 1,
            "last_event_id": half,
            "module": f"layers.{half}",
        }
    ]
    rows["peak_composition"] = [
        {"rank": rank, "scope": "run", "category": category, "size_bytes": size}
        for category, size in (("released_but_alive", half * KIB), ("activations", rank * KIB), ("unattributed", KIB))
    ]
    return rows


def make(path: Path, *members: dict[str, list[dict[str, Any]]], **manifest: Any) -> Run:
    (path / "tables").mkdir(parents=True)
    zero = {"stage": 3, "memory_efficient_linear": False}
    about = {"schema": 1, "name": "r", "world_size": len(members), "ds_config": {"zero_optimization": zero}, **manifest}
    (path / "run.json").write_text(json.dumps(about))
    names = {name for rows in members for name in rows}
    write_files(path, {name: [row for rows in members for row in rows.get(name, ())] for name in names})
    return open_run(path)


def draw_all(run: Run, at_ns: int | None = None) -> list[str]:
    """Draw every figure for real; names of the figures."""
    with style.applied():
        drawn = figures.drawings(run, at_ns)
        for drawing in drawn:
            panel = style.new_panel()
            drawing.draw(panel)
            panel.figure.canvas.draw()
    return [drawing.name for drawing in drawn]


def test_every_figure_of_one_rank(tmp_path: Path) -> None:
    assert draw_all(make(tmp_path, rank_tables(0)), at_ns=5 * MS) == [
        "memory-rank-0",
        "released-but-alive",
        "peak-composition",
        "moment-composition",
        "moment-modules",
        "ranks",
        "peak-zoom-rank-0",
    ]


def test_of_many_ranks_four_get_their_own_figures(tmp_path: Path) -> None:
    names = draw_all(make(tmp_path, *(rank_tables(rank, 12) for rank in range(20))))
    assert names[:4] == ["memory-rank-0", "memory-rank-6", "memory-rank-13", "memory-rank-19"]
    assert len(names) == 11


def test_findings_go_rank_by_rank_and_read_no_rank_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run keeps what was read of a few ranks only: finding by finding, many ranks would be read once for each."""
    asked: list[int] = []
    arrow = run_module.Run.arrow

    def counted(run: Run, name: str, rank: int | None = None, *more: Any, **named: Any) -> pa.Table:
        if name == "zero_event_params" and rank is not None:
            asked.append(rank)
        return arrow(run, name, rank, *more, **named)

    monkeypatch.setattr(run_module.Run, "arrow", counted)
    found = find_all(make(tmp_path, *(rank_tables(rank, 12) for rank in range(20))))
    assert asked
    assert asked == sorted(asked)
    assert len({asked.count(rank) for rank in range(20)}) == 1
    assert {one.rank for one in found} == set(range(20))


@given(
    *[st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=12).map(sorted) for _ in range(2)],
)
def test_a_curve_along_another_is_its_value_at_each_of_the_others_times(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    curves = [Curve(*np.array(points, np.int64).reshape(-1, 2).T) for points in (one, other)]
    assert curves[0].along(curves[1]).tolist() == curves[0].at(curves[1].ts_ns).tolist()


def test_every_figure_of_the_empty_run(tmp_path: Path) -> None:
    assert draw_all(make(tmp_path)) == ["released-but-alive", "peak-composition", "ranks"]


def test_every_figure_without_a_memory_curve_says_so(tmp_path: Path) -> None:
    rows = rank_tables(0)
    for name in ("memory_events", "memory_blocks", "peaks", "peak_composition"):
        del rows[name]
    rows["marks"][0]["allocated_bytes"] = None
    run = make(tmp_path, rows)
    assert len(draw_all(run)) == 5
    data = memory_curve.build(read_story(run, 0), 0)
    assert data.title == "Rank 0: no memory curve"
    assert data.missing is not None
    assert data.missing.startswith("Rank 0 has no memory curve: ")


def test_counters_are_a_curve_and_the_title_of_a_cut_rank_does_not_claim_the_peak(tmp_path: Path) -> None:
    rows = rank_tables(0)
    for name in ("memory_events", "memory_blocks", "peaks", "peak_composition"):
        del rows[name]
    rows["memory_samples"] = [
        {"rank": 0, "ts_ns": event["start_ns"], "allocated_bytes": event["event_id"] * KIB}
        for event in rows["zero_events"]
    ]
    rows["ranks"][0] |= {"status": "out_of_memory", "memory_source": "counters", "memory_partial": True}
    run = make(tmp_path, rows)
    assert len(draw_all(run)) == 5
    data = memory_curve.build(read_story(run, 0), 0)
    assert data.title.startswith("Rank 0 peaks at 40.0 KiB or more ")
    assert data.subtitle.startswith("out_of_memory: the rank's data ends at 0.0440 s; not shown: ")


def test_the_allocators_own_maximum_is_the_peak_of_a_sampled_curve(tmp_path: Path) -> None:
    members = [rank_tables(0), rank_tables(1)]
    for rank, rows in enumerate(members):
        rows["ranks"][0]["memory_source"] = "counters"
        rows["marks"][0]["max_allocated_bytes"] = (50 - rank) * KIB
        rows["peaks"][0] |= {"source": "counters", "allocator_peak_bytes": (50 - rank) * KIB}
    run = make(tmp_path, *members)
    assert selection.peak_bytes(run) == {0: 50 * KIB, 1: 49 * KIB}
    page = answer(run, [])
    assert page.worst == 0
    assert page.headline == (
        "Rank 0 peaks highest, at 50.0 KiB by the allocator's own counter, in the forward of step 0."
    )
    assert page.short()[1] == (
        "Samples: The samples reached 21.0 KiB at 0.0200 s, in the backward of step 0, during wait layers.20. "
        "20.0 KiB of it (95 %) were weights that ZeRO had already released."
    )
    assert memory_curve.build(read_story(run, 0), 0).title.startswith(
        "Rank 0 peaks at 50.0 KiB; the samples reach 21.0 KiB during wait layers.20"
    )
    assert len(draw_all(run)) == 7


def test_a_sample_after_the_last_mark_of_a_cut_rank_can_be_the_peak(tmp_path: Path) -> None:
    rows = rank_tables(0)
    rows["ranks"][0] |= {"memory_source": "counters", "status": "cut"}
    rows["peaks"][0] |= {"source": "counters", "allocator_peak_bytes": 9 * KIB}
    page = answer(make(tmp_path, rows), [])
    assert page.headline.startswith("Rank 0 peaks at 21.0 KiB or more, in the backward of step 0, during wait")


def test_a_sampled_peak_without_the_allocators_maximum_may_be_higher(tmp_path: Path) -> None:
    rows = rank_tables(0)
    rows["ranks"][0]["memory_source"] = rows["peaks"][0]["source"] = "counters"
    assert answer(make(tmp_path, rows), []).headline.startswith("Rank 0 peaks at 21.0 KiB or more, in the backward")


def test_the_titles_say_the_message(tmp_path: Path) -> None:
    run = make(tmp_path, rank_tables(0), rank_tables(1))
    story = read_story(run, 1)
    assert memory_curve.build(story, 0).title == (
        "Rank 1 peaks at 22.0 KiB during wait layers.20, 20.0 KiB of it already released weights"
    )
    # The event before it, free layers.19, was one of the forward and explains nothing.
    assert peak_zoom.build(story, 0).title == "Rank 1's peak of 22.0 KiB came during wait layers.20"
    assert released_alive.build(run).title == (
        "Ranks 0, 1 hold 20.0 KiB of released weights after the forward of step 0, 100 % of all"
    )
    assert ranks.build(run).title == "Rank 1 peaks highest at 22.0 KiB, 1.00 KiB above rank 0"


def test_init_is_left_out_and_its_highest_value_said(tmp_path: Path) -> None:
    rows = rank_tables(0)
    rows["memory_events"].insert(
        0, {"rank": 0, "ts_ns": MS, "action": "alloc", "size_bytes": 1, "allocated_bytes": 9 * KIB}
    )
    data = memory_curve.build(read_story(make(tmp_path, rows), 0), 0)
    assert data.start_ns == 2 * MS
    assert data.subtitle == "not shown: before 0.0020 s at most 9.00 KiB"


def test_a_peak_in_init_brings_init_back(tmp_path: Path) -> None:
    rows = rank_tables(0)
    rows["peaks"][0] |= {"ts_ns": MS, "event_id": None}
    assert read_story(make(tmp_path, rows), 0).window((0, 0))[0] == 0


def test_a_short_series_is_exact_and_a_long_one_keeps_the_peak(tmp_path: Path) -> None:
    story = read_story(make(tmp_path, rank_tables(0, 4000)), 0)
    exact, reduced = series.build(story, 0, story.end_ns, bins=5000), series.build(story, 0, story.end_ns, bins=50)
    assert (exact.reduced, reduced.reduced, len(reduced)) == (False, True, 50)
    assert exact.top_bytes == reduced.top_bytes == 2001 * KIB
    assert (reduced.released_bytes <= reduced.high_bytes).all()


def test_a_cut_series_ends_with_its_data(tmp_path: Path) -> None:
    rows = rank_tables(0)
    rows["ranks"][0] |= {"last_ns": 30 * MS, "status": "cut"}
    rows["memory_events"] = [row for row in rows["memory_events"] if row["ts_ns"] < 30 * MS]
    story = read_story(make(tmp_path, rows), 0)
    assert series.build(story, 0, 99 * MS).edges_ns[-1] == 30 * MS


def test_lanes_count_every_event_in_the_window(tmp_path: Path) -> None:
    events = read_story(make(tmp_path, rank_tables(0)), 0).events
    found = lanes.build(events, 2 * MS, 41 * MS)
    assert [(lane.kind, lane.count) for lane in found] == [("wait", 20), ("free", 20)]
    assert [len(lane.start_ns) for lane in found] == [20, 20]


def test_an_event_never_seen_to_end_reaches_to_the_windows_end(tmp_path: Path) -> None:
    rows = rank_tables(0)
    rows["zero_events"] = [{**rows["zero_events"][0], "end_ns": None}]
    [lane] = lanes.build(read_story(make(tmp_path, rows), 0).events, 0, 50 * MS)
    assert (lane.start_ns.tolist(), lane.end_ns.tolist()) == ([2 * MS], [50 * MS])


def test_events_around_the_peak(tmp_path: Path) -> None:
    run = make(tmp_path, rank_tables(0))
    found = around(read_story(run, 0))
    assert [n.event.event_id for n in found] == list(range(16, 27))
    assert [n.when for n in found] == [When.BEFORE] * 5 + [When.IN_FLIGHT] + [When.AFTER] * 5
    assert parameters(run, 0, [found[5].event]) == {21: ["layers.20.weight"]}


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (0, "the parts of each rank sum to what was allocated; at most 4.76 % is unattributed"),
        (5, "does NOT add up: rank 0's parts differ from what was allocated by -5 B"),
    ],
)
def test_a_composition_that_does_not_add_up_says_so(tmp_path: Path, lie: int, said: str) -> None:
    rows = rank_tables(0)
    rows["peak_composition"][0]["size_bytes"] += lie
    run = make(tmp_path, rows)
    data = parts.build(composition.at_peaks(run), "at its peak")
    assert data.subtitle == said
    assert list(data.names) == ["released_but_alive", "unattributed"]


def test_the_composition_of_a_moment_sums_to_the_curve(tmp_path: Path) -> None:
    run = make(tmp_path, rank_tables(0), rank_tables(1))
    found, blocks = composition.at_moment(run, 10 * MS)
    assert [one.total_bytes for one in blocks] == [8 * KIB, 9 * KIB]
    assert [(one.rank, one.measured_bytes, one.gap_bytes) for one in found] == [(0, 8 * KIB, 0), (1, 9 * KIB, 0)]
    assert found[0].parts["released_but_alive"] == 8 * KIB
    assert composition.at_moment(run, 999 * MS) == ([], [])


def test_times_are_counted_from_the_first_forward_else_from_the_first_rank_seen(tmp_path: Path) -> None:
    early, late = rank_tables(0), rank_tables(1)
    early["ranks"][0]["first_ns"], late["ranks"][0]["first_ns"] = 7, 3
    assert run_origin_ns(make(tmp_path / "a", early, late)) == 2 * MS
    early["phases"], late["phases"] = early["phases"][:1], late["phases"][:1]
    assert run_origin_ns(make(tmp_path / "b", early, late)) == 3


def test_of_many_steps_those_around_the_peak_are_shown(tmp_path: Path) -> None:
    rows = rank_tables(0)
    rows["phases"] = [
        {"rank": 0, "phase": "forward", "step": step, "start_ns": step * MS, "end_ns": (step + 1) * MS}
        for step in range(40)
    ]
    rows["peaks"][0]["ts_ns"] = 30 * MS + 1
    story = read_story(make(tmp_path, rows), 0)
    assert story.shown_steps() == (27, 32)
    assert story.window((27, 32)) == (27 * MS, 33 * MS)
    assert memory_curve.build(story, 0).subtitle == (
        "not shown: before 0.0270 s at most 21.0 KiB, after 0.0330 s at most 11.0 KiB"
    )


def test_reserved_bytes_are_drawn_where_there_is_a_caching_allocator(tmp_path: Path) -> None:
    rows = rank_tables(0)
    for row in rows["memory_events"]:
        row["reserved_bytes"] = 64 * KIB
    run = make(tmp_path, rows)
    assert series.build(read_story(run, 0), 0, 50 * MS).top_bytes == 64 * KIB
    assert draw_all(run)
