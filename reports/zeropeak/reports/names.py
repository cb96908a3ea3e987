"""Module and parameter names for people: shortened in the middle, grouped over layers."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

ELLIPSIS: Final = "…"
_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.|$)")


def middle(text: str, length: int) -> str:
    """At most ``length`` characters, the middle left out: both ends of a module name tell most.

    >>> middle("gpt_neox.layers.7.mlp.dense_h_to_4h", 20)
    'gpt_neox…nse_h_to_4h'
    """
    if len(text) <= length:
        return text
    if length <= 1:
        return ELLIPSIS[:length]
    head = (length - 1) * 2 // 5 + 1
    tail = length - 1 - head
    return text[:head] + ELLIPSIS + (text[-tail:] if tail else "")


def pattern(name: str) -> str:
    """The name with every layer number as ``*``.

    >>> pattern("gpt_neox.layers.7.mlp.dense_h_to_4h")
    'gpt_neox.layers.*.mlp.dense_h_to_4h'
    """
    return _NUMBER.sub("*", name)


def patterns(sizes: Iterable[tuple[str, int]]) -> list[tuple[str, int, int]]:
    """Names with sizes, grouped by pattern: (pattern, number of names, sum of sizes), largest sum first."""
    total: Counter[str] = Counter()
    members: dict[str, set[str]] = {}
    for name, size_bytes in sizes:
        key = pattern(name)
        total[key] += size_bytes
        members.setdefault(key, set()).add(name)
    groups = [
        (key if len(members[key]) > 1 else next(iter(members[key])), len(members[key]), size)
        for key, size in total.items()
    ]
    return sorted(groups, key=lambda group: (-group[2], group[0]))


def counted(sizes: Iterable[tuple[str, int]]) -> list[str]:
    """Names grouped by pattern, each with how many it stands for, largest sum first.

    >>> counted([("layers.0.mlp", 3), ("layers.1.mlp", 3), ("head", 4)])
    ['layers.*.mlp (2)', 'head']
    """
    return [name if number == 1 else f"{name} ({number})" for name, number, _ in patterns(sizes)]
