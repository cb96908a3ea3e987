"""Nothing that people share tells whose machine it was: folders are dropped from every text that came from outside."""

from __future__ import annotations

import re
from typing import Any, Final

_PATH: Final = re.compile(r"(?<![\w.…/~])(?:~[\w.-]*)?/(?:[^/\s'\",;:()\[\]]+/)*([^/\s'\",;:()\[\]]+)")


def without_folders(text: str) -> str:
    """The text with absolute and home paths cut to their last part.

    >>> without_folders("no such file: '/home/ann/run/data.jsonl'")
    "no such file: '…/data.jsonl'"
    >>> without_folders("1/2 of raw/rank-0/rank.json, --data=~/mine.jsonl")
    '1/2 of raw/rank-0/rank.json, --data=…/mine.jsonl'
    """
    return _PATH.sub(lambda match: f"…/{match.group(1)}", text)


def scrubbed(value: Any) -> Any:
    """A JSON value with :func:`without_folders` applied to every text in it.

    >>> scrubbed({"nvme_path": "/local/ann/nvme", "stage": 3})
    {'nvme_path': '…/nvme', 'stage': 3}
    """
    if isinstance(value, str):
        return without_folders(value)
    if isinstance(value, dict):
        return {key: scrubbed(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed(one) for one in value]
    return value
