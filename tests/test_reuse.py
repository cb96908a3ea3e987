"""Which run can stand for a new capture, and why another cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from zeropeak.cli.turning import check_here, check_versions, turn
from zeropeak.profile.errors import TraceError, UsageError, ZeropeakError
from zeropeak.profile.options import Options, Plan
from zeropeak.profile.planning import make_plan
from zeropeak.profile.reuse import read_plan, why_not

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = {"torch": "2.13.0", "deepspeed": "0.19.8", "nsys": None}


def plan(*settings: str, steps: int = 3) -> Plan:
    return make_plan(Options("stage3", steps=steps, settings=settings), "torch", [])


def captured(path: Path, made: Plan, status: str = "complete") -> Path:
    (path / "raw").mkdir(parents=True)
    made.save(path / "raw" / "plan.json")
    about = {"schema": 1, "tool": "torch", "status": status, "versions": VERSIONS, "created_unix_ns": 1}
    (path / "run.json").write_text(json.dumps(about))
    return path


def test_the_same_plan_and_versions_can_be_reused(tmp_path: Path) -> None:
    assert why_not(captured(tmp_path / "r", plan()), plan(), VERSIONS) is None


@pytest.mark.parametrize(
    ("status", "wanted", "versions", "reason"),
    [
        ("out_of_memory", plan(), VERSIONS, "its status is out of memory"),
        ("complete", plan(steps=2), VERSIONS, "steps is 3, not 2"),
        (
            "complete",
            plan("zero_optimization.reduce_bucket_size=7"),
            VERSIONS,
            "ds_config.zero_optimization.reduce_bucket_size is 498948, not 7",
        ),
        ("complete", plan(), {**VERSIONS, "torch": "3"}, "torch is 2.13.0, not 3"),
        ("complete", plan(), {**VERSIONS, "nsys": "2025"}, "nsys is absent, not 2025"),
    ],
)
def test_what_differs_is_said(
    tmp_path: Path, status: str, wanted: Plan, versions: dict[str, str | None], reason: str
) -> None:
    assert why_not(captured(tmp_path / "r", plan(), status), wanted, versions) == reason


def test_training_text_that_was_written_since_is_another(tmp_path: Path) -> None:
    text = tmp_path / "data.jsonl"
    text.write_text('{"text": "a"}')
    made = replace(plan(), data=str(text))
    assert why_not(captured(tmp_path / "r", made), made, VERSIONS) == "the training text has changed since"


def test_a_run_from_elsewhere_has_no_plan(tmp_path: Path) -> None:
    run = captured(tmp_path / "r", plan())
    (run / "raw" / "plan.json").unlink()
    assert read_plan(run) is None
    assert why_not(run, plan(), VERSIONS) == "it has no plan"
    assert why_not(tmp_path / "nothing", plan(), VERSIONS) == "no run is there"


@pytest.mark.parametrize("content", ["{", "{}", '{"tool": "nsys", "of_a_newer": 1}', "[]"])
def test_a_damaged_plan_is_a_trace_error(tmp_path: Path, content: str) -> None:
    run = captured(tmp_path / "r", plan())
    (run / "raw" / "plan.json").write_text(content)
    with pytest.raises(TraceError, match=r"plan\.json: not a plan of this zeropeak"):
        read_plan(run)
    assert why_not(run, plan(), VERSIONS) == "its plan cannot be read"


def test_a_knob_is_turned_as_set_would_and_nothing_else_moves() -> None:
    before = plan()
    after = turn(before, "zero_optimization.memory_efficient_linear", True)
    assert after == replace(
        before,
        ds_config={
            **before.ds_config,
            "zero_optimization": {**before.ds_config["zero_optimization"], "memory_efficient_linear": True},  # type: ignore[dict-item]
        },
        config_changes=[
            *before.config_changes,
            {"key": "zero_optimization.memory_efficient_linear", "from": False, "to": True, "why": "--set"},
        ],
    )


def test_a_stage_3_knob_keeps_the_name_that_the_config_has() -> None:
    zero = turn(plan(), "zero_optimization.max_reuse_distance", 0).ds_config["zero_optimization"]
    assert isinstance(zero, dict)
    assert zero["stage3_max_reuse_distance"] == 0
    assert "max_reuse_distance" not in zero
    assert turn(plan(), "gradient_clipping", 0.5).ds_config["gradient_clipping"] == 0.5


def test_other_devices_models_and_texts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check_here(tmp_path, plan())
    with pytest.raises(ZeropeakError, match="was captured on 2 GPUs and this machine sees no GPU"):
        check_here(tmp_path, replace(plan(), device="cuda", gpus=2))
    with pytest.raises(UsageError, match="its training text gone is not here"):
        check_here(tmp_path, replace(plan(), data="gone"))
    with pytest.raises(UsageError, match="its model my/llama is not here"):
        check_here(tmp_path, replace(plan(), model={"source": "my/llama"}))


def test_other_versions_are_refused_before_anything_runs(tmp_path: Path) -> None:
    check_versions(tmp_path, VERSIONS, VERSIONS)
    with pytest.raises(ZeropeakError, match=r"deepspeed 0\.19\.8, now 0\.20"):
        check_versions(tmp_path, VERSIONS, {**VERSIONS, "deepspeed": "0.20"})
