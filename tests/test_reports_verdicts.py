"""Page 1's words on many findings: what is so first and by bytes, the rest in a line each."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.ranks import MIB, rank
from tests.written import write_tables

from zeropeak.cli import report as verb
from zeropeak.reports import open_run
from zeropeak.reports.findings import IDS, TITLES, Basis, Finding, Verdict, find_all, ordered
from zeropeak.reports.verdicts import grouped, verdict_paragraphs

if TYPE_CHECKING:
    from pathlib import Path


def found(id_: str, verdict: str = "confirmed", number: Any = 0, **more: Any) -> Finding:
    about = {"headline": f"{id_} it is.", "advice": f"Mend {id_}. Or leave it.", "allocated_bytes": 100 * MIB, **more}
    return Finding(id_, Verdict(verdict), Basis.MEASURED, number, **about)


def said(*findings: Finding, total: int = 1, worst: int | None = 0) -> list[str]:
    paragraphs = verdict_paragraphs(grouped(ordered(findings), total, worst))
    return [f"{one.label}: {one.text}" for one in paragraphs]


def test_the_largest_is_told_in_full_and_the_next_two_briefly() -> None:
    lines = said(
        *(found(name, bytes=size * MIB) for name, size in (("a", 10), ("b", 40), ("c", 20), ("d", 5), ("e", 3)))
    )
    assert lines == [
        "Verdict: b (b): confirmed on rank 0. b it is.",
        "To know: Mend b. Or leave it.",
        "Also: c (c): confirmed on rank 0: 20.0 MiB (20 %). Mend c.",
        "Also: a (a): confirmed on rank 0: 10.0 MiB (10 %). Mend a.",
        "Also: d, 5.00 MiB (5 %); e, 3.00 MiB (3 %). See the page on findings.",
    ]


def test_ranks_that_say_the_same_are_folded_and_others_are_not() -> None:
    ranks = [found("a", number=n, bytes=9 * MIB, cause="x" if n < 3 else "y", headline=f"{n}.") for n in range(4)]
    assert said(*ranks, total=4, worst=1)[0] == "Verdict: a (a): confirmed on ranks 0-2, cause x. On rank 1: 1."
    assert said(*ranks[:3], total=3)[0].startswith("Verdict: a (a): confirmed on all 3 ranks")


def test_what_is_ruled_out_is_one_line_with_its_bytes() -> None:
    lines = said(found("a", "ruled_out", bytes=2048), found("b", "ruled_out", bytes=0), found("c", "ruled_out"))
    assert lines == ["Verdict: None of 3 findings is confirmed.", "Ruled out: a (2.00 KiB), b, c."]


def test_what_is_so_on_one_rank_is_not_said_to_be_ruled_out_on_another() -> None:
    lines = said(found("a", bytes=9 * MIB), found("a", "ruled_out", 1, bytes=0), found("b", "ruled_out", 1), total=2)
    assert lines[-1] == "Ruled out: b on rank 1."


def test_what_is_unknown_is_one_line_by_reason() -> None:
    lost = {"headline": "The curve is lost.", "advice": "Capture again. Or not."}
    lines = said(
        *(found(name, "unknown", **lost) for name in "ab"), found("c", "unknown", headline="No marks.", advice=None)
    )
    assert lines[-1] == "Unknown: a, b: The curve is lost. Capture again. c: No marks."
    other = {"headline": "No marks.", "advice": "Capture again."}
    lines = said(found("a", "unknown", **lost), found("b", "unknown", **other))
    assert lines[-1] == "Unknown: a: The curve is lost. b: No marks. Capture again."
    lines = said(*(found(name, "unknown", number, **lost) for name in "abcde" for number in (0, 1)), total=3)
    assert lines[-1] == "Unknown: 5 findings on ranks 0, 1: The curve is lost. Capture again."


def test_a_guess_and_a_trifle_are_named_as_such() -> None:
    lines = said(found("a", "suspected", bytes=9 * MIB), found("b", bytes=900))
    assert lines == [
        "Verdict: None of 2 findings is confirmed with any weight.",
        "Suspected: a (a): suspected on rank 0: 9.00 MiB (9 %). Mend a.",
        "Small: b (b): confirmed, but small, on rank 0, 900 B (<1 %).",
    ]


def test_what_cannot_occur_is_for_the_page_on_findings_only() -> None:
    assert said(found("a", "not_applicable")) == ["Verdict: None of 1 finding is confirmed."]


def test_every_finding_gives_one_a_rank_and_json_also_of_nothing(tmp_path: Path) -> None:
    run = open_run(write_tables(tmp_path, {"ranks": [rank(world_size=2)]}, world_size=2))
    findings = find_all(run)
    assert sorted((one.id, one.rank) for one in findings) == sorted((id_, n) for id_ in IDS for n in (0, 1))
    assert {one.verdict for one in findings if one.rank == 1} == {"unknown"}
    assert all(one.advice for one in findings if one.verdict == "unknown")
    assert set(TITLES) == set(IDS)


@pytest.mark.parametrize("id_", IDS)
def test_fail_on_takes_every_id(tmp_path: Path, id_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for verdict, code in (("confirmed", 3), ("predicted", 3), ("unknown", 1), ("suspected", 0), ("ruled_out", 0)):
        monkeypatch.setattr(verb, "write_and_tell", lambda *_, verdict=verdict: [found(id_, verdict)])
        assert verb.run(Namespace(runs=[tmp_path], fail_on=[id_], at=None)) == code
