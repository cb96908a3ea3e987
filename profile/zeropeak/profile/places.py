"""Where in a program something happens: the line, and the line of the user's own code that led to it."""

from __future__ import annotations

import functools
import linecache
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType, TracebackType


def line_of(frame: FrameType) -> str:
    """File, line number and text of what a frame runs now."""
    return described(frame.f_code.co_filename, frame.f_lineno)


def described(file: str, line: int) -> str:
    """A line of a file, with its text where it can be read; the file as seen from the current folder."""
    text = linecache.getline(file, line).strip()
    return f"{_shown(file)}:{line} ({text})" if text else f"{_shown(file)}:{line}"


def own_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame, from this one outwards, of code that is neither Python's, nor a package's, nor ours."""
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def own_line(trace: TracebackType | None) -> str | None:
    """The user's own line in which an exception was raised, or that led to it."""
    found = None
    while trace is not None:
        if is_own(trace.tb_frame.f_code.co_filename):
            found = described(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return found


@functools.lru_cache(maxsize=4096)
def is_own(file: str) -> bool:
    """Whether a file is the user's own code."""
    if file.startswith("<"):
        return False
    path = Path(file).resolve()
    return not {"site-packages", "dist-packages"} & set(path.parts) and not any(
        path.is_relative_to(folder) for folder in _others()
    )


@functools.cache
def _others() -> tuple[Path, ...]:
    """Folders of Python's own library and of zeropeak."""
    ours = Path(__file__).resolve().parents[1]
    return (*(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")), ours)


def _shown(file: str) -> str:
    path = Path(file)
    for base in (Path.cwd(), *map(Path, sys.path[1:])):
        if base.is_absolute() and path.is_relative_to(base):
            return str(path.relative_to(base))
    return file
