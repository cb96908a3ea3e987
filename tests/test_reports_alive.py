"""What was alive by module and parameter, which releases were late, and what is said about the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.written import write_tables

from zeropeak.reports import alive, open_run, quality
from zeropeak.reports.figures import by_module, style
from zeropeak.reports.late_frees import UNKNOWN, late_frees

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from zeropeak.reports.run import Run

Row = dict[str, Any]
PEAK = {"rank": 0, "scope": "run", "ts_ns": 10, "allocated_bytes": 1000, "source": "kineto"}
RANK = {"rank": 0, "world_size": 1, "status": "complete", "memory_source": "kineto", "memory_partial": False}


def block(category: str, size: int, module: str | None, owner: str | None = None, **more: Any) -> Row:
    about = {"rank": 0, "scope": "run", "category": category, "size_bytes": size, "module": module, "owner": owner}
    return {**about, "block_id": size, **more}


BLOCKS = (
    block("activations", 300, "layers.0.mlp"),
    block("activations", 310, "layers.1.mlp", stream=0),
    block("parameter_shards", 40, "layers.0.mlp", "layers.0.mlp.weight", stream=0),
    block("released_but_alive", 150, "layers.1.mlp", "layers.1.mlp.weight", stream=7),
    block("optimizer_states", 80, None, "exp_avg"),
    block("workspace", 20, ""),
    block("unattributed", 100, None, block_id=None),
)


def run_of(path: Path, rows: Mapping[str, Sequence[Row]]) -> Run:
    return open_run(write_tables(path, {"ranks": [RANK], **rows}))


def held(path: Path, *blocks: Row) -> alive.Alive:
    found = alive.at_peak(run_of(path, {"peak_blocks": blocks}), 0)
    assert found is not None
    return found


def test_modules_that_differ_in_the_layer_only_are_one_group(tmp_path: Path) -> None:
    groups = alive.by_module(held(tmp_path, *BLOCKS))
    assert [(group.name, group.members, group.size_bytes) for group in groups] == [
        ("layers.*.mlp", 2, 800),
        (alive.NO_MODULE, 1, 180),
        (alive.ROOT, 1, 20),
    ]
    assert groups[0].parts == {"activations": 610, "parameter_shards": 40, "released_but_alive": 150}


def test_a_parameter_is_its_shard_and_its_gathered_weight(tmp_path: Path) -> None:
    (group,) = alive.by_parameter(held(tmp_path, *BLOCKS))
    assert (group.name, group.members, group.size_bytes) == ("layers.*.mlp.weight", 2, 190)


def test_streams_are_told_where_they_are_known(tmp_path: Path) -> None:
    assert alive.by_stream(held(tmp_path, *BLOCKS)) == {0: (350, 2), 7: (150, 1)}


def test_a_run_without_blocks_has_nothing_alive(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"peaks": [PEAK]})
    assert alive.at_peak(run, 0) is None
    assert by_module.at_peak(run) == []


def test_the_figure_says_which_modules_hold_most(tmp_path: Path) -> None:
    data = by_module.build(held(tmp_path, *BLOCKS), "at its peak")
    assert data.title == "80 % of what rank 0 holds at its peak is in layers.*.mlp (2): 800 B of 0.98 KiB"
    assert data.subtitle.startswith("82 % lies in modules")


def test_many_groups_and_categories_are_drawn_without_loss(tmp_path: Path) -> None:
    names = [chr(ord("a") + place) for place in range(20)]
    kinds = list(style.CATEGORY_COLOURS)
    blocks = [block(kinds[place % 12], 10 + place, f"{name}.x") for place, name in enumerate(names)]
    run = run_of(tmp_path, {"peaks": [PEAK], "peak_blocks": blocks})
    data = by_module.build(held(tmp_path / "again", *blocks), "at its peak")
    assert len(data.groups) == by_module.ROWS
    assert sum(group.size_bytes for group in data.groups) == sum(row["size_bytes"] for row in blocks)
    assert len(data.categories) == by_module.COLOURS + 1
    with style.applied():
        (drawing,) = by_module.at_peak(run)
        panel = style.new_panel()
        drawing.draw(panel)
        panel.figure.canvas.draw()


def decision(cause: str | None, decided: int, held_ns: int, **more: Any) -> Row:
    about = {"rank": 0, "cause": cause, "decided_ns": decided, "held_ns": held_ns, "step": 0, "module": "layers.0.mlp"}
    return {**about, "param_id": 7, "storage_id": 30, "size_bytes": 10**9, **more}


def test_late_frees_are_ranked_by_bytes_times_time(tmp_path: Path) -> None:
    rows = [
        decision("autograd-held", 0, 5, holder="MmBackward0._saved_mat2"),
        decision("autograd-held", 0, 7, storage_id=31, module="layers.1.mlp"),
        decision("persistence", 0, 100, storage_id=32, size_bytes=10),
        decision(None, 0, 1, storage_id=33, module=None),
    ]
    found = late_frees(run_of(tmp_path, {"delayed_frees": rows}), 0)
    assert [(late.cause, late.module, late.decisions) for late in found] == [
        ("autograd-held", "layers.*.mlp", 2),
        (UNKNOWN, "", 1),
        ("persistence", "layers.*.mlp", 1),
    ]
    assert [late.byte_seconds for late in found] == pytest.approx([12, 1, 1e-6])
    assert found[0].holder == "MmBackward0._saved_mat2"
    assert (found[0].most_bytes, found[0].longest_ns) == (2 * 10**9, 7)


def test_a_storage_that_two_decisions_found_alive_counts_each_moment_once(tmp_path: Path) -> None:
    rows = [decision("persistence", 0, 100), decision("persistence", 40, 60)]
    (late,) = late_frees(run_of(tmp_path, {"delayed_frees": rows}), 0)
    assert late.byte_seconds == pytest.approx(100)


def test_no_late_free_no_row(tmp_path: Path) -> None:
    assert late_frees(run_of(tmp_path, {}), 0) == []


def said(run: Run, words: str) -> list[str]:
    return [line.text for line in quality.lines(run) if words in line.text]


PARTS = [
    {"rank": 0, "scope": "run", "category": "activations", "size_bytes": 900},
    {"rank": 0, "scope": "run", "category": "unattributed", "size_bytes": 100},
]


def test_what_would_explain_the_rest_is_said(tmp_path: Path) -> None:
    told = {
        "peaks": [PEAK],
        "peak_composition": PARTS,
        "peak_blocks": [block("unattributed", 60, None), block("unattributed", 40, None, block_id=None)],
        "memory_blocks": [
            {"rank": 0, "block_id": 60, "size_bytes": 60, "born_ns": 5, "born_phase": "forward"},
        ],
        "params": [{"rank": 0, "param_id": 1}],
    }
    (line,) = said(run_of(tmp_path, told), "unattributed")
    assert line.startswith("10 % of the peak of rank 0 is unattributed (100 B of 0.98 KiB): 60 B made in a forward")
    assert "40 B from before the recorded history" in line


def test_a_curve_of_counters_says_that_it_knows_no_blocks(tmp_path: Path) -> None:
    counters = RANK | {"memory_source": "counters"}
    run = run_of(tmp_path, {"ranks": [counters], "peaks": [PEAK], "peak_composition": PARTS})
    (line,) = said(run, "unattributed")
    assert "`zeropeak torch` records every allocation" in line


def test_little_that_is_unattributed_is_not_worth_a_line(tmp_path: Path) -> None:
    parts = [PARTS[0] | {"size_bytes": 990}, PARTS[1] | {"size_bytes": 10}]
    assert said(run_of(tmp_path, {"peaks": [PEAK], "peak_composition": parts}), "unattributed") == []


def test_activations_are_checked_against_what_autograd_saved(tmp_path: Path) -> None:
    saved = {"rank": 0, "step": 0, "ts_ns": 9, "address": 1, "size_bytes": 80, "category": "activations"}
    other = saved | {"size_bytes": 20, "category": "workspace"}
    parameter = saved | {"size_bytes": 7, "category": "released_but_alive", "storage_id": 3}
    mark = {"rank": 0, "step": 0, "micro_step": 0, "mark": "forward", "category": "activations", "size_bytes": 100}
    run = run_of(tmp_path, {"saved_tensors": [saved, other, parameter], "mark_blocks": [mark]})
    (line,) = said(run, "autograd")
    assert "80 % of their bytes are in tensors that autograd had saved, and 80 % of what it had saved" in line
    assert said(run_of(tmp_path / "none", {}), "autograd") == []
