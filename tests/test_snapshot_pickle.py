"""Loading the pickle of a snapshot: what is refused, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import gzip
import pickle
import resource
import struct
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zeropeak.parse.snapshot.unpickle import collector_off, load
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SNAPSHOT: dict[str, Any] = {"segments": [], "device_traces": [[]]}
MEMORY = 256 << 20


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_bytes(content: bytes, name: str = "snapshot.pickle") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write_bytes


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04cos\nsystem\n(\x8c\x02lsR.",
        b"\x80\x04(ios\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.",
        b"\x80\x04}cos\nsystem\nNb.",
    ],
    ids=["GLOBAL", "INST", "STACK_GLOBAL", "in a dict"],
)
def test_no_class_is_loaded(write: Callable[..., Path], content: bytes) -> None:
    with pytest.raises(TraceError, match=r"snapshot\.pickle: not a memory snapshot: it asks for os\.system"):
        load(write(content))


def test_a_pickled_object_is_refused_by_the_name_of_its_class(write: Callable[..., Path]) -> None:
    content = pickle.dumps({"segments": [threading.Thread]})
    with pytest.raises(TraceError, match=r"it asks for threading\.Thread, and no class is ever loaded"):
        load(write(content))


@pytest.mark.parametrize("opcode", [b"\x80\x04}}R.", b"\x80\x04}}b.", b"\x80\x04})\x81.", b"\x80\x04\x82\x01."])
def test_opcodes_that_call_something_find_nothing_to_call(write: Callable[..., Path], opcode: bytes) -> None:
    with pytest.raises(TraceError, match="not a readable pickle"):
        load(write(opcode))


def test_references_to_objects_outside_are_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(TraceError, match="refers to an object outside the file"):
        load(write(b"\x80\x04\x8c\x07storageQ."))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"hello", "not a pickle"),
        (b"\x80", "not a pickle"),
        (b"PK\x03\x04", r"zip archive \(torch.save writes those\)"),
        (pickle.dumps([1, 2]), "a pickle of a list, not a memory snapshot"),
        (pickle.dumps(0x1950A86A20F9469CFC6C, 2), "a pickle of a int"),
        (pickle.dumps({"layer.weight": 1, "layer.bias": 2}), "a dict with layer.weight, layer.bias"),
        (pickle.dumps({"segments": 3}), "a dict with segments, not a memory snapshot"),
        (pickle.dumps(SNAPSHOT)[:-3], "the pickle stops before its end"),
        (gzip.compress(pickle.dumps(SNAPSHOT))[:-12], "the gzip data stops before its end"),
        (b"\x1f\x8b\x08\x00" + bytes(40), "the gzip data is damaged"),
        (b"\x80\x04.", "not a readable pickle"),
    ],
)
def test_other_files_are_refused_with_the_way_out(write: Callable[..., Path], content: bytes, said: str) -> None:
    with pytest.raises(TraceError, match=said) as caught:
        load(write(content))
    assert "\n" not in str(caught.value)
    assert ";" in caught.value.problem


def test_a_missing_file_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        load(tmp_path / "snapshot.pickle")


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04}r\xff\xff\xff\xff.",
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"x.",
        b"\x80\x04\x8b" + struct.pack("<i", (1 << 31) - 1) + b"x.",
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"x.",
        b"\x80\x04(" + b"}" * 8_000_000 + b"l.",
    ],
    ids=["memo index", "bytes", "text", "integer", "frame", "flood of dicts"],
)
def test_a_few_bytes_cannot_take_all_memory(write: Callable[..., Path], content: bytes) -> None:
    with pytest.raises(TraceError, match=f"takes more than the {MEMORY} bytes of memory"):
        load(write(content), memory_bytes=MEMORY)


def test_a_gzip_bomb_stops_at_the_limit(write: Callable[..., Path]) -> None:
    bomb = gzip.compress(b"\x80\x04" + b"N" * 50_000_000)
    assert len(bomb) < 60_000
    with pytest.raises(TraceError, match="holds more than 1000000 bytes of pickle; record less"):
        load(write(bomb, "snapshot.pickle.gz"), max_bytes=1_000_000)


def test_gzip_in_members_and_with_trailing_garbage_is_read(write: Callable[..., Path]) -> None:
    content = pickle.dumps({"segments": [], "x": "y" * 1000})
    packed = gzip.compress(content[:500]) + gzip.compress(content[500:]) + b"garbage"
    assert load(write(packed))["x"] == "y" * 1000


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_all_binary_protocols_are_read(write: Callable[..., Path], protocol: int) -> None:
    assert load(write(pickle.dumps(SNAPSHOT, protocol)))["segments"] == []


def test_limits_of_the_process_are_restored(write: Callable[..., Path]) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    load(write(pickle.dumps(SNAPSHOT)))
    with pytest.raises(TraceError):
        load(write(b"\x80\x04}r\xff\xff\xff\xff."), memory_bytes=MEMORY)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_as_before(was_on: bool) -> None:
    (gc.enable if was_on else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError), collector_off():
            1 / gc.isenabled()
        assert gc.isenabled() is was_on
    finally:
        gc.enable()


@given(content=st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(lambda tail: b"\x80\x04" + tail)))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_bytes_are_read_or_refused(write: Callable[..., Path], content: bytes) -> None:
    with contextlib.suppress(TraceError):
        load(write(content), memory_bytes=MEMORY)
