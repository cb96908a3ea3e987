"""Mending the text of one damaged event, so that it is valid JSON again; or giving it up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

_KEYS: Final = "ph|cat|name|pid|tid|ts|dur|args|id|s|bp"
_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_ESCAPE: Final = r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'

_CONTROL: Final = re.compile(r"[\x00-\x1f]")
_STRINGS: Final = re.compile(_STRING)
_NOT_A_NUMBER: Final = re.compile(
    rf"{_STRING}|(?<=[:\[,\s])([-+]?(?:inf(?:inity)?|nan(?:\([^)\"]*\))?))(?=\s*[,}}\]])", re.IGNORECASE
)
_PAIR: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_BACKSLASH: Final = re.compile(rf"({_PAIR})|\\u[dD][89a-fA-F][0-9a-fA-F]{{2}}|({_ESCAPE})|(\\)")
_ESCAPED: Final = re.compile(_ESCAPE)
_CLOSES: Final = re.compile(r'"\s*(?:[:}\]]|,\s*(?:["{\[\d-]|true\b|false\b|null\b))')
_QUOTE_OR_BACKSLASH: Final = re.compile(r'["\\]')
_KEY_AFTER: Final = re.compile(rf'"\s*,\s*"(?:{_KEYS})"\s*:')

_NO_CLOSING: Final = re.compile(rf'("(?:{_KEYS})"\s*:\s*"[^"]*?)(\s*,\s*"(?:{_KEYS})"\s*:)')
_NO_OPENING: Final = re.compile(rf'("(?:{_KEYS})"\s*:\s*)(?!true|false|null)([^\s"\d{{\[-][^"]*"\s*[,}}])')
_KEY_UNOPENED: Final = re.compile(rf'([{{,]\s*)((?:{_KEYS})"\s*:)')
_KEY_UNCLOSED: Final = re.compile(rf'([{{,]\s*"(?:{_KEYS}))(\s*:)')


def _control_characters(text: str) -> str:
    # Between tokens they are white space, within a string they are illegal: a space is right for both.
    return _CONTROL.sub(" ", text)


def _not_a_number(text: str) -> str:
    return _NOT_A_NUMBER.sub(lambda found: "null" if found[1] else found[0], text)


def _backslash(found: re.Match[str]) -> str:
    if found[3]:
        return r"\\"
    return found[0] if found[1] or found[2] else r"\ufffd"  # the last: half of a surrogate pair


def _escapes(text: str) -> str:
    return _STRINGS.sub(lambda string: _BACKSLASH.sub(_backslash, string[0]), text)


def _missing_quotes(text: str) -> str:
    text = _KEY_UNCLOSED.sub(r'\1"\2', _KEY_UNOPENED.sub(r'\1"\2', text))
    return _NO_OPENING.sub(r'\1"\2', _NO_CLOSING.sub(r'\1"\2', text))


def _stray_quotes(text: str) -> str:
    """Escape the quotes that neither open nor close a string, told by what stands around them."""
    out: list[str] = []
    inside, done = False, 0
    for found in _QUOTE_OR_BACKSLASH.finditer(text):
        at = found.start()
        if at < done:
            continue  # part of an escape
        new, end = found[0], at + 1
        if new == '"':
            before = text[max(at - 64, 0) : at].rstrip()[-1:]
            if not inside and before and before in "{[,:":
                inside = True
            elif inside and _CLOSES.match(text, at):
                inside = False
            else:
                new = r"\""
        elif inside:
            escape = _ESCAPED.match(text, at)
            # A backslash before a closing quote is the string's own last character, not an escape.
            if escape is None or (escape[0] == r"\"" and _KEY_AFTER.match(text, at + 1)):
                new = r"\\"
            else:
                new, end = escape[0], escape.end()
        out += (text[done:at], new)
        done = end
    return "".join((*out, text[done:]))


_STEPS: Final[tuple[tuple[str, Callable[[str], str]], ...]] = (
    ("control_characters", _control_characters),
    ("not_a_number", _not_a_number),
    ("escapes", _escapes),
    ("quotes", _missing_quotes),
    ("quotes", _stray_quotes),
)


def mend(text: bytes) -> tuple[bytes, tuple[str, ...]] | None:
    r"""Make the text of an event valid JSON.

    Args:
        text: from the event's ``{`` to its ``}``.

    Returns:
        The mended text and what had to be mended (of utf8, control_characters, not_a_number, escapes, quotes); None
        when it stays invalid.

    >>> mend(b'{"name": "a"b", "ts": nan}')
    (b'{"name": "a\\"b", "ts": null}', ('not_a_number', 'quotes'))
    >>> mend(b'{"name": {') is None
    True
    """
    decoded = text.decode(errors="replace")
    changed = () if decoded.encode() == text else ("utf8",)
    if _valid(decoded):
        return decoded.encode(), changed
    for what, step in _STEPS:  # mostly it is one thing only
        if _valid(new := step(decoded)):
            return new.encode(), (*changed, what)
    new, done = decoded, dict.fromkeys(changed)
    for what, step in _STEPS:
        old, new = new, step(new)
        if new != old:
            done[what] = None
        if _valid(new):
            return new.encode(), tuple(done)
    return None


def _valid(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text.encode()), dict)
    except (msgspec.DecodeError, RecursionError):
        return False
