"""compare and verify at the command line; captures are played by synthetic runs put in their place."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from zeropeak.cli import gathering
from zeropeak.cli.main import main
from zeropeak.parse.pipeline import parse_run
from zeropeak.profile import capture, manifest
from zeropeak.profile.capture import Captured
from zeropeak.profile.errors import ZeropeakError
from zeropeak.profile.labels import Status
from zeropeak.reports.compare import figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import MakeRun

    from zeropeak.profile.options import Plan

VERSIONS = {"torch": "2.13.0", "deepspeed": "0.19.8"}
WORDS = ("compare", "stage3", "stage3-efficient", "--tool", "torch")


class Played:
    """What a capture does to the disk, and which ones there were."""

    def __init__(self, make_run: MakeRun) -> None:
        self._make = make_run
        self._numbers = itertools.count()
        self.made: list[str] = []
        self.ends: dict[str, Status | ZeropeakError] = {}
        self.caps: list[int] = []

    def __call__(self, plan: Plan, run_dir: Path, *, nsys: object, disk_cap: int) -> Captured:
        self.made.append(run_dir.name)
        self.caps.append(disk_cap)
        end = self.ends.get(run_dir.name, Status.COMPLETE)
        if isinstance(end, ZeropeakError):
            raise end
        zero: Any = plan.ds_config["zero_optimization"]
        run = self._make(f"played-{next(self._numbers)}", retain=not zero["memory_efficient_linear"])
        capture.prepare(run_dir)
        shutil.copytree(run, run_dir, dirs_exist_ok=True)
        plan.save(run_dir / "raw" / "plan.json")
        manifest.update(run_dir, name=run_dir.name, status=end.value, versions=VERSIONS, tool=plan.tool)
        return Captured(run_dir, end, None, 1.0, 1)


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of the time, and other tests look at it."""
    monkeypatch.setattr(figures, "drawings", lambda _: [])


@pytest.fixture
def played(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    one = Played(make_run)
    monkeypatch.setattr(gathering, "capture_run", one)
    monkeypatch.setattr(gathering, "end_in_order", lambda: None)
    monkeypatch.setattr(capture, "versions", lambda _: VERSIONS)
    return one


@pytest.fixture
def parsed(make_run: MakeRun) -> Callable[..., str]:
    def make(name: str, **how: Any) -> str:
        run = make_run(name, **how)
        parse_run(run)
        return str(run)

    return make


def told(folder: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(folder) / "report" / "comparison.json").read_text())
    return content


