"""The errors that a user sees. Only ``zeropeak.cli`` catches them; the message is one line with the way out."""

from __future__ import annotations


class ZeropeakError(Exception):
    """Something in the run, the machine or a file is not as needed. Exit code 1."""

    exit_code = 1


class UsageError(ZeropeakError):
    """The command line or a config is wrong. Exit code 2."""

    exit_code = 2


class TraceError(ZeropeakError):
    """A capture file cannot be read.

    Args:
        path: file as the user named it, or relative to the run directory.
        problem: what is wrong with it and what to do, without the path.
    """

    def __init__(self, path: object, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = str(path)
        self.problem = problem

    def __reduce__(self) -> tuple[type[TraceError], tuple[str, str]]:
        """An exception pickles by its arguments; a worker process raises this one across."""
        return type(self), (self.path, self.problem)
