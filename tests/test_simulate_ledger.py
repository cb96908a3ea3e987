from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from zeropeak.profile.allocator import Allocator
from zeropeak.profile.simulate.ledger import Ledger
from zeropeak.profile.simulate.order import Order
from zeropeak.profile.simulate.slices import slice_patches
from zeropeak.profile.simulate.streams import Streams

if TYPE_CHECKING:
    from zeropeak.profile.simulate.ledger import Row


def ledger() -> tuple[Ledger, list[Row]]:
    rows: list[Row] = []
    return Ledger(Order(), rows.append, "gpu", Allocator()), rows


def test_a_storage_counts_from_its_first_sight_to_its_death_whatever_views_it() -> None:
    book, rows = ledger()
    tensor = torch.empty(100, dtype=torch.float32)
    book.see(tensor.untyped_storage(), "gpu")
    view = tensor[10:]
    book.see(view.untyped_storage(), "gpu")
    assert (book.total("gpu").now, len(rows)) == (512, 1)
    address = book.address(view.untyped_storage())
    del tensor
    assert book.total("gpu").now == 512
    del view
    assert [(row[1], row[3], row[4], row[5]) for row in rows] == [
        ("alloc", address, 512, 512),
        ("free", address, 512, 0),
    ]


def test_the_gpu_rounds_and_host_memory_does_not() -> None:
    book, _ = ledger()
    kept = [torch.empty(5, dtype=torch.uint8) for _ in range(2)]
    book.see(kept[0].untyped_storage(), "gpu")
    book.see(kept[1].untyped_storage(), "cpu")
    assert (book.total("gpu").now, book.total("cpu").now) == (512, 5)
    book.close()


def test_an_empty_storage_is_nothing_until_it_is_resized() -> None:
    book, rows = ledger()
    storage = torch.empty(0, dtype=torch.uint8).untyped_storage()
    book.see(storage, "gpu")
    assert not rows
    storage.resize_(600)
    book.see(storage, "gpu")
    storage.resize_(0)
    book.resized(storage)
    assert [(row[1], row[4]) for row in rows] == [("alloc", 1024), ("free", 1024)]


def test_the_window_begins_anew_and_the_highest_ever_stays() -> None:
    book, _ = ledger()
    total = book.total("gpu")
    book.flash(2000)
    assert (total.now, total.window_max, total.max) == (0, 2048, 2048)
    book.reset_window("gpu")
    book.hold(512)
    assert (total.now, total.window_max, total.max) == (512, 512, 2048)


def test_pinned_memory_is_counted_until_it_dies() -> None:
    book, _ = ledger()
    tensor = torch.empty(1000, dtype=torch.uint8)
    book.see(tensor.untyped_storage(), "cpu")
    book.pin(tensor.untyped_storage())
    book.pin(tensor.untyped_storage())
    assert (book.pinned.now, book.is_pinned(tensor.untyped_storage())) == (1000, True)
    del tensor
    assert (book.pinned.now, book.pinned.max) == (0, 1000)


def test_no_two_addresses_overlap_and_no_two_moments_are_equal() -> None:
    book, rows = ledger()
    tensors = [torch.empty(size, dtype=torch.uint8) for size in (1, 700, 512)]
    for tensor in tensors:
        book.see(tensor.untyped_storage(), "gpu")
    spans = sorted((row[3], row[3] + row[4]) for row in rows)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert len({row[0] for row in rows}) == len(rows)
    book.close()


def test_an_allocation_knows_the_stream_it_was_made_on() -> None:
    book, rows = ledger()
    streams = Streams(book)
    side = streams.make()
    with streams.use(side):
        book.flash(1)
    book.flash(1)
    assert [row[7] for row in rows] == [side.stream_id, side.stream_id, 0, 0]


def test_slices_of_one_length_are_one_slice_and_keep_nothing_alive() -> None:
    class Fake(torch.Tensor):
        pass

    narrow, item = slice_patches(Fake)
    base = torch.arange(12)
    first = narrow.value(base, 0, 0, 3)
    assert narrow.value(base, 0, 3, 3) is first
    assert narrow.value(base, 0, 3, 4) is not first
    assert item.value(base.view(3, 4), slice(0, 1)).shape == (1, 4)
    assert item.value(base, 3) == 3


def test_slices_that_autograd_follows_are_their_own() -> None:
    narrow, _ = slice_patches(torch.Tensor)
    base = torch.zeros(8, requires_grad=True)
    assert narrow.value(base, 0, 0, 2) is not narrow.value(base, 0, 2, 2)


def test_a_rest_that_is_too_small_to_split_off_counts_as_allocated_and_segments_as_reserved() -> None:
    book, rows = ledger()
    first = torch.empty(11 << 20, dtype=torch.uint8)
    book.see(first.untyped_storage(), "gpu")
    assert (book.total("gpu").now, book.reserved_bytes) == (12 << 20, 12 << 20)  # a segment is a multiple of 2 MiB
    del first
    assert (book.total("gpu").now, book.reserved_bytes, rows[-1][6]) == (0, 12 << 20, 12 << 20)
    book.empty_cache()
    assert book.reserved_bytes == 0


def test_memory_that_another_stream_uses_is_not_allocated_but_waits() -> None:
    book, _ = ledger()
    tensor = torch.empty(11 << 20, dtype=torch.uint8)
    book.see(tensor.untyped_storage(), "gpu")
    address = book.address(tensor.untyped_storage())
    book.record_stream(tensor.untyped_storage(), 1)
    del tensor
    assert book.total("gpu").now == 0
    assert book.hold(11 << 20) == address  # by the next allocation the other stream is done
