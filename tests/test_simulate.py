"""Predictions of a tiny model, each in a process of its own as in real use."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from zeropeak.profile.simulate.workspace import constants
from zeropeak.reports import open_run
from zeropeak.reports.basis import fits
from zeropeak.reports.findings import find_all

if TYPE_CHECKING:
    from zeropeak.reports.run import Run

ROOT = Path(__file__).parents[1]
ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / stage) for stage in ("profile", "parse", "reports"))}


def predict(folder: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "zeropeak.cli", "predict", *words, "--out", str(folder)]
    answer = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, check=False)
    return answer.returncode, answer.stdout + answer.stderr


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("predict") / "run"
    code, said = predict(folder, "stage3", "--model", "tiny", "--seq", "64", "--gpu-memory", "4GiB")
    assert code == 0, said
    return folder, said


@pytest.fixture(scope="module")
def run(predicted: tuple[Path, str]) -> Run:
    return open_run(predicted[0])


def test_the_answer_says_that_it_is_predicted_and_whether_it_fits(predicted: tuple[Path, str]) -> None:
    folder, said = predicted
    assert "Predicted: Rank 0 peaks at" in said
    assert "Fits 4.00 GiB" in said
    assert "not seconds" in said
    findings = json.loads((folder / "report" / "findings.json").read_text())
    assert (findings["basis"], findings["findings"][0]["verdict"]) == ("simulated", "predicted")
    assert json.loads((folder / "run.json").read_text())["basis"] == "simulated"


@pytest.mark.parametrize(
    ("spare_bytes", "said", "turn"),
    [
        (1 << 20, r"^Fits .* leaves 1\.00 MiB \(<1 %\)\. To use less: zero_optimization", ""),
        (-1, r"^May fit .* is 1 B too much where all that is reserved is kept", "PYTORCH_CUDA_ALLOC_CONF=expandable"),
        (-(1 << 30), r"^Does not fit .* too much\. Turn first: zero_optimization\.memory_efficient_linear true", ""),
    ],
)
def test_whether_it_fits_counts_what_lies_outside_the_allocator(
    predicted: tuple[Path, str], spare_bytes: int, said: str, turn: str
) -> None:
    run = open_run(predicted[0])
    outside = [one for one in run.manifest["simulation"]["constants"] if not one["inside"]]
    assert [one["name"] for one in outside] == ["CUDA context and kernels", "NCCL"]
    needed = run.marks.reserved_bytes.max() + sum(one["size_bytes"] for one in outside)
    manifest = cast("dict[str, Any]", run.manifest)
    manifest["gpu_memory_bytes"] = int(needed) + spare_bytes
    answer = fits(run, 0, find_all(run))
    assert answer is not None
    assert re.search(said, answer), answer
    assert turn in answer
    assert "767 MiB CUDA context and kernels and 1.31 GiB NCCL (as on an H200)" in answer
    manifest["simulation"]["expandable_segments"] = True
    assert "PYTORCH_CUDA_ALLOC_CONF" not in (fits(run, 0, find_all(run)) or "")


def test_one_rank_has_no_nccl() -> None:
    assert [one.name for one in constants(1) if not one.inside] == ["CUDA context and kernels"]


def test_released_weights_that_autograd_keeps_are_seen_with_their_holders(run: Run) -> None:
    marks = run.marks.set_index(["step", "mark"])
    assert marks.loc[(0, "forward"), "released_alive_count"] == 33
    assert marks.loc[(0, "backward"), "released_alive_count"] == 0
    assert set(run.retained.query("step == 0").holder) == {"AddmmBackward0._saved_mat2", "MmBackward0._saved_mat2"}


def test_prefetch_starts_after_the_first_step_and_states_appear_in_it(run: Run) -> None:
    kinds = run.zero_events.groupby("step").kind.agg(set)
    assert "prefetch" not in kinds[0]
    assert "prefetch" in kinds[1]
    parts = run.mark_composition.query("category == 'optimizer_states'").set_index(["step", "mark"]).size_bytes
    trainable = run.params[run.params.trainable].numel.sum() // 4
    assert parts[(0, "step")] == pytest.approx(8 * trainable, abs=2048)
    assert (0, "backward") not in parts.index


def test_every_byte_of_the_curve_is_a_block(run: Run) -> None:
    assert set(run.ranks.memory_source) == {"simulated"}
    sums = run.peak_composition.groupby(["scope", "step", "phase"], dropna=False).size_bytes.sum()
    peaks = run.peaks.set_index(["scope", "step", "phase"]).allocated_bytes
    assert sums.sort_index().to_list() == peaks.sort_index().to_list()
    unattributed = run.peak_composition.query("category == 'unattributed' and scope == 'run'").size_bytes.item()
    assert abs(unattributed) < 0.01 * run.peaks.query("scope == 'run'").allocated_bytes.item()
    counted = run.marks.max_allocated_bytes.max()
    assert counted == run.peaks.query("scope == 'run'").allocated_bytes.item()


def test_libraries_workspaces_have_names(run: Run) -> None:
    named = run.memory_blocks.query("category == 'workspace'")
    assert set(named.owner) == {
        "cuBLAS workspace, forward thread", "cuBLAS workspace, backward thread", "cuBLASLt workspace",
    }  # fmt: skip


PATCHES_UNDONE = """
import sys
from pathlib import Path
import importlib
import torch
import deepspeed
from torch._subclasses.fake_tensor import FakeTensor
from zeropeak.profile.labels import Status
from zeropeak.profile.simulate.device import register
from zeropeak.profile.simulate.simulation import Simulation
register()  # the device itself cannot be taken back
owners = [torch.Tensor, FakeTensor, torch.nn.Module, torch.UntypedStorage,
          importlib.import_module('torch.optim.optimizer'), importlib.import_module('transformers.masking_utils'),
          deepspeed.runtime.zero.partition_parameters, deepspeed.runtime.zero.partitioned_param_coordinator,
          deepspeed.ops.op_builder.builder.OpBuilder]
