from __future__ import annotations

import ast
import json
from importlib import import_module
from pathlib import Path

import pytest

from zeropeak.profile import ds_config
from zeropeak.profile.errors import UsageError
from zeropeak.profile.presets import PRESETS

TINY = PRESETS["tiny"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"zero_optimization": {stage: 3}}', "bad.json:1:24: not JSON: "),
        ('{\n  "a": nope\n}', "bad.json:2:8: not JSON: "),
        ("[]", "a DeepSpeed config is a JSON object, this is a list"),
        ("{}", "no zero_optimization section"),
        ('{"zero_optimization": {"stage": 0}}', "zero_optimization.stage is 0"),
        ('{"zero_optimization": {"stage": true}}', "zero_optimization.stage is True"),
        ('{"zero_optimization": {}}', "zero_optimization.stage is 0"),
    ],
)
def test_a_wrong_config_is_a_usage_error_that_says_where(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        ds_config.load(str(path))
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_config_names_the_shipped_ones() -> None:
    with pytest.raises(UsageError, match="stage2, stage3, stage3-efficient"):
        ds_config.load("stage4")


def test_shipped_configs_differ_in_the_knob_alone() -> None:
    off, on = ds_config.load("stage3").values, ds_config.load("stage3-efficient").values
    assert off["zero_optimization"].pop("memory_efficient_linear") is False
    assert on["zero_optimization"].pop("memory_efficient_linear") is True
    assert off == on


def test_scaling_keeps_the_same_vectors_persistent() -> None:
    config = ds_config.load("stage3")
    ds_config.scale(config, TINY)
    threshold = config.get("zero_optimization.stage3_param_persistence_threshold")
    # In the 6.9b model norms and the attention's output bias (4096) stay, the fused and the inner bias (12288) do not.
    assert TINY.hidden <= threshold < 3 * TINY.hidden
    live = config.get("zero_optimization.stage3_max_live_parameters")
    assert live == round(3e7 * TINY.parameters / PRESETS["6.9b"].parameters)
    assert all("scaled from the 6.9b model" in str(change["why"]) for change in config.changes)


def test_settings_are_typed_and_listed() -> None:
    config = ds_config.load("stage3")
    ds_config.apply_settings(config, ("zero_optimization.overlap_comm=false", "zero_optimization.x=abc"))
    assert config.get("zero_optimization.overlap_comm") is False
    assert config.changes[1] == {"key": "zero_optimization.x", "from": None, "to": "abc", "why": "--set"}


@pytest.mark.parametrize("setting", ["stage", "=3", "zero_optimization.stage=0", "gradient_clipping.x=1"])
def test_a_wrong_setting_is_a_usage_error(setting: str) -> None:
    with pytest.raises(UsageError):
        ds_config.apply_settings(ds_config.load("stage3"), (setting,))


def test_hugging_face_autos_are_filled_in_and_listed(tmp_path: Path) -> None:
    path = tmp_path / "hf.json"
    path.write_text(
        json.dumps(
            {
                "train_batch_size": "auto",
                "train_micro_batch_size_per_gpu": "auto",
                "bf16": {"enabled": "auto"},
                "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": "auto"},
            }
        )
    )
    config = ds_config.load(str(path))
    ds_config.fill(config, TINY, world_size=4, micro_batch=2, grad_accum=1, dtype="bf16")
    assert config.values["train_batch_size"] == 8
    assert config.values["bf16"]["enabled"] is True
    assert config.get("zero_optimization.stage3_prefetch_bucket_size") == int(0.9 * 256 * 256)
    assert "auto" not in json.dumps(config.values)
    assert {change["key"] for change in config.changes if change["from"] == "auto"} == {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "bf16.enabled",
        "zero_optimization.stage3_prefetch_bucket_size",
    }


def test_an_auto_without_a_known_meaning_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "hf.json"
    path.write_text('{"zero_optimization": {"stage": 3, "sub_group_size": "auto"}}')
    with pytest.raises(UsageError, match=r"--set zero_optimization.sub_group_size=VALUE"):
        ds_config.fill(ds_config.load(str(path)), TINY, world_size=1, micro_batch=1, grad_accum=1, dtype="bf16")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("foo.bar=1", "--set foo.bar: DeepSpeed reads no 'foo' there (a config file of your own may hold any key)"),
        ("gradient_cliping=1", "DeepSpeed reads no 'gradient_cliping' there; gradient_clipping? ("),
        ("reduce_bucket_size=1", "'reduce_bucket_size' there; zero_optimization.reduce_bucket_size? ("),
        ("zero_optimisation.stage=2", "'zero_optimisation' there; zero_optimization? ("),
    ],
)
def test_a_key_of_which_deepspeed_would_take_no_notice_is_refused(setting: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        ds_config.apply_settings(ds_config.load("stage3"), (setting,))
    assert said in str(refused.value)


def test_a_key_that_the_users_own_config_has_is_warned_about_and_may_be_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.json").write_text('{"zero_optimization": {"stage": 2}, "of_tomorrow": {"a": 1}}')
    config = ds_config.load(str(tmp_path / "own.json"))
    assert "own.json: DeepSpeed reads no 'of_tomorrow' there\n" in capsys.readouterr().err
    ds_config.apply_settings(config, ("of_tomorrow.a=2",))
    assert config.get("of_tomorrow.a") == 2


def test_every_key_that_the_installed_deepspeed_reads_is_known() -> None:
    module = import_module("deepspeed.runtime.config")

    def text(node: ast.expr) -> str | None:
        if isinstance(node, ast.Constant):
            return str(node.value)
        value = getattr(module, node.id, None) if isinstance(node, ast.Name) else None
        return value if isinstance(value, str) else None

    read = set()
    for node in ast.walk(ast.parse(Path(module.__file__ or "").read_text())):
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", "") == "get_scalar_param"
            and getattr(node.args[0], "id", "") == "param_dict"
        ):
            read.add(text(node.args[1]))
        if isinstance(node, ast.Compare) and getattr(node.comparators[0], "id", "") == "param_dict":
            read.add(text(node.left))
    assert len(read) > 20
    assert read - {None} <= ds_config.KEYS
