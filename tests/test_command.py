"""The command that starts a user's training, read without starting it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from zeropeak.profile.command import Command, read_command
from zeropeak.profile.errors import UsageError
from zeropeak.profile.script_plan import ScriptPlan, plan_script

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("python train.py --lr 1e-4", Command("train.py", False, ("--lr", "1e-4"))),
        ("python3.11 -u -W ignore -X dev train.py -m x", Command("train.py", False, ("-m", "x"))),
        ("/opt/venv/bin/python -m package.train --a", Command("package.train", True, ("--a",))),
        ("train.py --a", Command("train.py", False, ("--a",))),
        ("torchrun --nproc-per-node 8 train.py --a", Command("train.py", False, ("--a",), 8, 8)),
        ("torchrun --nnodes=2 --nproc_per_node=4 train.py", Command("train.py", False, (), 8, 4)),
        ("torchrun --nproc-per-node gpu train.py", Command("train.py", False, ())),
        ("torchrun --nproc-per-node 2 -m package.train x", Command("package.train", True, ("x",), 2, 2)),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", Command("train.py", False, (), 2, 2)),
        (
            "python -m torch.distributed.launch --nproc-per-node 2 train.py --a",
            Command("train.py", False, ("--local-rank=0", "--a"), 2, 2),
        ),
        ("deepspeed --num_gpus 4 train.py --a", Command("train.py", False, ("--local_rank=0", "--a"), 4, 4)),
        (
            "deepspeed --num_gpus=8 --num_nodes=2 --no_local_rank train.py",
            Command("train.py", False, (), 16, 8),
        ),
        ("deepspeed train.py", Command("train.py", False, ("--local_rank=0",))),
    ],
)
def test_what_is_run_with_which_words_on_how_many_ranks(typed: str, expected: Command) -> None:
    assert read_command(typed.split()) == expected


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("", "no command after --"),
        ("python", "python without a script"),
        ("python -u", "python without a script"),
        ("python -m", "python without a script"),
        ("python -c pass", "python -c: only a script or a module"),
        ("python absent.py", "absent.py: no such script here"),
        ("bash run.sh", "bash: neither python, torchrun nor deepspeed"),
        ("accelerate launch train.py", "give the script to python"),
        ("torchrun --nproc-per-node", "torchrun: argument --nproc-per-node"),
        ("torchrun --no-python train.py", "the script is no Python"),
        ("deepspeed --num_gpus many train.py", "deepspeed: argument --num_gpus"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_the_reason(typed: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_command(typed.split())
    assert said in str(refused.value)


def test_ranks_are_the_users_else_the_launchers_else_four() -> None:
    launched = read_command(["torchrun", "--nnodes=2", "--nproc-per-node=4", "train.py"])
    assert plan_script(launched, ranks=None, steps=3, gpu_memory_bytes=None).world_size == 8
    assert plan_script(launched, ranks=None, steps=3, gpu_memory_bytes=None).local_world_size == 4
    assert plan_script(launched, ranks=2, steps=3, gpu_memory_bytes=None).world_size == 2
    assert plan_script(launched, ranks=2, steps=3, gpu_memory_bytes=None).local_world_size == 2
    plain = read_command(["python", "train.py"])
    assert plan_script(plain, ranks=None, steps=3, gpu_memory_bytes=None).world_size == 4
    with pytest.raises(UsageError, match="--ranks 0"):
        plan_script(plain, ranks=0, steps=3, gpu_memory_bytes=None)
    with pytest.raises(UsageError, match="--ranks 70000: at most 16,384 can be predicted"):
        plan_script(plain, ranks=70_000, steps=3, gpu_memory_bytes=None)


def test_a_plan_survives_its_file(folder: Path) -> None:
    made = plan_script(read_command(["python", "train.py", "--a", "b"]), ranks=3, steps=2, gpu_memory_bytes=1 << 30)
    made.save(folder / "script.json")
    assert ScriptPlan.load(folder / "script.json") == made