before = [dict(vars(owner)) for owner in owners]
accelerator = deepspeed.accelerator.get_accelerator()
simulation = Simulation(Path(sys.argv[1]), world_size=2, total_bytes=None)
with simulation:
    changed = sum(dict(vars(owner)) != was for owner, was in zip(owners, before))
    half = torch.zeros(2, 8, device=simulation.device, dtype=torch.float16)
    assert torch.softmax(half, -1, dtype=torch.float32).dtype is torch.float32
simulation.close(Status.COMPLETE, None)
assert changed == len(owners), changed
assert [dict(vars(owner)) for owner in owners] == before
assert deepspeed.accelerator.get_accelerator() is accelerator
assert not torch.distributed.is_initialized()
assert torch.zeros(3).tolist() == [0, 0, 0] and torch.softmax(torch.zeros(2), 0).tolist() == [0.5, 0.5]
print("undone")
"""


def test_no_patch_of_torch_or_deepspeed_stays_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PATCHES_UNDONE, str(tmp_path)]
    answer = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, check=False)
    assert answer.stdout.endswith("undone\n"), answer.stderr


def test_a_config_that_deepspeed_rejects_is_said_in_its_words(tmp_path: Path) -> None:
    config = tmp_path / "wrong.json"
    config.write_text(
        '{"zero_optimization": {"stage": 3, "stage3_max_live_parameters": -1}, "bf16": {"enabled": true}}'
    )
    code, said = predict(tmp_path / "run", str(config), "--model", "tiny", "--seq", "16", "--steps", "1")
    assert code == 1
    assert "max_live_parameters" in said


def test_a_models_own_code_runs_only_when_asked_for(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    described = {
        "model_type": "brought",
        "auto_map": {"AutoConfig": "brought.Config", "AutoModelForCausalLM": "brought.Model"},
        **{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512},
    }
    (model / "config.json").write_text(json.dumps(described))
    (model / "brought.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')\nraise ImportError('ran')\n")
    code, said = predict(tmp_path / "refused", "stage3", "--model", str(model))
    assert code == 1, said
    assert "its code comes with the model, and is not run unless you ask: --trust-remote-code" in said
    assert not (tmp_path / "was_run").exists()
    code, said = predict(tmp_path / "trusted", "stage3", "--model", str(model), "--trust-remote-code")
    assert code == 1, said
    assert "ImportError: ran" in said
    assert (tmp_path / "was_run").exists()


def test_a_prediction_that_the_machine_has_no_memory_for_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel ends whoever takes too much; here the process does it, when it builds the model."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "if 'zeropeak.profile.simulate' in sys.orig_argv:\n"
        "    from zeropeak.profile import workload\n"
        "    workload.build_model = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.setitem(ENVIRON, "PYTHONPATH", f"{tmp_path}{os.pathsep}{ENVIRON['PYTHONPATH']}")
    code, said = predict(tmp_path / "run", "stage3", "--model", "tiny")
    assert code == 1, said
    assert "this machine has too little memory for it, even without weights; predict on a larger one" in said
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


def test_an_older_transformers_needs_no_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    from zeropeak.profile.simulate.patches import transformers_patches

    assert [patch.name for patch in transformers_patches()] == ["is_tracing"]
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", None)
    assert transformers_patches() == []


BRANCHING = """
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

class Config(GPTNeoXConfig):
    model_type = "branching"

class Model(GPTNeoXForCausalLM):
    config_class = Config

    def forward(self, input_ids=None, **rest):
        if input_ids.float().std() > 3:
            input_ids = input_ids[:, :8]
        return super().forward(input_ids=input_ids, **rest)
"""


def test_a_model_that_branches_on_data_is_refused_with_its_line(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    described = {
        "model_type": "branching",
        "auto_map": {"AutoConfig": "branching.Config", "AutoModelForCausalLM": "branching.Model"},
        **{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512},
        **{"intermediate_size": 128, "max_position_embeddings": 128},
    }
    (model / "config.json").write_text(json.dumps(described))
    (model / "branching.py").write_text(BRANCHING)
    options = ("--lora", "none", "--seq", "16", "--trust-remote-code")
    code, said = predict(tmp_path / "run", "stage3", "--model", str(model), *options)
    assert code == 1, said
    assert "branching.py:11 (if input_ids.float().std() > 3:)" in said
    assert "asks for the value of a tensor, and a prediction computes none" in said


def test_autocast_by_the_config_is_said_not_to_be_predicted(tmp_path: Path) -> None:
    config = {"zero_optimization": {"stage": 2}, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
    (tmp_path / "cast.json").write_text(json.dumps(config))
    options = ("--model", "tiny", "--seq", "16", "--steps", "1", "--lora", "none")
    code, said = predict(tmp_path / "run", str(tmp_path / "cast.json"), *options)
    assert code == 0, said
    told = json.loads((tmp_path / "run" / "run.json").read_text())["simulation"]["assumptions"]
    assert any("torch_autocast" in one and "casts by autocast, which is not predicted" in one for one in told), told
