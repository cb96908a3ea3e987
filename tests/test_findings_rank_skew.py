"""rank-skew: which ranks peak higher than the lowest, and by what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.ranks import MIB, Rows, parts, peak, phases, rank
from tests.written import write_tables

from zeropeak.reports import open_run
from zeropeak.reports.findings.rank_skew import find

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.reports.findings import Finding


def tables(*peaks: dict[str, int], cut: tuple[int, ...] = ()) -> Rows:
    """A rank each; its peak is the sum of its categories (MiB), in the first backward."""
    rows: Rows = {"ranks": [], "phases": [], "peaks": [], "peak_composition": []}
    for number, sizes in enumerate(peaks):
        rows["ranks"].append(rank(number, status="cut" if number in cut else "complete"))
        rows["phases"] += phases(1, number)
        rows["peaks"].append(peak(sum(sizes.values()) * MIB, number=number, ts=140))
        rows["peak_composition"] += parts({name: size * MIB for name, size in sizes.items()}, number)
    return rows


def judged(path: Path, rows: Rows, **manifest: Any) -> list[Finding]:
    about = {"world_size": len(rows["ranks"]), **manifest}
    return find(open_run(write_tables(path, rows, zero={"stage": 3}, **about)))


LOW = {"activations": 60, "inputs": 10, "unattributed": 30}


def test_a_rank_above_the_lowest_is_confirmed_with_the_categories_that_differ(tmp_path: Path) -> None:
    high, low = judged(tmp_path, tables({**LOW, "activations": 80, "inputs": 8}, LOW))
    assert (high.verdict, high.bytes, high.cause) == ("confirmed", 18 * MIB, "more-activations")
    assert high.headline == (
        "The peak of 118 MiB is 18.0 MiB above that of rank 1: +20.0 MiB activations, -2.00 MiB inputs."
    )
    assert sum(row["more_bytes"] for row in high.evidence[1].rows) == high.bytes
    assert high.advice is not None
    assert "batches of the same size" in high.advice
    assert (low.verdict, low.bytes) == ("ruled_out", 0)


def test_another_phase_of_the_peak_is_said(tmp_path: Path) -> None:
    rows = tables({**LOW, "activations": 80}, LOW)
    rows["peaks"][0]["ts_ns"] = 110
    assert judged(tmp_path, rows)[0].headline.endswith(
        " It peaks in the forward of step 0, rank 1 in the backward of step 0."
    )


def test_peaks_within_five_percent_are_no_skew(tmp_path: Path) -> None:
    rows = tables(LOW, LOW)
    rows["peaks"][0]["allocated_bytes"] += 5 * MIB
    assert [(one.verdict, one.bytes) for one in judged(tmp_path, rows)] == [("ruled_out", 5 * MIB)] * 2


def test_a_rank_that_was_cut_leaves_alike_peaks_open(tmp_path: Path) -> None:
    found = judged(tmp_path, tables(LOW, LOW, LOW, cut=(2,)))
    assert [one.verdict for one in found] == ["unknown"] * 3


def test_a_difference_between_whole_ranks_is_one_whatever_the_others_do(tmp_path: Path) -> None:
    high, low, cut = judged(tmp_path, tables({**LOW, "activations": 80}, LOW, LOW, cut=(2,)))
    assert (high.verdict, low.verdict, cut.verdict) == ("confirmed", "ruled_out", "unknown")
    assert "(of 3 ranks, 2 could be compared)" in high.headline


def test_a_missing_rank_is_unknown_and_a_single_one_cannot_differ(tmp_path: Path) -> None:
    assert [one.verdict for one in judged(tmp_path / "a", tables(LOW), world_size=2)] == ["unknown", "unknown"]
    assert [one.verdict for one in judged(tmp_path / "b", tables(LOW))] == ["not_applicable"]
    fake = judged(tmp_path / "c", tables(LOW), world_size=4, fake_world=True)
    assert [one.verdict for one in fake] == ["not_applicable"]


def test_a_difference_without_an_owner_asks_for_a_better_capture(tmp_path: Path) -> None:
    high, _ = judged(tmp_path, tables({**LOW, "unattributed": 60}, LOW))
    assert high.cause == "more-unattributed"
    assert high.advice is not None
    assert "`zeropeak torch`" in high.advice
