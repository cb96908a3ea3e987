"""Captures on a GPU: `./launch.sh test -m gpu` on a machine that has one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.commands import Captured, Command

from zeropeak.reports import open_run

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

ONE_OF_FOUR = ("--fake", "--model", "410m", "--steps", "2")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    return Command(tmp_path_factory.mktemp("gpu") / "torch", "torch", "stage3", *ONE_OF_FOUR).finish()


@pytest.fixture(scope="module")
def ranged(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    return Command(tmp_path_factory.mktemp("gpu") / "nsys", "nsys", "stage3", *ONE_OF_FOUR).finish()


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """3 GiB hold the model, but not its activations."""
    words = ("torch", "stage3", *ONE_OF_FOUR, "--gpu-memory", "3GiB")
    return Command(tmp_path_factory.mktemp("gpu") / "refused", *words).finish()


def composition(run_dir: Path, scope: str) -> dict[str, int]:
    rows = open_run(run_dir).peak_composition
    rows = rows[rows["scope"] == scope]
    return dict(zip(rows["category"], rows["size_bytes"], strict=True))


@pytest.mark.parametrize("capture", ["recorded", "ranged"])
def test_the_curve_reaches_the_allocators_own_peak(capture: str, request: pytest.FixtureRequest) -> None:
    captured: Captured = request.getfixturevalue(capture)
    assert captured.exit_code == 0, captured.output
    run = open_run(captured.run_dir)
    [peak] = run.peaks[run.peaks["scope"] == "run"].to_dict("records")
    assert peak["allocated_bytes"] == peak["allocator_peak_bytes"] == run.marks["max_allocated_bytes"].max()
    assert peak["source"] == "snapshot"


@pytest.mark.parametrize("capture", ["recorded", "ranged"])
def test_what_was_alive_is_known_but_for_a_hundredth(capture: str, request: pytest.FixtureRequest) -> None:
    captured: Captured = request.getfixturevalue(capture)
    parts = composition(captured.run_dir, "run")
    total = sum(parts.values())
    print({name: round(100 * size / total, 2) for name, size in parts.items()})
    assert abs(parts["unattributed"]) <= 0.01 * total
    assert parts["activations"] > 0


def test_weights_outlive_their_release_in_the_first_step(recorded: Captured) -> None:
    """Later ones keep the whole model for reuse: it is smaller than the reuse distance."""
    retained = open_run(recorded.run_dir).retained
    assert set(retained["step"]) == {0}
    assert retained["holder"].str.startswith("AddmmBackward0").any()


def test_nsys_ranges_and_kernels_are_there(ranged: Captured) -> None:
    run = open_run(ranged.run_dir)
    ours = run.nvtx_ranges[run.nvtx_ranges["domain"] == "zeropeak"]
    assert set(run.zero_events["event_id"]) <= set(ours["event_id"])
    assert len(run.kernels) > 1000


def test_the_device_holds_more_than_the_allocator(recorded: Captured) -> None:
    marks = open_run(recorded.run_dir).marks
    outside = marks["device_used_bytes"] - marks["reserved_bytes"]
    assert (outside > 100 * 2**20).all()


def test_out_of_memory_leaves_a_report_of_the_moment(refused: Captured) -> None:
    assert refused.exit_code == 1
    about: dict[str, Any] = json.loads((refused.run_dir / "run.json").read_text())
    assert (about["status"], about["failure"]["kind"]) == ("out_of_memory", "out_of_memory")
    assert "Out of memory: Rank 0 asked for " in refused.output
    assert "It was allowed 3.00 GiB." in refused.output
    assert "Alive then:" in refused.output
    assert (refused.run_dir / "report" / "report.pdf").stat().st_size > 10_000
