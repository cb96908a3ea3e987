from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from zeropeak.profile.errors import UsageError
from zeropeak.profile.gpus import Gpu
from zeropeak.profile.options import Options, Plan
from zeropeak.profile.planning import make_plan
from zeropeak.profile.presets import PRESETS, read_shape

if TYPE_CHECKING:
    from pathlib import Path

H200 = Gpu("NVIDIA H200", 139 * 2**30)


def test_on_cpu_the_tiny_model_trains_in_bf16_over_gloo_with_scaled_knobs() -> None:
    plan = make_plan(Options("stage3"), "nsys", [])
    assert (plan.device, plan.backend, plan.model["source"], plan.dtype, plan.seq) == (
        "cpu",
        "gloo",
        "tiny",
        "bf16",
        128,
    )
    assert plan.lora_rank == 8
    assert any("scaled" in str(change["why"]) for change in plan.config_changes)


@pytest.mark.parametrize(
    ("ranks", "gpus", "fake", "backend", "processes"),
    [(4, 4, False, "nccl", 4), (4, 2, False, "gloo", 4), (4, 1, True, "fake", 1), (1, 1, False, "nccl", 1)],
)
def test_backend_follows_ranks_and_gpus(ranks: int, gpus: int, fake: bool, backend: str, processes: int) -> None:
    plan = make_plan(Options("stage3", ranks=ranks, fake=fake), "nsys", [H200] * gpus)
    assert (plan.backend, plan.processes, plan.world_size) == (backend, processes, ranks)


def test_the_largest_preset_that_fits_is_taken_and_nothing_is_scaled() -> None:
    plan = make_plan(Options("stage3"), "nsys", [H200])
    assert plan.model["source"] == "1.4b"  # four ranks share one GPU with a tenth to spare
    assert make_plan(Options("stage3"), "nsys", [H200] * 4).model["source"] == "6.9b"
    assert plan.ds_config["zero_optimization"]["stage3_max_live_parameters"] == 3e7  # type: ignore[index]
    assert (plan.dtype, plan.seq) == ("fp16", 1200)


def test_a_users_config_is_never_scaled_and_its_batch_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}')
    plan = make_plan(Options(str(path)), "torch", [])
    assert (plan.config_name, plan.micro_batch, plan.dtype) == ("mine", 2, "fp32")
    assert plan.ds_config["train_batch_size"] == 8
    assert not [change for change in plan.config_changes if "scaled" in str(change["why"])]


@pytest.mark.parametrize(
    "options",
    [
        Options("stage3", ranks=0),
        Options("stage3", steps=0),
        Options("stage3", model="7b"),
        Options("stage3", data="missing.jsonl"),
        Options("stage3", lora="qlora"),
    ],
)
def test_wrong_options_are_usage_errors(options: Options) -> None:
    with pytest.raises(UsageError, match=r"^--"):
        make_plan(options, "nsys", [])


def test_a_plan_reads_back(tmp_path: Path) -> None:
    plan = make_plan(Options("stage2", settings=("gradient_clipping=0.5",)), "nsys", [])
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_pythia_presets_have_the_published_sizes() -> None:
    published = {"70m": 70_426_624, "410m": 405_334_016, "1.4b": 1_414_647_808, "6.9b": 6_857_302_016}
    assert {name: PRESETS[name].parameters for name in published} == published


def test_sizes_are_read_from_a_hugging_face_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 10}))
    shape = read_shape(str(tmp_path))
    assert (shape.layers, shape.hidden, shape.heads, shape.vocab, shape.intermediate) == (2, 8, 2, 10, None)
    (tmp_path / "config.json").write_text('{"n_layer": 2}')
    with pytest.raises(UsageError, match="n_embd"):
        read_shape(str(tmp_path))


def test_gradient_accumulation_is_what_the_configs_batch_means(tmp_path: Path) -> None:
    path = tmp_path / "seed.json"
    path.write_text('{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}')
    assert make_plan(Options(str(path), ranks=4), "torch", []).grad_accum == 16
    assert make_plan(Options(str(path), ranks=4, grad_accum=2), "torch", []).ds_config["train_batch_size"] == 8


def test_broken_training_text_is_said_before_any_rank_starts(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "a\u2028b"}\n{"text": }\n')
    with pytest.raises(UsageError, match=r"data.jsonl:2:10: not JSON"):
        make_plan(Options("stage3", data=str(path)), "torch", [])


def test_a_prediction_needs_no_gpu_and_means_what_gpus_mean() -> None:
    plan = make_plan(Options("stage3", ranks=64), "predict", [], simulated=True)
    assert (plan.device, plan.backend, plan.processes, plan.world_size) == ("simulated", "fake", 1, 64)
    assert (plan.model["source"], plan.seq, plan.dtype, plan.lora_rank) == ("6.9b", 1200, "fp16", 128)
    assert not [change for change in plan.config_changes if "scaled" in str(change["why"])]


def test_a_batch_that_does_not_divide_into_the_ranks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "seed.json"
    path.write_text('{"train_batch_size": 64, "zero_optimization": {"stage": 3}}')
    with pytest.raises(UsageError, match="train_batch_size 64 does not divide into 3 ranks"):
        make_plan(Options(str(path), ranks=3), "predict", [], simulated=True)


def test_sizes_of_a_language_model_within_a_larger_one_are_found(tmp_path: Path) -> None:
    inner = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 10}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "both", "text_config": inner}))
    assert read_shape(str(tmp_path)).hidden == 8
    inner["intermediate_size"] = 24
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "both", "text_config": inner}))
    assert make_plan(Options("stage3", model=str(tmp_path)), "torch", []).model["intermediate"] == 24


@pytest.mark.parametrize(
    ("setting", "name", "value"),
    [
        ("train_micro_batch_size_per_gpu=4", "micro_batch", 4),
        ("gradient_accumulation_steps=4", "grad_accum", 4),
        ("train_batch_size=64", "grad_accum", 16),
    ],
)
def test_a_batch_size_that_is_set_is_kept(setting: str, name: str, value: int) -> None:
    plan = make_plan(Options("stage3", settings=(setting,)), "torch", [])
    assert getattr(plan, name) == value
    key, _, number = setting.partition("=")
    assert plan.ds_config[key] == int(number)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (('bf16.enabled="auto"',), "--dtype"),
        (("bf16.enabled=true", "fp16.enabled=true"), "both enabled"),
        (('train_batch_size="8"',), "a whole number"),
    ],
)
def test_settings_that_would_be_guessed_at_are_refused(settings: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_plan(Options("stage3", settings=settings), "torch", [])


def test_more_ranks_than_can_be_predicted_are_refused_and_may_be_captured() -> None:
    with pytest.raises(UsageError, match="--ranks 1000000: at most 16,384 can be predicted"):
        make_plan(Options("stage3", ranks=1_000_000), "predict", [], simulated=True)
    assert make_plan(Options("stage3", ranks=1_000_000, fake=True), "nsys", []).world_size == 1_000_000
