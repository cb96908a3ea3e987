"""The command that starts a training script, read without starting it: what is run, how, and on how many ranks.

Launchers' options are read by the launchers' own parsers, as installed.
"""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from zeropeak.profile.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

EXAMPLE: Final = "-- python train.py --deepspeed ds_config.json"

_PYTHON: Final = re.compile(r"python[0-9.]*")
_WITH_VALUE: Final = ("-W", "-X")
_TORCHRUN: Final = ("torch.distributed.run", "torch.distributed.launch")
_DEEPSPEED: Final = "deepspeed.launcher.runner"


@dataclass(frozen=True)
class Command:
    """A training script and how it is started.

    Attributes:
        target: path of the script, or dotted name of the module.
        is_module: whether it was named by ``-m``.
        arguments: its words.
        ranks: ranks that the launcher starts in all; None when it does not say, or there is none.
        local_ranks: ranks on one machine; None likewise.
    """

    target: str
    is_module: bool
    arguments: tuple[str, ...]
    ranks: int | None = None
    local_ranks: int | None = None

    @property
    def name(self) -> str:
        """As people call it: ``train.py``, ``package.train``."""
        return self.target if self.is_module else Path(self.target).name

    @property
    def stem(self) -> str:
        """For names of folders: ``train``."""
        return self.target.rpartition(".")[2] if self.is_module else Path(self.target).stem


def read_command(words: Sequence[str]) -> Command:
    """Read what a user would type to start training.

    Args:
        words: the command, split as a shell does.

    Raises:
        UsageError: it starts no Python script that could be followed; says what it is and the way out.
    """
    if not words:
        raise UsageError(f"no command after --; e.g. {EXAMPLE}")
    program, rest = Path(words[0]).name, list(words[1:])
    if _PYTHON.fullmatch(program):
        return _checked(_after_python(rest))
    if program == "torchrun":
        return _checked(_torchrun(_TORCHRUN[0], rest))
    if program in ("deepspeed", "ds"):
        return _checked(_deepspeed(rest))
    if program == "accelerate":
        raise UsageError(
            "accelerate launch sets DeepSpeed up from a file of its own; give the script to python, with the DeepSpeed "
            f"config among its own options: {EXAMPLE}"
        )
    if program.endswith(".py"):
        return _checked(Command(words[0], False, tuple(rest)))
    raise UsageError(f"{words[0]}: neither python, torchrun nor deepspeed, and no .py file; e.g. {EXAMPLE}")


def _after_python(words: list[str]) -> Command:
    while words:
        word = words.pop(0)
        if word == "-m" or (word.startswith("-m") and not word.startswith("--")):
            module = word[2:] or (words.pop(0) if words else "")
            if module in _TORCHRUN:
                return _torchrun(module, words)
            if module in (_DEEPSPEED, "deepspeed"):
                return _deepspeed(words)
            if not module:
                break
            return Command(module, True, tuple(words))
        if word == "-c" or word == "-":
            raise UsageError(f"python {word}: only a script or a module can be followed; save it as a file")
        if word in _WITH_VALUE:
            words[:1] = []
        elif not word.startswith("-"):
            return Command(word, False, tuple(words))
    raise UsageError(f"python without a script; e.g. {EXAMPLE}")


def _torchrun(module: str, words: list[str]) -> Command:
    from torch.distributed import launch
    from torch.distributed import run as torchrun

    old = module == _TORCHRUN[1]
    args = _parsed("torchrun", launch.parse_args if old else torchrun.parse_args, words)
    if args.no_python:
        raise UsageError("torchrun --no-python: the script is no Python; only Python can be followed")
    local = int(args.nproc_per_node) if str(args.nproc_per_node).isdecimal() else None
    nodes = int(str(args.nnodes).rpartition(":")[2])
    passed = [] if not old or args.use_env else ["--local-rank=0"]
    return Command(
        args.training_script,
        bool(args.module),
        (*passed, *args.training_script_args),
        None if local is None else local * nodes,
        local,
    )


def _deepspeed(words: list[str]) -> Command:
    from deepspeed.launcher import runner

    args = _parsed("deepspeed", runner.parse_args, words)
    if args.no_python:
        raise UsageError("deepspeed --no_python: the script is no Python; only Python can be followed")
    local = args.num_gpus if args.num_gpus > 0 else None
    # The launcher gives each process its rank on the machine as an option, unless it is asked not to.
    passed = [] if args.no_local_rank else ["--local_rank=0"]
    return Command(
        args.user_script,
        bool(args.module),
        (*passed, *args.user_args),
        None if local is None else local * max(1, args.num_nodes),
        local,
    )


def _parsed(name: str, parse: Callable[[list[str]], argparse.Namespace], words: list[str]) -> argparse.Namespace:
    """What a launcher's own parser reads; its complaint as ours."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return parse(words)
    except SystemExit:
        lines = [line for line in complaint.getvalue().splitlines() if line.strip()]
        said = lines[-1].rpartition("error: ")[2] if lines else "cannot read its options"
        raise UsageError(f"{name}: {said}; e.g. -- {name} train.py") from None


def _checked(command: Command) -> Command:
    if not command.is_module and not Path(command.target).is_file():
        raise UsageError(f"{command.target}: no such script here")
    return command