def test_configs_are_captured_and_compared(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(WORDS) == 0
    out = capsys.readouterr().out
    assert played.made == ["stage3", "stage3-efficient"]
    assert "Verdict: Cause confirmed" in out
    assert out.splitlines()[-1] == "Wrote runs/compare-stage3-stage3-efficient/report/comparison.pdf"
    assert [run["how"] for run in told("runs/compare-stage3-stage3-efficient")["runs"]] == ["captured", "captured"]


def test_complete_runs_of_the_same_plan_are_reused(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(WORDS) == main(WORDS) == 0
    assert played.made == ["stage3", "stage3-efficient"]
    assert "stage3: reusing runs/compare-stage3-stage3-efficient/stage3 (complete" in capsys.readouterr().out
    assert main([*WORDS, "--force"]) == 0
    assert played.made == ["stage3", "stage3-efficient"] * 2


def test_a_run_of_the_capture_verb_is_reused_when_it_matches(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, "--out", "runs/first"]) == 0
    Path("runs/first/stage3").rename("runs/torch-stage3")
    Path("runs/first/stage3-efficient").rename("runs/torch-stage3-efficient")
    manifest.update(Path("runs/torch-stage3-efficient"), versions={"torch": "1"})
    assert main(WORDS) == 0
    out = capsys.readouterr().out
    assert "stage3: reusing runs/torch-stage3 (" in out
    assert "stage3-efficient: not reusing runs/torch-stage3-efficient: torch is 1, not 2.13.0" in out
    assert played.made == ["stage3", "stage3-efficient", "stage3-efficient"]


def test_another_complete_run_in_the_place_is_never_overwritten_unasked(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(WORDS) == 0
    assert main([*WORDS, "--steps", "2"]) == 2
    said = capsys.readouterr().err
    assert "stage3: not what is asked for (steps is 3, not 2); --force captures all again" in said
    assert len(played.made) == 2


def test_a_failed_capture_is_said_and_the_others_are_compared(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    played.ends["stage2"] = ZeropeakError("no room")
    played.ends["stage3"] = Status.OUT_OF_MEMORY
    assert main(["compare", "stage2", "stage3", "stage3-efficient", "--tool", "torch"]) == 1
    out = capsys.readouterr().out
    assert "stage2: not captured: no room" in out
    assert "! stage2 is left out: not captured: no room." in out
    assert "! stage3 did not end by itself (out of memory)" in out
    assert played.made == ["stage2", "stage3", "stage3-efficient"]
    played.ends.clear()
    assert main(["compare", "stage2", "stage3", "stage3-efficient", "--tool", "torch"]) == 0
    assert played.made[3:] == ["stage2", "stage3"], "what failed is captured again, what is complete is reused"


def test_an_interrupt_ends_it_and_the_next_start_goes_on(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    played.ends["stage3-efficient"] = Status.INTERRUPTED
    assert main([*WORDS[:3], "stage2", *WORDS[3:]]) == 130
    assert played.made == ["stage3", "stage3-efficient"]
    assert "stage3-efficient: interrupted; the same command goes on from here" in capsys.readouterr().out
    played.ends.clear()
    assert main([*WORDS[:3], "stage2", *WORDS[3:]]) == 0
    assert played.made[2:] == ["stage3-efficient", "stage2"]


def test_the_disk_cap_is_of_all_captures_together(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--disk-cap", "20MiB"]) == 1
    assert "may take" in capsys.readouterr().err
    assert played.made == []
    assert main([*WORDS, "--disk-cap", "100MiB"]) == 0
    assert played.caps[0] == 100 * 2**20
    assert played.caps[1] < played.caps[0]


def test_a_config_named_twice_is_captured_twice(played: Played) -> None:
    assert main(["compare", "stage3", "stage3", "--tool", "torch"]) == 0
    assert played.made == ["stage3", "stage3-2"]


def test_runs_that_exist_are_compared_where_they_lie(parsed: Callable[..., str], tmp_path: Path) -> None:
    words = ["compare", parsed("before"), parsed("after", retain=False), "--out", str(tmp_path / "c")]
    assert main(words) == main(words) == 0
    assert [run["label"] for run in told(str(tmp_path / "c"))["runs"]] == ["before", "after"]


def test_a_run_and_a_config_can_be_compared(played: Played, parsed: Callable[..., str]) -> None:
    assert main(["compare", parsed("mine"), "stage3-efficient", "--tool", "torch", "--out", "c"]) == 0
    assert [run["label"] for run in told("c")["runs"]] == ["mine", "stage3-efficient"]


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (("compare", "stage2"), "name two or more"),
        (("compare", "stage2", "stage4"), "neither one of stage2, stage3"),
        (("compare", "stage2", "stage3", "--ranks", "0"), "--ranks 0"),
        (("verify", "nowhere"), "no such run directory"),
    ],
)
def test_wrong_usage_exits_2(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], way_out: str) -> None:
    assert main(words) == 2
    assert way_out in capsys.readouterr().err


def test_options_without_a_config_are_refused(parsed: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    run = parsed("one")
    assert main(["compare", run, run, "--steps", "2"]) == 2
    assert "only runs are named" in capsys.readouterr().err


def test_a_folder_that_is_not_of_a_comparison_is_left_alone(
    parsed: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = parsed("one")
    precious = tmp_path / "mine" / "notes.txt"
    precious.parent.mkdir()
    precious.write_text("mine")
    for place in (precious.parent, precious, Path(run)):
        assert main(["compare", run, run, "--out", str(place), "--force"]) == 2
        assert "choose another --out" in capsys.readouterr().err
    assert precious.read_text() == "mine"


def test_another_comparisons_report_needs_force(
    parsed: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = parsed("one"), parsed("other", retain=False)
    out = ("--out", str(tmp_path / "c"))
    assert main(["compare", one, other, *out]) == 0
    assert main(["compare", other, one, *out]) == 2
    assert "compares one, other; --force overwrites its report" in capsys.readouterr().err
    assert main(["compare", other, one, *out, "--force"]) == 0


@pytest.fixture
def own(played: Played, parsed: Callable[..., str]) -> Path:
    """A run with a plan, as a capture leaves it."""
    assert main([*WORDS, "--out", "first"]) == 0
    played.made.clear()
    return Path("first/stage3")


def test_verify_turns_the_knob_and_the_saving_comes(
    own: Path, played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(own)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "The saving came."
    assert played.made == ["after"]
    plan = json.loads(Path("runs/verify-stage3/after/raw/plan.json").read_text())
    assert plan["ds_config"]["zero_optimization"]["memory_efficient_linear"] is True
    assert plan["config_changes"][-1]["why"] == "--set"
    assert told("runs/verify-stage3")["pairs"][0]["verdicts"][0]["verdict"] == "confirmed"


def test_verify_exits_3_when_the_saving_does_not_come(
    own: Path, played: Played, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_vain(plan: Plan, run_dir: Path, **how: Any) -> Captured:
        captured = Played.__call__(played, plan, run_dir, **how)
        shutil.rmtree(run_dir / "raw" / "rank-0")
        shutil.rmtree(run_dir / "raw" / "rank-1")
        for rank in ("rank-0", "rank-1"):
            shutil.copytree(own / "raw" / rank, run_dir / "raw" / rank)
        manifest.update(run_dir, ds_config={"zero_optimization": {"stage": 3, "memory_efficient_linear": True}})
        return captured

    monkeypatch.setattr(gathering, "capture_run", in_vain)
    assert main(["verify", str(own)]) == 3
    assert capsys.readouterr().out.splitlines()[-1] == "The saving did not come."


def test_verify_cannot_tell_when_the_new_run_fails(
    own: Path, played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    played.ends["after"] = ZeropeakError("no room")
    assert main(["verify", str(own)]) == 1
    assert "fewer than two runs to compare" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["plan", "basis", "finding", "versions"])
def test_verify_refuses_with_the_way_out(
    own: Path, played: Played, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    words = ["verify", str(own)]
    if what == "plan":
        (own / "raw" / "plan.json").unlink()
        way_out = "capture it before and after"
    elif what == "basis":
        manifest.update(own, basis="simulated")
        way_out = "was simulated"
    elif what == "versions":
        manifest.update(own, versions={**VERSIONS, "torch": "1"})
        way_out = "capture it again first"
    else:
        words = ["verify", "first/stage3-efficient", "--finding", "retained-after-release"]
        way_out = "retained-after-release (ruled out) names no knob"
    assert main(words) == 1
    assert way_out in capsys.readouterr().err
    assert played.made == []


def test_verify_knows_its_findings(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(own), "--finding", "nothing"]) == 2
    assert "one of retained-after-release" in capsys.readouterr().err
