"""The fast way to read a snapshot gives what the unpickler gives, or gives up."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeropeak.parse.snapshot.entries import Columns, columns
from zeropeak.parse.snapshot.machine import GaveUp, Machine, Trace, unframed
from zeropeak.parse.snapshot.unpickle import PlainUnpickler

ACTION = ["alloc", "free_requested", "free_completed", "segment_alloc"]
FRAMES = [{"name": f"f{number}", "filename": "model.py", "line": number} for number in range(400)]


def scan(content: bytes) -> Any:
    data = unframed(io.BytesIO(content), len(content))
    if data is None:
        raise GaveUp("not framed")
    return Machine(data).load()


def fields(found: Columns) -> list[list[int]]:
    return [found.action.tolist(), found.address.tolist(), found.size.tolist(), found.stream.tolist(),
            found.time_us.tolist()]  # fmt: skip


def same(content: bytes) -> dict[str, Any]:
    """Read both ways, compare, and return what the unpickler gives."""
    fast, slow = scan(content), PlainUnpickler(io.BytesIO(content)).load()
    assert len(fast["device_traces"]) == len(slow["device_traces"])
    for quick, plain in zip(fast["device_traces"], slow["device_traces"], strict=True):
        assert isinstance(quick, Trace)
        assert fields(quick.columns()) == fields(columns(plain))
    for key in fast.keys() - {"device_traces"}:
        assert fast[key] == slow[key]
    return slow  # type: ignore[no-any-return]


def entry(index: int, stack: list[Any], **more: Any) -> dict[str, Any]:
    return {"action": ACTION[index % 4], "addr": 139_861_041_902_080 + 512 * index, "size": 1 << (index % 33),
            "stream": 0, "time_us": 1_796_055_924_738_592 + index, **more, "frames": stack}  # fmt: skip


def history(count: int, **more: Any) -> dict[str, Any]:
    stacks = [[FRAMES[(start + depth) % 400] for depth in range(start % 7)] for start in range(count // 3 + 1)]
    trace = [entry(index, stacks[index // 3], **more) for index in range(count)]
    return {"segments": [{"address": 1, "blocks": [{"frames": [FRAMES[0]]}]}], "device_traces": [[], trace],
            "external_annotations": [{"name": "step", "stage": "START", "time_us": 5}]}  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 2, 999, 1000, 1001, 2000, 5000])
def test_batches_of_any_length(count: int) -> None:
    same(pickle.dumps(history(count), 4))


@pytest.mark.parametrize("protocol", [4, 5])
def test_most_entries_are_decoded_in_runs(protocol: int) -> None:
    found = scan(pickle.dumps(history(5000), protocol))["device_traces"][1]
    assert len(found.parts) < 500
    assert max(len(part.action) for part in found.parts) > 1000


def test_strings_of_their_own_and_pool_ids() -> None:
    made = history(3000)
    for item in made["device_traces"][1]:
        item["compile_context"] = b"N/A".decode()
        item["pool_id"] = (0, item["size"] % 200)
    found = scan(pickle.dumps(made, 4))["device_traces"][1]
    assert max(len(part.action) for part in found.parts) > 1000
    same(pickle.dumps(made, 4))


def test_two_shapes_of_entries_in_turn() -> None:
    made = history(3000)
    for item in made["device_traces"][1][::2]:
        item["compile_context"] = "0/0"
    found = scan(pickle.dumps(made, 4))["device_traces"][1]
    assert max(len(part.action) for part in found.parts) > 1000
    same(pickle.dumps(made, 4))


def test_an_out_of_memory_error_in_the_middle() -> None:
    made = history(3000)
    oom = {"action": "oom", "device_free": 4096, "size": 1 << 40, "stream": 0, "time_us": 7, "frames": []}
    made["device_traces"][1].insert(1500, oom)
    same(pickle.dumps(made, 4))
    assert scan(pickle.dumps(made, 4))["device_traces"][1].columns().oom_device_free == (4096,)


def test_numbers_that_do_not_fit_are_missing() -> None:
    made = history(1500)
    for place, value in ((700, -5), (701, 1 << 63), (702, (1 << 63) - 1), (703, 1 << 80), (704, 1.5), (705, None)):
        made["device_traces"][1][place]["addr"] = value
    same(pickle.dumps(made, 4))
    assert scan(pickle.dumps(made, 4))["device_traces"][1].columns().address[700:706].tolist() == [
        -1, -1, (1 << 63) - 1, -1, -1, -1]  # fmt: skip


def test_an_address_with_the_bytes_of_an_entry() -> None:
    made = history(1500)
    look_alike = int.from_bytes(b"}\x94(h\x0bh\x0c", "little") & ((1 << 63) - 1)
    for item in made["device_traces"][1][100::50]:
        item["addr"] = look_alike
    same(pickle.dumps(made, 4))


def test_traces_before_segments() -> None:
    made = history(3000)
    same(pickle.dumps({key: made[key] for key in ("device_traces", "external_annotations", "segments")}, 4))


def test_other_pickles_are_left_to_the_unpickler() -> None:
    for made in (pickle.dumps(history(10), 2), b"", b"\x80", b"\x80\x04K\x01.", pickle.dumps({"a": b"bytes"}, 4)):
        with pytest.raises(GaveUp):
            scan(made)


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.tuples(inner), st.dictionaries(st.text(max_size=3), inner)),
    max_leaves=8,
)
entries = st.fixed_dictionaries(
    {"action": st.sampled_from(ACTION), "addr": st.integers(0, 1 << 50), "size": st.integers(0, 1 << 40)},
    optional={"time_us": st.integers(0, 1 << 52), "stream": st.integers(-5, 1 << 33), "extra": values},
)


@given(traces=st.lists(st.lists(st.one_of(entries, entries, entries, values), max_size=12), max_size=3), other=values)
@settings(max_examples=120, deadline=None)
def test_any_snapshot_is_read_the_same(traces: list[list[Any]], other: Any) -> None:
    try:
        same(pickle.dumps({"segments": other, "device_traces": traces, "other": other}, 4))
    except GaveUp:
        assert any(not isinstance(item, dict) or len(item) < 2 for trace in traces for item in trace)


BASE = pickle.dumps(history(60, compile_context="N/A"), 4)


@given(st.lists(st.tuples(st.integers(11, len(BASE) - 1), st.integers(0, 255)), min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_a_damaged_pickle_is_never_read_differently(damage: list[tuple[int, int]]) -> None:
    content = bytearray(BASE)
    for place, value in damage:
        content[place] = value
    try:
        fast = scan(bytes(content))
        slow = PlainUnpickler(io.BytesIO(bytes(content))).load()
    except (GaveUp, pickle.UnpicklingError):
        # The unpickler also minds references to nothing in stacks, which are not read here.
        return
    assert type(fast) is type(slow)
    if isinstance(slow, dict) and isinstance(slow.get("device_traces"), list):
        for quick, plain in zip(fast["device_traces"], slow["device_traces"], strict=True):
            if isinstance(quick, Trace):
                assert fields(quick.columns()) == fields(columns(plain))
            else:
                assert type(quick) is type(plain)


def test_the_end_of_the_data_is_never_crossed() -> None:
    for length in range(12, len(BASE) - 1, 7):
        cut = np.frombuffer(BASE[11:length] + bytes(64), np.uint8).copy()
        with pytest.raises(GaveUp):
            Machine(cut).load()
