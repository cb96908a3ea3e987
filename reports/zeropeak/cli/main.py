"""Reads the command line, runs one verb, turns errors into one line and an exit code.

Nothing heavy is imported before a verb runs: ``--help`` needs the standard library alone.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn

from zeropeak.parse.lean import end_lean, start_lean
from zeropeak.profile.errors import ZeropeakError
from zeropeak.profile.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

VERBS: Final = ("nsys", "torch", "predict", "compare", "verify", "parse", "report", "setup", "test")
"""Every verb: a module of ``zeropeak.cli`` with ``NAME``, ``SUMMARY``, ``EXAMPLE``, ``configure(parser)``,
``run(args) -> exit code``."""

_TAKE_COMMANDS: Final = ("predict",)

_EXIT_CODES: Final = """\
exit codes:
  0 done   1 the run, a file or the machine is not as needed   2 wrong usage   130 interrupted
  3 --fail-on met; verify: the saving did not come"""


def main(argv: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    parser = _parser(argv[:1] if argv[:1] and argv[0] in VERBS else VERBS)
    argv, command = _at_dashes(argv)
    args = parser.parse_args(argv)
    if command is not None:
        args.command = command
    try:
        code: int = args.verb.run(args)
    except ZeropeakError as problem:
        print(f"zeropeak: {problem}", file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        print("zeropeak: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away (head, a closed pager): nothing is wrong, nothing more can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as problem:
        # No permission, no space, a folder that vanished: the machine's word on it, and where.
        where = f"{problem.filename}: " if problem.filename else ""
        print(f"zeropeak: {where}{problem.strerror or problem}; free space or rights are needed there", file=sys.stderr)
        return 1
    return code


def _at_dashes(argv: Sequence[str]) -> tuple[Sequence[str], list[str] | None]:
    """The words before ``--``, and those after it for a verb that takes a command there."""
    if argv[:1] and argv[0] in _TAKE_COMMANDS and "--" in argv:
        place = list(argv).index("--")
        return argv[:place], list(argv[place + 1 :])
    return argv, None


def run() -> NoReturn:
    """Entry point of the console command ``zeropeak``."""
    if sys.argv[1:2] == ["parse"]:
        # Here, where the process is the command's alone: the other verbs use pandas.
        start_lean()
        code = main(sys.argv[1:])
        end_lean()
        sys.exit(code)
    sys.exit(main(sys.argv[1:]))


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    """Of some verbs: when one is asked for, the others' modules and options would take longer than a short verb."""
    modules: list[Any] = [import_module(f"zeropeak.cli.{name}") for name in names]
    program = os.environ.get("ZEROPEAK_PROGRAM", "zeropeak")
    parser = argparse.ArgumentParser(
        prog=program,
        allow_abbrev=False,
        description="Which DeepSpeed ZeRO event made GPU memory peak, on which rank, with which parameters, what still "
        "holds the bytes, and which knob changes it.",
        epilog="examples:\n" + "\n".join(f"  {_example(verb, program)}" for verb in modules) + "\n\n" + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"zeropeak {__version__}")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    for verb in modules:
        sub = verbs.add_parser(
            verb.NAME,
            allow_abbrev=False,
            help=verb.SUMMARY,
            description=(verb.__doc__ or "").strip(),
            epilog=f"example:\n  {_example(verb, program)}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.configure(sub)
        sub.set_defaults(verb=verb)
    return parser


def _example(verb: Any, program: str) -> str:
    example: str = verb.EXAMPLE
    return example.replace("zeropeak", program, 1)
