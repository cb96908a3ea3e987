"""The report folder of a comparison, and its words."""

from __future__ import annotations

import getpass
import json
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.test_reports_document import pdf_content

from zeropeak.parse.pipeline import parse_run
from zeropeak.reports import open_run
from zeropeak.reports.compare import Side, compare, write_comparison
from zeropeak.reports.compare.answer import answer
from zeropeak.reports.compare.figures import drawings

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import MakeRun

    from zeropeak.reports.compare import Comparison


@pytest.fixture
def compared(make_run: MakeRun) -> Callable[..., Comparison]:
    """A run and the same with its knob turned; ``about`` changes the second one's manifest."""

    def make(**about: Any) -> Comparison:
        runs = [make_run("off"), make_run("on", retain=False)]
        values = json.loads((runs[1] / "run.json").read_text())
        (runs[1] / "run.json").write_text(json.dumps({**values, **about}))
        for run in runs:
            parse_run(run)
        return compare([Side(open_run(run), run.name) for run in runs])

    return make


def test_the_report_folder(compared: Callable[..., Comparison], tmp_path: Path) -> None:
    written = write_comparison(compared(), tmp_path / "c")
    report = tmp_path / "c" / "report"
    assert sorted(path.name for path in report.iterdir()) == sorted(path.name for path in written.paths)
    assert {path.name for path in written.paths} == {
        "comparison.pdf",
        "moments.png",
        "waterfall-off-to-on.png",
        "by-phase.png",
        "ranks.png",
        "comparison.json",
    }
    content = pdf_content(written.paths[0]) + b"".join(path.read_bytes() for path in written.paths[1:])
    assert content.count(b"/FontFile2") >= 2
    for private in (getpass.getuser(), socket.gethostname(), str(Path.home()), str(tmp_path)):
        assert f"{private}/".encode() not in content
    assert b"/CreationDate" not in content
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["report"]


def test_comparison_json_says_what_the_pages_say(compared: Callable[..., Comparison], tmp_path: Path) -> None:
    write_comparison(compared(), tmp_path / "c")
    told = json.loads((tmp_path / "c" / "report" / "comparison.json").read_text())
    assert (told["schema"], told["ranks"], told["steps"], told["rank_shown"]) == (1, [0, 1], [-1, 0, 1], 0)
    assert [(run["label"], run["basis"]) for run in told["runs"]] == [("off", "measured"), ("on", "measured")]
    assert {(cell["run"], cell["at"]): cell["bytes"] for cell in told["table"]} == {
        ("off", "init"): 2048,
        ("off", "forward"): 14336,
        ("off", "peak"): 31232,
        ("on", "init"): 2048,
        ("on", "forward"): 6144,
        ("on", "peak"): 23040,
    }
    [pair] = told["pairs"]
    assert pair["differ_in"] == [{"key": "zero_optimization.memory_efficient_linear", "before": False, "after": True}]
    for fall in pair["waterfalls"]:
        assert sum(fall["parts"].values()) == fall["difference_bytes"] == fall["after_bytes"] - fall["before_bytes"]
    [verdict] = pair["verdicts"]
    assert (verdict["verdict"], verdict["of"], verdict["turned_in"]) == ("confirmed", "off", "on")
    assert {point["relative_error"] for point in verdict["points"]} == {0.0}
    assert told["phases"][1]["peak_bytes"].keys() == {"off", "on"}


def test_the_verdict_is_a_sentence_with_both_numbers_and_the_error(compared: Callable[..., Comparison]) -> None:
    page_1 = answer(compared())
    assert page_1.headline == (
        "Cause confirmed: with memory_efficient_linear true, on holds 8.00 KiB less after the first forward than off; "
        "8.00 KiB less was predicted"
    )
    verdict = next(paragraph.text for paragraph in page_1.paragraphs if paragraph.label == "Verdict")
    assert "falls by 8.00 KiB at the peak (30.5 KiB to 22.5 KiB; 8.00 KiB less predicted, 0 % off)" in verdict


def test_a_simulated_run_is_named_so_wherever_its_figures_stand(
    compared: Callable[..., Comparison], tmp_path: Path
) -> None:
    comparison = compared(basis="simulated")
    written = write_comparison(comparison, tmp_path / "c")
    [line] = [line for line in written.lines if line.startswith("on")]
    assert line.startswith("on (simulated)")
    for text in [line for line in written.lines if re.search(r"\bon\b", line) and "KiB" in line and line[:2] != "on"]:
        assert "on (simulated)" in text or "peak on" in text
    assert answer(comparison).headline.startswith("Cause predicted (a run was simulated)")
    told = json.loads((tmp_path / "c" / "report" / "comparison.json").read_text())
    assert {cell["basis"] for cell in told["table"] if cell["run"] == "on"} == {"simulated"}
    assert (told["pairs"][0]["basis"], told["pairs"][0]["verdicts"][0]["verdict"]) == ("simulated", "predicted")
    assert {tuple(phase["simulated"]) for phase in told["phases"]} == {("on",)}
    assert any("was simulated, none of it measured" in limit for limit in told["limits"])


def test_many_runs_get_a_figure_for_each_against_the_first(compared: Callable[..., Comparison]) -> None:
    sides = compared().sides
    many = compare([Side(sides[n % 2].run, f"run-{n}") for n in range(9)])
    names = [drawing.name for drawing in drawings(many)]
    assert len(many.pairs) == 36
    assert [name for name in names if name.startswith("waterfall")] == [
        f"waterfall-run-0-to-run-{n}" for n in range(1, 9)
    ]


def test_the_same_runs_give_the_same_files(compared: Callable[..., Comparison], tmp_path: Path) -> None:
    comparison = compared()
    one, other = (write_comparison(comparison, tmp_path / place / "c").paths for place in ("a", "b"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]
