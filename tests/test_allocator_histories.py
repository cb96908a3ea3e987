"""The model against what torch's allocator really did: requests and frees of memory snapshots, run once more.

Snapshots of your own: ``ZEROPEAK_SNAPSHOTS=a.pickle.gz:b.pickle pytest -s tests/test_allocator_histories.py``.
"""

from __future__ import annotations

import os
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.captures import CAPTURES, cases, needs, needs_captures
from tests.histories import History, places, read_history

from zeropeak.profile.allocator import Allocator, Curve, SegmentChange, replay

CASES = [path for path in cases("snapshots", "*.pickle") if not path.name.startswith("mosaic")]
BIG = [(name, rank) for name in ("s2m0", "s3m0", "s3m1") for rank in (0, 1)]
EXTRA = [Path(name) for name in os.environ.get("ZEROPEAK_SNAPSHOTS", "").split(os.pathsep) if name]
MIB = 1 << 20
NAMES = {"segment_alloc": "segment", "segment_map": "segment", "segment_free": "gone", "segment_unmap": "gone"}

needs_cases = needs(CASES)


class RealAddresses:
    """Gives segments the addresses that the driver gave them."""

    def __init__(self, history: History) -> None:
        self.segments = iter([(address, size) for action, address, size in history.story if action == "segment"])

    def take(self, size: int) -> int:
        address, real_size = next(self.segments)
        assert size == real_size, "another segment than torch's"
        return address

    def give(self, address: int, size: int) -> None:
        pass

    def adopt(self, taken: list[tuple[int, int]]) -> None:
        pass


@dataclass
class Error:
    """The model's reserved bytes less the real ones."""

    peak: int
    final: int
    largest: int
    steps: int
    """Steps with any difference."""


def error(curve: Curve, real: list[int]) -> Error:
    differences = [model - truth for model, truth in zip(curve.reserved_bytes, real, strict=True)]
    return Error(
        max(curve.reserved_bytes) - max(real),
        differences[-1],
        max(differences, key=abs),
        sum(difference != 0 for difference in differences),
    )


def check_with_real_addresses(history: History) -> None:
    """Told where segments lie, the model puts every single block where torch put it."""
    allocator = Allocator(history.settings, lag=None)
    allocator._device.space = RealAddresses(history)  # type: ignore[assignment]
    allocator.adopt(history.start)
    curve = replay(allocator, history.steps)
    assert error(curve, history.reserved) == Error(0, 0, 0, 0)
    allocations = [place for place, step in enumerate(history.steps) if step.action == "alloc"]
    assert [curve.address[place] for place in allocations] == [history.address[place] for place in allocations]


def error_with_own_addresses(history: History) -> tuple[Error, int]:
    """Error, and how many blocks lie in the same segment (counted by age) at the same offset."""
    story: list[tuple[str, int, int]] = []

    def changed(change: SegmentChange) -> None:
        story.append((NAMES[change.action], change.address, change.size_bytes))

    allocator = Allocator(history.settings, lag=None, changed=changed)
    if history.start:
        allocator.adopt(history.start)
    curve = Curve()
    for step in history.steps:
        one = replay(allocator, [step])
        if step.action == "alloc":
            story.append(("alloc", one.address[0], 0))
        curve.reserved_bytes.extend(one.reserved_bytes)
    real = places(history.start, history.story)
    mine = places(history.start, story)
    return error(curve, history.reserved), sum(one == other for one, other in zip(mine, real, strict=True))


def error_without_waiting(history: History) -> Error:
    """Error when nobody says when the other streams were done: each is done at the next allocation."""
    allocator = Allocator(history.settings)
    if history.start:
        allocator.adopt(history.start)
    told = [place for place, step in enumerate(history.steps) if step.action != "complete"]
    curve = replay(allocator, [history.steps[place] for place in told])
    return error(curve, [history.reserved[place] for place in told])


def check(history: History, name: str) -> tuple[Error, Error]:
    """Compare in all three ways and print the figures; errors with own addresses, and without waiting."""
    if not history.settings.expandable_segments:
        check_with_real_addresses(history)
    own, same = error_with_own_addresses(history)
    waiting = error_without_waiting(history)
    peak = max(history.reserved)
    allocations = sum(step.action == "alloc" for step in history.steps)
    print(
        f"\n{name}: {len(history.steps)} steps, {len(history.lags)} waited (at most {max(history.lags, default=0)} "
        f"allocations more), peak reserved {peak / MIB:.0f} MiB; own addresses: peak {own.peak / MIB:+.0f} MiB, final "
        f"{own.final / MIB:+.0f}, largest {own.largest / MIB:+.0f}, {own.steps} steps differ, {same} of {allocations} "
        f"blocks in the same place; without waiting: peak {waiting.peak / MIB:+.0f} MiB, largest "
        f"{waiting.largest / MIB:+.0f}"
    )
    assert abs(own.peak) <= 0.03 * peak
    assert abs(waiting.peak) <= 0.03 * peak
    return own, waiting


def check_exact(history: History, name: str) -> None:
    """The figures measured so far have no error at all, nor do they with addresses of the model's own."""
    assert check(history, name) == (Error(0, 0, 0, 0), Error(0, 0, 0, 0))


@needs_cases
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name)
def test_other_peoples_histories(path: Path) -> None:
    check_exact(read_history(path, 0), path.name)


def unpack(capture: str, name: str, folder: Path) -> Path:
    with tarfile.open(CAPTURES / capture) as archive:
        file = archive.extractfile(name)
        assert file is not None
        (folder / name).write_bytes(file.read())
    return folder / name


@needs_captures
@pytest.mark.parametrize("rank", range(4))
def test_small_histories(tmp_path: Path, rank: int) -> None:
    path = unpack("torch2.11_small_4ranks.tar", f"snap_r{rank}.pickle.gz", tmp_path)
    check_exact(read_history(path, rank % 2), path.name)


@pytest.mark.h200
@needs_captures
@pytest.mark.parametrize(("name", "rank"), BIG)
def test_histories_of_full_size(tmp_path: Path, name: str, rank: int) -> None:
    path = unpack(f"pythia6.9b_2xH200_{name}.tar", f"snapshot_r{rank}.pickle.gz", tmp_path)
    check_exact(read_history(path, rank), f"{name} rank {rank}")


@pytest.mark.h200
@pytest.mark.skipif(not EXTRA, reason="ZEROPEAK_SNAPSHOTS names no snapshot")
@pytest.mark.parametrize("path", EXTRA, ids=lambda path: path.name)
def test_further_histories(path: Path) -> None:
    check(read_history(path, 0), path.name)
