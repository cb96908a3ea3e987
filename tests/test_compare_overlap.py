"""Runs of other worlds and lengths, cut or from elsewhere: what is compared, and what is said of the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.written import write_tables

from zeropeak.parse.pipeline import parse_run
from zeropeak.reports import open_run
from zeropeak.reports.compare import Side, compare
from zeropeak.reports.compare.answer import answer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeRun


def opened(run: Path) -> Side:
    parse_run(run)
    return Side(open_run(run), run.name)


def foreign(path: Path, peak: int = 5000, rank: int = 0, partial: bool = False) -> Side:
    """Tables of a trace that zeropeak did not capture: one peak, no steps, no marks."""
    write_tables(
        path,
        {
            "ranks": [
                {"rank": rank, "memory_source": "kineto", "memory_partial": partial, "first_ns": 0, "last_ns": 9}
            ],
            "peaks": [{"rank": rank, "scope": "run", "ts_ns": 5, "allocated_bytes": peak, "source": "kineto"}],
            "memory_events": [
                {"rank": rank, "ts_ns": 5, "action": "alloc", "size_bytes": peak, "allocated_bytes": peak}
            ],
        },
    )
    (path / "run.json").unlink()
    return Side(open_run(path), path.name)


def test_other_worlds_are_compared_on_the_ranks_they_share(make_run: MakeRun) -> None:
    comparison = compare([opened(make_run("two")), opened(make_run("four", ranks=4))])
    assert comparison.common.ranks == (0, 1)
    assert "Ranks 2, 3 of four left out: not every run has them." in comparison.limits


def test_other_lengths_are_compared_over_the_steps_they_share(make_run: MakeRun) -> None:
    comparison = compare([opened(make_run("long", steps=3)), opened(make_run("short", steps=1))])
    assert comparison.common.steps == (-1, 0)
    assert "Compared over init and 1 step, which all runs have; long went on." in comparison.limits
    long, short = (row.cells[-1] for row in comparison.rows)
    assert long.size_bytes == short.size_bytes, "the peak of step 0, the same in both"
    assert [place.step for place in comparison.alignment.places] == [-1, 0, 0, 0]  # type: ignore[union-attr]


def test_a_cut_run_does_not_shorten_the_others_and_its_peak_is_a_lower_bound(make_run: MakeRun) -> None:
    cut = make_run("cut", status="interrupted", steps=1)
    comparison = compare([opened(cut), opened(make_run("whole", steps=2))])
    assert comparison.common.steps == (-1, 0, 1)
    assert comparison.rows[0].cells[-1].words().startswith("≥ ")
    assert not comparison.rows[1].cells[-1].at_least
    assert "cut did not end by itself (interrupted): what it would have held later is not known." in comparison.limits


def test_a_run_from_elsewhere_says_what_it_cannot_be_compared_in(make_run: MakeRun, tmp_path: Path) -> None:
    comparison = compare([opened(make_run("ours")), foreign(tmp_path / "theirs")])
    said = "\n".join(comparison.limits)
    assert "theirs has no run.json" in said
    assert "theirs has no marks" in said
    assert "theirs does not say what its bytes were at the peak" in said
    assert "Not all runs know their steps" in said
    assert [cell.size_bytes for cell in comparison.rows[1].cells] == [None, None, 5000]
    assert comparison.pairs[0].waterfalls == []
    assert comparison.pairs[0].differences.unknown[0] == "the DeepSpeed config"


def test_runs_without_a_common_rank_are_said_to_have_none(make_run: MakeRun, tmp_path: Path) -> None:
    comparison = compare([opened(make_run("ours")), foreign(tmp_path / "theirs", rank=7)])
    assert comparison.common.lead is None
    assert "The runs have no rank in common, so nothing of them can be compared." in comparison.limits
    assert "At no moment do both" in answer(comparison).headline


def test_the_rank_that_is_shown_is_the_highest_and_of_equal_ones_the_first(make_run: MakeRun, tmp_path: Path) -> None:
    assert compare([opened(make_run("one")), opened(make_run("other", retain=False))]).common.lead == 0
    skewed = tmp_path / "skewed"
    rows = [
        {"rank": rank, "scope": "run", "ts_ns": 5, "allocated_bytes": size, "source": "kineto"}
        for rank, size in enumerate((100, 300, 200))
    ]
    write_tables(skewed, {"ranks": [{"rank": rank, "memory_source": "kineto"} for rank in range(3)], "peaks": rows})
    comparison = compare([Side(open_run(skewed), "a"), Side(open_run(skewed), "b")])
    assert comparison.common.lead == 1
    peak = comparison.rows[0].cells[-1]
    assert (peak.who(3), peak.spread()) == ("rank 1", "100 B to 300 B")


def test_phases_are_aligned_by_step_and_name_whatever_they_took(make_run: MakeRun) -> None:
    comparison = compare([opened(make_run("off")), opened(make_run("on", retain=False))])
    alignment = comparison.alignment
    assert alignment is not None
    phases = [(place.step, place.phase) for place in alignment.places]
    assert phases == [(-1, "init")] + [(step, name) for step in (0, 1) for name in ("forward", "backward", "step")]
    for run, row in zip(alignment.runs, comparison.rows, strict=True):
        assert max(run.peak_bytes) == row.cells[-1].size_bytes, "no extreme of the curve is lost"
        assert run.high_bytes.shape == (7, alignment.bins)


def test_a_partial_curve_from_elsewhere_is_a_lower_bound(make_run: MakeRun, tmp_path: Path) -> None:
    theirs = foreign(tmp_path / "theirs", partial=True)
    comparison = compare([opened(make_run("ours")), theirs])
    assert comparison.rows[1].cells[-1].words() == "≥ 4.88 KiB"
    assert "or thereabouts (cut) at the peak" in answer(comparison).headline
