"""Nothing in a report tells whose machine it was: folders are dropped from every text that came from outside."""

from __future__ import annotations

import re
from typing import Final

_PATH: Final = re.compile(r"(?<![\w.…/~])(?:~[\w.-]*)?/(?:[^/\s'\",;:()\[\]]+/)*([^/\s'\",;:()\[\]]+)")


def without_folders(text: str) -> str:
    """The text with absolute and home paths cut to their last part.

    >>> without_folders("no such file: '/home/ann/run/data.jsonl'")
    "no such file: '…/data.jsonl'"
    >>> without_folders("1/2 of raw/rank-0/rank.json")
    '1/2 of raw/rank-0/rank.json'
    """
    return _PATH.sub(lambda match: f"…/{match.group(1)}", text)
