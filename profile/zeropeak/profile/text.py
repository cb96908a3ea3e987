"""Training text as byte tokens: what memory does depends on shapes, not on the tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from zeropeak.profile.errors import UsageError

SAMPLE: Final = Path(__file__).parent / "data" / "sample.txt"


def read_bytes(data: str | None) -> bytes:
    """The shipped sample, or the texts of a JSON-lines file joined by blank lines.

    A line is a JSON object with ``text``, or with ``prompt`` and ``response``/``chosen`` (DeepSpeed-Chat's keys).

    Raises:
        UsageError: a line that is no such object, by number; or no text at all.
    """
    if data is None:
        return SAMPLE.read_bytes()
    texts = []
    for number, line in enumerate(Path(data).read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as problem:
            raise UsageError(f"{data}:{number}:{problem.colno}: not JSON: {problem.msg}") from None
        parts = [row.get(key) for key in ("text", "prompt", "response", "chosen")] if isinstance(row, dict) else []
        text = "".join(part for part in parts if isinstance(part, str))
        if not text:
            raise UsageError(f'{data}:{number}: no "text" (or "prompt" and "response") in this line')
        texts.append(text)
    if not texts:
        raise UsageError(f"{data}: no text in it")
    return "\n\n".join(texts).encode()


def batch(text: bytes, step: int, rank: int, micro_batch: int, seq: int, vocab: int) -> list[list[int]]:
    """Token ids (micro_batch x seq): every rank and step starts elsewhere in the text, which wraps around.

    >>> batch(b"abc", step=0, rank=0, micro_batch=1, seq=4, vocab=256)
    [[97, 98, 99, 97]]
    """
    start = (step * 7919 + rank) * micro_batch * seq
    return [
        [text[(start + row * seq + column) % len(text)] % vocab for column in range(seq)] for row in range(micro_batch)
    ]
