"""Predictions of users' own scripts (``tests/scripts``), each in a process of its own as in real use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from zeropeak.reports import document, open_run

if TYPE_CHECKING:
    from zeropeak.reports.run import Run

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(__file__).parent / "scripts"
ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / stage) for stage in ("profile", "parse", "reports"))}
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "intermediate_size": 352,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
    "max_position_embeddings": 256, "eos_token_id": 2, "bos_token_id": 1, "torch_dtype": "bfloat16",
}  # fmt: skip


def predict(folder: Path, words: str) -> tuple[int, str]:
    """Exit code and all that was printed; the script is started in ``folder``, the run goes to ``folder/run``."""
    ours, _, theirs = words.partition("-- ")
    command = [sys.executable, "-m", "zeropeak.cli", "predict", *ours.split(), "--out", "run"]
    command += ["--", *theirs.split()] if theirs else []
    answer = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, check=False, cwd=folder)
    return answer.returncode, answer.stdout + answer.stderr


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "run.json").read_text())
    return found


@pytest.fixture(scope="module")
def by_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("config")
    code, said = predict(folder, "stage3 --model tiny --lora none --dtype fp16 --seq 64 --ranks 4")
    assert code == 0, said
    return folder


@pytest.fixture(scope="module")
def by_script(by_config: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("script")
    config = json.loads((by_config / "run" / "raw" / "plan.json").read_text())["ds_config"]
    (folder / "ds_config.json").write_text(json.dumps(config))
    script = f"deepspeed --num_gpus 4 {SCRIPTS / 'plain_loop.py'} --config ds_config.json"
    code, said = predict(folder, f"--gpu-memory 4GiB -- {script}")
    assert code == 0, said
    return folder, said


@pytest.fixture(scope="module")
def runs(by_config: Path, by_script: tuple[Path, str]) -> tuple[Run, Run]:
    return open_run(by_config / "run"), open_run(by_script[0] / "run")


def test_a_script_is_predicted_to_the_byte_as_the_same_training_by_config(runs: tuple[Run, Run]) -> None:
    columns = ["step", "mark", "allocated_bytes", "max_allocated_bytes", "reserved_bytes", "released_alive_bytes"]
    by_config, by_script = (run.marks[columns].to_dict("records") for run in runs)
    assert by_script == by_config


def test_what_the_script_decided_is_in_the_manifest(by_script: tuple[Path, str]) -> None:
    about = manifest(by_script[0])
    assert (about["basis"], about["status"], about["world_size"]) == ("simulated", "complete", 4)
    assert (about["seq"], about["micro_batch"], about["grad_accum"], about["steps"]) == (64, 1, 1, 3)
    assert about["ds_config"]["zero_optimization"]["stage"] == 3
    assert about["script"].endswith("plain_loop.py")
    model = about["model"]
    assert (model["layers"], model["hidden"], model["vocab"], model["lora"]) == (8, 256, 1024, "none")
    assert (model["class"], model["dtype"], model["attention"]) == ("GPTNeoXForCausalLM", "fp16", "eager")
    assert model["parameters"] == model["trainable_parameters"] > 6_000_000


def test_the_report_says_which_script_and_which_model(runs: tuple[Run, Run]) -> None:
    assert "script plain_loop.py, GPTNeoXForCausalLM, rank 0 of 4 on a simulated GPU" in document._what_ran(runs[1])


def test_the_answer_tells_what_the_script_read(by_script: tuple[Path, str]) -> None:
    folder, said = by_script
    assert "Predicted: Rank 0 peaks at" in said
    assert "Fits 4.00 GiB" in said
    told = " ".join(manifest(folder)["simulation"]["assumptions"])
    assert "total += output.loss.item()) reads a number, and is told 1.0" in told
    assert "loss 1.000" in (folder / "run" / "raw" / "train.log").read_text()


def test_a_network_of_ones_own_with_lengths_from_its_data(tmp_path: Path) -> None:
    code, said = predict(tmp_path, f"--ranks 2 --steps 2 -- python {SCRIPTS / 'own_module.py'} 5")
    assert code == 0, said
    about = manifest(tmp_path)
    assert (about["micro_batch"], about["grad_accum"], about["steps"]) == (4, 2, 2)
    assert about["model"]["class"] == "Network"
    assert set(open_run(tmp_path / "run").marks.step) == {-1, 0, 1}
    assert not (tmp_path / "never_written.pt").exists()


def test_a_script_that_ends_before_the_planned_steps_says_so(tmp_path: Path) -> None:
    code, said = predict(tmp_path, f"--ranks 2 -- python {SCRIPTS / 'own_module.py'} 1")
    assert code == 0, said
    assert "the script ended by itself after 1 of 3 steps" in said
    assert manifest(tmp_path)["steps"] == 1
    code, said = predict(tmp_path, f"--force --ranks 2 -- python {SCRIPTS / 'own_module.py'} 0")
    assert code == 1
    assert "ended before its first optimizer step" in said


def test_hugging_faces_trainer(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA))
    auto = {
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": "auto", "reduce_bucket_size": "auto"},
        "bf16": {"enabled": "auto"}, "gradient_clipping": "auto",
    }  # fmt: skip
    (tmp_path / "ds.json").write_text(json.dumps(auto))
    script = f"torchrun --nproc-per-node 4 {SCRIPTS / 'trainer.py'} --model model --deepspeed ds.json --out out"
    code, said = predict(tmp_path, f"--steps 2 -- {script}")
    assert code == 0, said
    about = manifest(tmp_path)
    assert (about["world_size"], about["micro_batch"], about["grad_accum"]) == (4, 2, 2)
    assert (about["model"]["class"], about["model"]["gradient_checkpointing"]) == ("LlamaForCausalLM", True)
    assert 48 <= about["seq"] <= 63
    marks = open_run(tmp_path / "run").marks
    # Trainer calls the engine's step() once for two backwards, so the engine's own count of micro-steps stands still.
    assert marks.query("mark == 'forward'")[["step", "micro_step"]].to_numpy().tolist() == [
        [0, 0], [0, 1], [1, 0], [1, 1],
    ]  # fmt: skip
    assert not list((tmp_path / "out").rglob("*.pt"))
    kinds = set(open_run(tmp_path / "run").zero_events.kind)
    assert {"fetch", "prefetch", "release"} <= kinds


def test_a_script_in_the_manner_of_deepspeed_chat(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA))
    script = f"deepspeed {SCRIPTS / 'chat.py'} --model_name_or_path model"
    code, said = predict(tmp_path, f"--ranks 8 --steps 2 -- {script}")
    assert code == 0, said
    about = manifest(tmp_path)
    assert about["world_size"] == 8
    assert about["model"]["lora"] == "own"
    run = open_run(tmp_path / "run")
    assert "eval" in set(run.phases.phase)
    # DeepSpeed-Chat's knob: released weights stay alive until backward.
    assert run.marks.query("mark == 'forward'").released_alive_count.max() > 20


@pytest.mark.parametrize(
    ("script", "line", "asked"),
    [
        ("branches.py", "if loss > 0.5:", "a truth value"),
        ("nonzero.py", "kept = inputs[inputs.sum(1) > 0]", "the values of a tensor"),
    ],
)
def test_a_script_that_decides_by_data_is_refused_with_the_line(
    tmp_path: Path, script: str, line: str, asked: str
) -> None:
    code, said = predict(tmp_path, f"-- python {SCRIPTS / script}")
    assert code == 1
    number = (SCRIPTS / script).read_text().splitlines().index(line) + 1
    assert f"{script}:{number} ({line}) asks for {asked}" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("pass", "ended without deepspeed.initialize"),
        ("raise SystemExit(3)", "ended itself with 3"),
        ("import sys\nsys.exit('no data')", "ended itself with 'no data'"),
        ("{}['absent']", "train.py:1 ({}['absent']): KeyError"),
        ("import absent_package", "ModuleNotFoundError"),
        ("(", "SyntaxError"),
    ],
)
def test_a_script_that_does_not_train_is_an_error_that_says_why(tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "train.py").write_text(source + "\n")
    code, printed = predict(tmp_path, "-- python train.py")
    assert code == 1
    assert said in printed


def test_a_second_engine_is_refused(tmp_path: Path) -> None:
    source = (SCRIPTS / "branches.py").read_text()
    made = next(line for line in source.splitlines() if line.startswith("engine, *_"))
    (tmp_path / "train.py").write_text(source.replace(made, f"{made}\n{made}"))
    code, said = predict(tmp_path, "-- python train.py")
    assert code == 1
    assert f"train.py:11 ({made}): a second DeepSpeed engine, after the one of train.py:10 ({made})" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--seq 64 -- python x.py", "--seq: with a script of your own, the script says it"),
        ("stage3 -- python x.py", "stage3: with a script of your own"),
        ("--set a=1 --lora none -- python x.py", "--lora, --set: with"),
        ("-- python absent.py", "absent.py: no such script"),
        ("", "predict what?"),
    ],
)
def test_options_that_the_script_decides_are_refused(tmp_path: Path, words: str, said: str) -> None:
    code, printed = predict(tmp_path, words)
    assert code == 2
    assert said in printed
    assert not (tmp_path / "run").exists()
