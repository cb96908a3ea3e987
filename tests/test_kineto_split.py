"""Laws of the splitter: whatever the layout, the events are those that a JSON parser finds."""

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zeropeak.parse.kineto import metadata as kineto_metadata
from zeropeak.parse.kineto import split as kineto_split
from zeropeak.parse.kineto import window as kineto_window
from zeropeak.parse.kineto.part import DEFAULTS, WHOLE, Part
from zeropeak.parse.kineto.split import Splitter
from zeropeak.parse.kineto.unpack import Blocks

TRICKY = st.sampled_from(
    ['}, {"ph": "X"', "},{", '"', "\\", "]}", '"traceEvents": [', "\u2028\U0001f600", "]\n  }, \n{"]
)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text() | TRICKY
KEYS = st.sampled_from(["ph", "cat", "name", "args", "ts", "traceEvents", "baseTimeNanoseconds"]) | st.text(max_size=4)
VALUES = st.recursive(SCALARS, lambda some: st.lists(some, max_size=4) | st.dictionaries(KEYS, some, max_size=4))
EVENTS = st.lists(st.dictionaries(KEYS, VALUES, max_size=5), max_size=12)
BOUNDED = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
METADATA = st.dictionaries(KEYS.filter(lambda key: key != "traceEvents"), VALUES, max_size=3)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes at which a text of a few hundred bytes is many chunks."""
    monkeypatch.setattr(kineto_split, "CHUNK_BYTES", 256)
    monkeypatch.setattr(kineto_split, "CAREFUL_BYTES", 32)
    monkeypatch.setattr(kineto_split, "LOOKAHEAD_BYTES", 64)
    monkeypatch.setattr(kineto_window, "BUFFER_BYTES", 400)
    monkeypatch.setattr(kineto_metadata, "STEP_BYTES", 100)


class Collect:
    """Keeps every event as a JSON parser sees it."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.attempts = 0

    def attempt(self, array: memoryview) -> bool:
        try:
            self.events += json.loads(bytes(array))
        except ValueError:
            return False
        self.attempts += 1
        return True

    def single(self, text: bytes) -> bool:
        try:
            self.events.append(json.loads(text))
        except ValueError:
            return False
        return True

    def settle(self) -> None:
        pass


def kineto_layout(head: dict[str, Any], events: list[Any], tail: dict[str, Any]) -> str:
    """As kineto prints: an event opens with two spaces, its values take a line, arguments their own."""

    def one(event: dict[str, Any]) -> str:
        values = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in event.items())
        return f"  {{\n    {values}\n  }}"

    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    parts.append('"traceEvents": [\n' + ",\n".join(map(one, events)) + "\n  ]")
    parts += [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in tail.items() if key not in head]
    return "\n{\n  " + ",\n  ".join(parts) + "\n}\n"


def dumped(indent: int | None, tight: bool, ascii_only: bool) -> Any:
    def layout(head: dict[str, Any], events: list[Any], tail: dict[str, Any]) -> str:
        whole = {**head, "traceEvents": events, **{key: value for key, value in tail.items() if key not in head}}
        return json.dumps(whole, indent=indent, separators=(",", ":") if tight else None, ensure_ascii=ascii_only)

    return layout


LAYOUTS = st.just(kineto_layout) | st.builds(dumped, st.sampled_from([None, 0, 1, 2]), st.booleans(), st.booleans())


def split(text: bytes, part: Part = WHOLE) -> tuple[Collect, Splitter, Counter[str]]:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        Path(file.name).write_bytes(text)
        taker, counts = Collect(), Counter[str]()
        blocks = Blocks(file.name, DEFAULTS)
        splitter = Splitter(blocks, file.name, taker, counts, part)
        if splitter.open():
            splitter.take()
        blocks.close()
    return taker, splitter, counts


@BOUNDED
@given(METADATA, EVENTS, METADATA, LAYOUTS)
def test_any_layout_gives_the_events_that_json_finds(
    head: dict[str, Any], events: list[Any], tail: dict[str, Any], layout: Any
) -> None:
    text = layout(head, events, tail).encode()
    expected = json.loads(text)
    taker, splitter, counts = split(text)
    assert taker.events == expected.pop("traceEvents")
    assert splitter.metadata == expected
    assert (splitter.partial, {what: count for what, count in counts.items() if count}) == (False, {})


@BOUNDED
@given(EVENTS.filter(bool), LAYOUTS, st.integers(0, 3000), st.integers(0, 3000))
def test_parts_that_meet_hold_every_event_once(events: list[Any], layout: Any, first: int, second: int) -> None:
    text = layout({"a": 1}, events * 3, {"b": [{"ph": 1}, {"ph": 2}]}).encode()
    cuts = sorted({first % len(text), second % len(text)} - {0})
    found: list[Any] = []
    for begin, stop in zip([0, *cuts], [*cuts, None], strict=True):
        taker, splitter, counts = split(text, Part(begin, stop))
        found += taker.events
        assert not +counts
        if not splitter.met:
            break  # it has gone on to the end
    assert found == json.loads(text)["traceEvents"]


@BOUNDED
@given(EVENTS, LAYOUTS, st.integers(0, 10_000))
def test_a_cut_text_gives_the_events_before_the_cut(events: list[Any], layout: Any, cut: int) -> None:
    text = layout({}, events, {}).encode()
    start = text.index(b"[", text.index(b'"traceEvents"')) + 1
    taker, splitter, counts = split(text[: start + cut % (len(text) - start + 1)])
    whole = json.loads(text)["traceEvents"]
    assert taker.events == whole[: len(taker.events)]
    assert splitter.partial or len(taker.events) == len(whole)
    assert counts["events_dropped"] == 0


def test_a_sound_text_is_taken_in_large_pieces() -> None:
    taker, _, _ = split(kineto_layout({}, [{"ph": "X", "name": "x" * 20, "args": {}}] * 500, {}).encode())
    assert len(taker.events) == 500
    assert taker.attempts < 200


def test_the_buffer_stays_small_however_long_the_text_is(monkeypatch: pytest.MonkeyPatch) -> None:
    _, splitter, _ = split(kineto_layout({}, [{"ph": "X", "name": "x" * 20}] * 5000, {}).encode())
    assert len(splitter._window.buffer) <= 4096


def test_an_event_longer_than_the_limit_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_split, "MAX_EVENT_BYTES", 1000)
    events = [{"ph": "X", "n": 1}, {"ph": "X", "name": "y" * 5000}, {"ph": "X", "n": 2}, {"ph": "X", "n": 3}]
    taker, splitter, counts = split(kineto_layout({}, events, {}).encode())
    assert [event["n"] for event in taker.events] == [1, 3] or [event["n"] for event in taker.events] == [1, 2, 3]
    assert counts["events_dropped"] >= 1
    assert not splitter.partial


def test_parts_of_a_sound_text_always_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_split, "LOOKAHEAD_BYTES", 200)  # at least one event long
    events = [{"ph": "X", "name": "x" * (number % 50)} for number in range(60)]
    text = kineto_layout({}, events, {"a": 1}).encode()
    last = text.rindex(b'  {\n    "ph"')
    for stop in range(40, last - 30, 7):
        first, splitter, _ = split(text, Part(0, stop))
        assert splitter.met, stop
        second, _, _ = split(text, Part(stop, None))
        assert first.events + second.events == events
