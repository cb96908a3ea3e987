"""Which storages outlive their release, and who holds them: on plain tensors, without DeepSpeed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

torch = pytest.importorskip("torch")

from zeropeak.profile.eventlog import EventLog  # noqa: E402
from zeropeak.profile.holders import SequenceSpans, find_saves  # noqa: E402
from zeropeak.profile.labels import Stored  # noqa: E402
from zeropeak.profile.storages import Storages  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


def address(storage: Any) -> int:
    return int(storage.data_ptr())


def test_a_view_keeps_a_released_storage_alive_until_it_goes(tmp_path: Path) -> None:
    log = EventLog(tmp_path, iter(range(100)).__next__)
    storages = Storages(log, iter(range(100, 200)).__next__)
    weight = torch.nn.Parameter(torch.ones(4, 4))
    view = weight.data.t()
    found = storages.register(weight.data, Stored.PARAM_FULL, "weight", 0)
    assert found is not None
    number = found.storage_id
    assert (number, found.size_bytes) == (1, 64)
    weight.data = torch.empty(0)
    storages.release(found, 0, event_id=9)
    assert [released.event_id for released in storages.released_alive()] == [9]
    del view
    assert storages.released_alive() == []
    log.close()
    with pa.OSFile(str(tmp_path / "storages.arrows")) as file:
        rows = pa.ipc.open_stream(file).read_all().to_pylist()
    assert [(row["edge"], row["storage_id"]) for row in rows] == [("begin", number), ("end", number)]


def test_a_storage_is_registered_once_while_it_lives(tmp_path: Path) -> None:
    storages = Storages(EventLog(tmp_path, lambda: 0), lambda: 0)
    tensor = torch.ones(8)
    first = storages.register(tensor, Stored.INPUT, "a")
    assert storages.register(tensor[2:], Stored.PARAM_FULL, "b") == first
    assert storages.register(torch.empty(0), Stored.INPUT, "nothing") is None
    del tensor
    assert storages.register(torch.ones(8), Stored.INPUT, "c") != first


def test_the_holder_is_the_node_that_saved_a_view_and_its_module() -> None:
    weight = torch.ones(3, 3)
    spans = SequenceSpans()
    spans.enter(0)
    hidden = torch.ones(2, 3, requires_grad=True) * 2
    spans.enter(1)
    output = torch.addmm(torch.zeros(3), hidden, weight.t())
    spans.leave(1)
    output = output.sum()
    spans.leave(0)
    key = weight.untyped_storage()._cdata
    saves, skipped = find_saves({"loss": output}, spans, address)
    assert {save.key: tuple(save.holder) for save in saves}[key] == ("AddmmBackward0._saved_mat2", 1)
    assert skipped == 0


def test_a_save_with_an_unpack_hook_is_skipped_and_counted() -> None:
    """Reading it would run forward again under non-reentrant checkpointing."""
    weight = torch.ones(3, 3)
    unpacked = []

    def unpack(tensor: object) -> object:
        unpacked.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        output = torch.ones(2, 3, requires_grad=True) @ weight
    saves, skipped = find_saves([output], SequenceSpans(), address)
    assert (saves, unpacked) == ([], [])
    assert skipped in {1, 2}


def test_a_python_function_is_named_with_the_index_of_its_save() -> None:
    class Double(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: object, inputs: object, kept: object) -> object:
            ctx.save_for_backward(inputs, kept)  # type: ignore[attr-defined]
            return inputs * 2  # type: ignore[operator]

        @staticmethod
        def backward(ctx: object, gradient: object) -> tuple[object, None]:
            return gradient, None

    kept = torch.ones(5)
    output = Double.apply(torch.ones(2, requires_grad=True), kept)
    saves, _ = find_saves((output,), SequenceSpans(), address)
    assert {save.key: save.holder.name for save in saves}[kept.untyped_storage()._cdata] == (
        "DoubleBackward.saved_tensors[1]"
    )


def test_a_storage_that_several_nodes_saved_counts_once_with_its_whole_size() -> None:
    hidden = torch.ones(4, requires_grad=True).exp()
    output = (hidden[1:] * hidden[:-1]).sum()
    saves, _ = find_saves(output, SequenceSpans(), address)
    sizes = {save.key: save.size_bytes for save in saves}
    assert sizes[hidden.untyped_storage()._cdata] == 16
    assert len(sizes) == len(saves)


def test_what_lies_on_another_device_is_not_registered(tmp_path: Path) -> None:
    storages = Storages(EventLog(tmp_path, lambda: 0), lambda: 0, device="cuda:0")
    assert storages.register(torch.ones(8), Stored.OPTIMIZER_STATE, "offloaded") is None


def test_the_next_storage_at_an_ended_ones_place_is_another(tmp_path: Path) -> None:
    """Ends are heard at a flush: until then a new storage may have the address of the old one's object."""
    log = EventLog(tmp_path, iter(range(1000)).__next__)
    storages = Storages(log, iter(range(1000)).__next__)
    numbers = []
    for _ in range(20):
        tensor = torch.ones(8)
        found = storages.register(tensor, Stored.PARAM_FULL, "weight", 0)
        assert found is not None
        numbers.append(found.storage_id)
        del tensor
    assert len(set(numbers)) == 20
    log.close()
    with pa.OSFile(str(tmp_path / "storages.arrows")) as file:
        rows = pa.ipc.open_stream(file).read_all().to_pylist()
    assert sorted((row["storage_id"], row["edge"]) for row in rows) == [
        (number, edge) for number in numbers for edge in ("begin", "end")
    ]
