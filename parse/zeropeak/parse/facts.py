"""JSON that a capture wrote and anything may have damaged: every key that is read has the type it must have.

A key that is missing or null is unknown, never wrong. Keys that nobody reads may hold anything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from zeropeak.parse.access import reading
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

DEEPEST: Final = 64
"""Nesting that a config can have; readers recurse into it."""

_WAY_OUT: Final = "the file is damaged, capture again"


@dataclass(frozen=True)
class Need:
    """What a value must be: ``words`` for people; ``inner`` by key of an object, or one for all items of a list."""

    words: str
    fits: Callable[[Any], bool]
    inner: Mapping[str, Need] | None = None
    each: Need | None = None


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


NUMBER: Final = Need("a number", _whole)
"""A whole number that a column of the tables can hold."""
COUNT: Final = Need("a number that is not negative", lambda value: _whole(value) and value >= 0)
TEXT: Final = Need("a text", lambda value: isinstance(value, str))
FLAG: Final = Need("true or false", lambda value: isinstance(value, bool))


def an_object(each: Need | None = None, **inner: Need) -> Need:
    """An object with these keys; ``each`` holds for all others."""
    return Need("an object", lambda value: isinstance(value, dict), inner, each)


def a_list(each: Need) -> Need:
    """A list of such items."""
    return Need("a list", lambda value: isinstance(value, list), None, each)


def read_facts(path: Path, keys: Mapping[str, Need]) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
        path: the file.
        keys: what its keys must be.

    Raises:
        TraceError: no object, or a key holds something else than it must.
    """
    try:
        with reading(path):
            found = json.loads(path.read_bytes())
        problem = _unfit(found)
    except ValueError as error:
        raise TraceError(path, f"not valid JSON ({str(error)[:200]}); {_WAY_OUT}") from error
    except RecursionError as error:
        raise TraceError(path, f"nested too deeply; {_WAY_OUT}") from error
    if not isinstance(found, dict):
        raise TraceError(path, f"not a JSON object; {_WAY_OUT}")
    if problem:
        raise TraceError(path, f"{problem}; {_WAY_OUT}")
    check_facts(path, found, keys)
    return found


def check_facts(path: Path, found: Mapping[str, Any], keys: Mapping[str, Need]) -> None:
    """Refuse an object one of whose keys holds something else than it must.

    Raises:
        TraceError: names the file and the key.
    """
    if problem := _wrong("", dict(found), an_object(None, **keys)):
        raise TraceError(path, f"{problem}; {_WAY_OUT}")


def _unfit(value: object) -> str | None:
    """What no reader could handle, wherever it is: deep nesting, and text that cannot be written."""
    level: list[tuple[str, object]] = [("", value)]
    for _ in range(DEEPEST):
        below: list[tuple[str, object]] = []
        for key, item in level:
            for text in (key, item):
                if isinstance(text, str) and not text.isascii() and _half(text):
                    return f"{_shown(key) or 'it'} holds half a character (a lone surrogate)"
            if isinstance(item, dict):
                below += item.items()
            elif isinstance(item, list):
                below += [(key, inner) for inner in item]
        if not below:
            return None
        level = below
    return "nested too deeply"


def _half(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def _shown(key: str) -> str:
    return key.encode("ascii", "backslashreplace").decode()


def _wrong(key: str, value: object, need: Need) -> str | None:
    """What is wrong with a value, or one inside it."""
    if value is None:
        return None
    if not need.fits(value):
        return f"{key} is {_word(value)}, {need.words} is needed"
    if isinstance(value, dict):
        inner = need.inner or {}
        parts = [(name, item, inner.get(name, need.each)) for name, item in value.items()]
    elif isinstance(value, list):
        parts = [(str(place), item, need.each) for place, item in enumerate(value)]
    else:
        return None
    found = (_wrong(f"{key}.{_shown(name)}" if key else name, item, each) for name, item, each in parts if each)
    return next((problem for problem in found if problem), None)


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if _whole(value) else "a number out of range"
    if isinstance(value, float):
        return str(value) if value != value else f"{value:g}"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "an object"
