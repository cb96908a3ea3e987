"""In what runs differ."""

from __future__ import annotations

import doctest
import importlib
from typing import TYPE_CHECKING, Any

import pytest

from zeropeak.reports.compare import reported
from zeropeak.reports.compare.moment import FIRST_FORWARD, INIT, PEAK
from zeropeak.reports.compare.settings import differences
from zeropeak.reports.compare.side import Side
from zeropeak.reports.run import Run

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = {
    "world_size": 4,
    "seq": 8,
    "micro_batch": 1,
    "grad_accum": 1,
    "model": {"layers": 2},
    "versions": {"torch": "2"},
}
SEED_MODEL = {"layers": 32, "hidden": 4096, "heads": 32, "vocab": 50432}


def run(path: Path, zero: dict[str, Any] | None = None, ds: dict[str, Any] | None = None, **about: Any) -> Run:
    (path / "tables").mkdir(parents=True, exist_ok=True)
    return Run(path, {**PLAIN, "ds_config": {"zero_optimization": {"stage": 3, **(zero or {})}, **(ds or {})}, **about})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"stage3_max_reuse_distance": 1e9}, {"max_reuse_distance": 1_000_000_000}),
        ({"offload_param": {"device": "none"}}, {}),
        ({"offload_param": {}}, {}),
    ],
)
def test_the_same_said_otherwise_is_no_difference(tmp_path: Path, one: dict[str, Any], other: dict[str, Any]) -> None:
    assert differences(run(tmp_path, one), run(tmp_path, other)).settings == ()


def test_what_logs_or_says_the_batch_once_more_is_no_difference(tmp_path: Path) -> None:
    ds = {"steps_per_print": 10, "train_batch_size": 64, "fp16": {"enabled": False}, "wandb": {"enabled": True}}
    assert differences(run(tmp_path, ds=ds), run(tmp_path)).settings == ()


def test_knobs_models_and_versions_are_differences(tmp_path: Path) -> None:
    found = differences(
        run(tmp_path, {"overlap_comm": True}),
        run(tmp_path, {"overlap_comm": 1}, model={"layers": 3}, versions={"torch": "3"}, backend="nccl"),
    )
    assert [one.words() for one in found.settings] == [
        "zero_optimization.overlap_comm (true, 1)",
        "model.layers (2, 3)",
        "versions.torch (2, 3)",
    ]


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ({"preset": "…/a/llama"}, {"preset": "…/b/llama-mine"}, ["model.preset (llama, llama-mine)"]),
        ({"preset": "…/llama"}, {"preset": "llama/"}, []),
        ({"intermediate": 11008}, {"intermediate": 8192}, ["model.intermediate (11,008, 8,192)"]),
        ({"intermediate": 11008}, {}, []),  # of an older zeropeak, which did not write it
    ],
)
def test_another_model_of_the_same_layers_is_a_difference(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any], words: list[str]
) -> None:
    alike = {"layers": 2, "hidden": 8, "heads": 2, "vocab": 10}
    found = differences(run(tmp_path, model={**alike, **one}), run(tmp_path, model={**alike, **other}))
    assert [difference.words() for difference in found.settings] == words


def test_a_knob_that_one_config_leaves_out_is_what_deepspeed_made_of_it(tmp_path: Path) -> None:
    (tmp_path / "a" / "raw" / "rank-0").mkdir(parents=True)
    (tmp_path / "a" / "raw" / "rank-0" / "rank.json").write_text('{"rank": 0, "zero": {"max_reuse_distance": 7}}')
    from tests.written import write_tables

    write_tables(tmp_path / "a", {"ranks": [{"rank": 0}]})
    silent = run(tmp_path / "a")
    assert differences(silent, run(tmp_path / "b", {"stage3_max_reuse_distance": 7})).settings == ()
    [one] = differences(silent, run(tmp_path / "b", {"stage3_max_reuse_distance": 8})).settings
    assert one.words() == "zero_optimization.stage3_max_reuse_distance (7, 8)"


def test_what_a_run_does_not_say_is_not_known(tmp_path: Path) -> None:
    found = differences(run(tmp_path), Run(tmp_path, {}))
    assert found.settings == ()
    assert found.unknown == (
        "the DeepSpeed config",
        "world_size",
        "seq",
        "micro_batch",
        "grad_accum",
        "the model",
        "the versions",
    )


@pytest.mark.parametrize(
    ("model", "zero", "figures"),
    [
        (SEED_MODEL, {"stage": 2}, ["16.6 GB", "32.4 GB", None]),
        (SEED_MODEL, {"stage": 3, "memory_efficient_linear": False}, ["6.6 GB", "36.6 GB", None]),
        (SEED_MODEL, {"stage": 3, "memory_efficient_linear": True}, None),
        (SEED_MODEL, {"stage": 1}, None),
        ({**SEED_MODEL, "layers": 24}, {"stage": 2}, None),
    ],
)
def test_the_bug_reports_figures_stand_beside_its_own_model_and_setting_only(
    tmp_path: Path, model: dict[str, Any], zero: dict[str, Any], figures: list[str | None] | None
) -> None:
    from tests.written import write_tables

    write_tables(tmp_path / "r", {"ranks": [{"rank": 0}]})
    found = reported.reported(Side(run(tmp_path / "r", zero, model=model), "r"))
    assert (None if found is None else [found.at(moment) for moment in (INIT, FIRST_FORWARD, PEAK)]) == figures
    assert found is None or "DeepSpeed 0.10.2" in found.source


@pytest.mark.parametrize("name", ["reports.compare.answer", "reports.compare.moment", "reports.compare.overlap",
                                  "reports.compare.settings", "cli.compare"])  # fmt: skip
def test_examples_in_docstrings_hold(name: str) -> None:
    tried = doctest.testmod(importlib.import_module(f"zeropeak.{name}"))
    assert tried.attempted
    assert not tried.failed
