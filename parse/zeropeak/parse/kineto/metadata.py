"""What stands before and after the events of a trace, and what a file that is no trace is instead."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

    from zeropeak.parse.kineto.window import Window

STEP_BYTES: Final = 1 << 20
MAX_METADATA_BYTES: Final = 64 << 20
"""Most text before the events, and most that is read after them."""

_SPACE: Final = b" \t\r\n"
_EVENTS_KEY: Final = re.compile(rb'"traceEvents"[ \t\r\n]*:[ \t\r\n]*\[')
_KEY_BYTES: Final = 64
_BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]')
_BASE_TIME: Final = re.compile(r'"baseTimeNanoseconds"\s*:\s*(-?\d+)')
_DISTRIBUTED: Final = re.compile(r'"distributedInfo"\s*:\s*(?=\{)')

tolerant: Final = json.JSONDecoder(strict=False)
"""Takes raw control characters, NaN and Infinity; the rest of JSON as it is."""


def read_head(window: Window, path: Path | str, metadata: dict[str, Any], counts: Counter[str]) -> bool:
    """Move to the first event.

    Args:
        window: at the file's beginning; afterwards behind the ``[`` of the events.
        path: the file's name, for errors.
        metadata: takes what stands before the events.
        counts: takes ``metadata_damaged``.

    Returns:
        Whether the file is a bare list of events.

    Raises:
        TraceError: this is no trace; the message names what it is instead, where that can be told.
    """
    window.fill(STEP_BYTES)
    head = bytes(window.buffer[window.start : window.end])
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE)
    window.start += len(head) - len(text)
    if not text:
        why = f" ({window.problem})" if window.problem else ""
        raise TraceError(path, f"the file is empty{why}: the tool that wrote it failed; capture again")
    if text.startswith(b"{"):
        _find_events(window, path, metadata, counts)
        return False
    if not text.startswith(b"["):
        raise TraceError(path, "not JSON, so not a torch.profiler trace; use export_chrome_trace")
    first = text[1:].lstrip(_SPACE)[:1]
    if first == b"[":
        raise TraceError(
            path, "a list of lists: a memory timeline (export_memory_timeline), not a trace; use export_chrome_trace"
        )
    if first not in (b"{", b"]", b""):
        raise TraceError(path, "a JSON list, but not of events: not a torch.profiler trace; use export_chrome_trace")
    window.start += 1
    return True


def read_tail(window: Window, metadata: dict[str, Any], counts: Counter[str]) -> None:
    """Read what follows the ``]`` of the events into ``metadata``; count what cannot be used."""
    while not window.ended and len(window) <= MAX_METADATA_BYTES:
        window.fill(len(window) + STEP_BYTES)
    text = window.text().strip()
    found, rest = _loads("{" + text.removeprefix(","))
    if found is None:
        _salvage(text, metadata, counts)
        return
    counts["trailing_bytes"] += len(rest)
    if "traceEvents" in found:
        del found["traceEvents"]
        counts["second_event_lists"] += 1
    metadata.update(found)


def _find_events(window: Window, path: Path | str, metadata: dict[str, Any], counts: Counter[str]) -> None:
    searched = 0
    while True:
        for found in _EVENTS_KEY.finditer(window.buffer, window.start + searched, window.end):
            if _top_level(window.text(found.start() - window.start), metadata, counts):
                window.start = found.end()
                return
        if window.ended:
            _refuse(window.text(), path)
        if len(window) > MAX_METADATA_BYTES:
            raise TraceError(path, f"no traceEvents in the first {MAX_METADATA_BYTES >> 20} MiB: not a trace")
        searched = max(len(window) - _KEY_BYTES, 0)  # the key may be cut by the end of the buffer
        window.fill(len(window) + STEP_BYTES)


def _top_level(head: str, metadata: dict[str, Any], counts: Counter[str]) -> bool:
    """Whether a key after this text is one of the file's outermost object; keeps what stands before it if so."""
    found, rest = _loads(head + '"traceEvents":0}')
    if found is not None and not rest:
        del found["traceEvents"]
        metadata.update(found)
        return True
    depth = 0
    for bracket in _BRACKETS.finditer(head):
        depth += bracket[0] in "{["
        depth -= bracket[0] in "}]"
    if depth == 1:
        _salvage(head, metadata, counts)
    return depth == 1


def _refuse(text: str, path: Path | str) -> None:
    whole, _ = _loads(text)
    if whole is None:
        raise TraceError(path, "JSON that is cut or damaged before its first event; copy or capture it again")
    if "nodes" in whole:
        raise TraceError(
            path,
            "an execution trace (ExecutionTraceObserver), which is no timeline; use "
            "torch.profiler's export_chrome_trace",
        )
    if "segments" in whole or "device_traces" in whole:
        raise TraceError(path, "a memory snapshot as JSON, not a trace; pass the pickle that torch wrote")
    what = "traceEvents is not a list" if "traceEvents" in whole else "JSON without traceEvents"
    raise TraceError(path, f"{what}: not a torch.profiler trace; use export_chrome_trace")


def _loads(text: str) -> tuple[dict[str, Any] | None, str]:
    """The object that the text (bytes as latin-1) begins with, and what follows it; None when there is none."""
    text = text.encode("latin-1").decode(errors="replace")
    try:
        found, end = tolerant.raw_decode(text)
    except (ValueError, RecursionError):
        return None, ""
    return (found, text[end:].strip()) if isinstance(found, dict) else (None, "")


def _salvage(text: str, metadata: dict[str, Any], counts: Counter[str]) -> None:
    """Keep the values that matter from metadata that is not JSON."""
    counts["metadata_damaged"] += 1
    if base := _BASE_TIME.search(text):
        metadata["baseTimeNanoseconds"] = int(base[1])
    if distributed := _DISTRIBUTED.search(text):
        try:
            metadata["distributedInfo"] = tolerant.raw_decode(text, distributed.end())[0]
        except (ValueError, RecursionError):
            return
