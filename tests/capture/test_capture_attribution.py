"""What the bytes were and why releases were late, on the real captures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pytest

if TYPE_CHECKING:
    from tests.commands import Captured

pytestmark = pytest.mark.slow

LAWS = (
    *("composition_sum_differs", "blocks_sum_differs", "category_negative", "more_attributed_than_measured"),
    *("curve_not_of_blocks", "rows_not_alive"),
)


def table(captured: Captured, name: str) -> pd.DataFrame:
    return pd.read_parquet(captured.run_dir / "tables" / name)


@pytest.mark.parametrize("name", ["stage2", "stage3", "stage3_efficient"])
def test_the_law_of_the_composition_holds_and_little_is_unattributed(name: str, request: pytest.FixtureRequest) -> None:
    captured: Captured = request.getfixturevalue(name)
    stats = table(captured, "import_stats").groupby("what")["count"].sum()
    assert {law: stats[law] for law in LAWS} == dict.fromkeys(LAWS, 0)
    assert "unattributed_above_1_percent" not in stats
    blocks, peaks = table(captured, "peak_blocks"), table(captured, "peaks")
    at_run = blocks[blocks["scope"] == "run"].groupby("rank")["size_bytes"].sum()
    assert at_run.to_dict() == peaks[peaks["scope"] == "run"].set_index("rank")["allocated_bytes"].to_dict()


@pytest.mark.parametrize("name", ["stage2", "stage3", "stage3_efficient"])
def test_activations_by_lifetime_are_what_autograd_saved(name: str, request: pytest.FixtureRequest) -> None:
    captured: Captured = request.getfixturevalue(name)
    saved, blocks = table(captured, "saved_tensors"), table(captured, "mark_blocks")
    ours = saved[saved["storage_id"].isna()]
    assert set(ours["rank"]) == {0, 1, 2, 3}
    assert set(ours["category"]) == {"activations"}
    here = blocks[(blocks["step"] == 0) & (blocks["mark"] == "forward") & (blocks["category"] == "activations")]
    joined = here.merge(ours[["rank", "block_id"]], on=["rank", "block_id"], how="left", indicator=True)
    # What autograd did not save is what forward returned: the logits and the loss.
    rest = joined[joined["_merge"] == "left_only"]
    assert (rest.groupby("rank").size() <= 2).all()
    assert rest["size_bytes"].sum() < 0.02 * joined["size_bytes"].sum()


def test_activations_are_those_of_their_modules(stage3: Captured) -> None:
    blocks = table(stage3, "mark_blocks")
    here = blocks[(blocks["mark"] == "forward") & (blocks["category"] == "activations")]
    by_module = here.groupby("module")["size_bytes"].sum()
    attention = by_module[by_module.index.str.endswith(".attention")]
    assert len(attention) == 8
    assert attention.nunique() == 1, "every layer's attention keeps the same"
    assert here["module"].isna().mean() < 0.02


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("stage2", {"inputs", "replicated_parameters", "gradient_buckets", "full_gradients", "gradient_shards"}),
        ("stage3", {"inputs", "parameter_shards", "gradient_buckets", "gather_buffers", "persistent_parameters"}),
    ],
)
def test_no_category_of_the_stage_is_left_empty(name: str, expected: set[str], request: pytest.FixtureRequest) -> None:
    captured: Captured = request.getfixturevalue(name)
    found = set(table(captured, "peak_composition")["category"]) | set(table(captured, "mark_composition")["category"])
    every = {"fp32_masters", "optimizer_states", "module_buffers", "activations", "workspace"}
    registered = set(table(captured, "memory_blocks")["category"].dropna())
    # Buffers of a gather live between two peaks.
    assert expected | every <= found | ({"gather_buffers"} if "gather_buffer" in registered else set())


def test_every_late_release_has_a_cause(stage3: Captured, stage3_efficient: Captured) -> None:
    late = table(stage3, "delayed_frees")
    # gloo's thread may drop its reference to a gathered parameter a moment after ZeRO did, and no table says so.
    assert late.loc[late["cause"].isna(), "byte_seconds"].sum() < 0.001 * late["byte_seconds"].sum()
    counts = late[late["rank"] == 0].groupby(["step", "cause"]).size().to_dict()
    assert counts[0, "autograd-held"] == 33
    assert counts[1, "autograd-held"] == 31
    assert (0, "reuse-distance") not in counts, "before the trace is complete everything is released"
    held = late[late["cause"] == "autograd-held"]
    holders = held[held["step"] == 0].groupby(["rank", "holder"]).size().to_dict()
    # The head has no bias: another node.
    expected = {"AddmmBackward0._saved_mat2": 32, "MmBackward0._saved_mat2": 1}
    assert holders == {(rank, node): count for rank in range(4) for node, count in expected.items()}
    retained = table(stage3, "retained").query("step == 1 and rank == 0 and mark == 'forward'")
    assert held.query("step == 1 and rank == 0")["size_bytes"].sum() == retained["size_bytes"].sum()
    kept = late[(late["cause"] == "reuse-distance") & (late["step"] == 1)]
    assert (kept["until_module"] == kept["module"]).all()
    assert kept["free_event_id"].isna().all()
    assert "autograd-held" not in set(table(stage3_efficient, "delayed_frees")["cause"])


def test_a_late_release_is_as_long_as_the_log_says(stage3: Captured) -> None:
    late, events = table(stage3, "delayed_frees"), table(stage3, "zero_events")
    held = late[late["cause"] == "autograd-held"].merge(events, on=["rank", "event_id"], suffixes=("", "_release"))
    assert (held["decided_ns"] == held["start_ns"]).all()
    assert (held["freed_ns"] > held["end_ns"]).all()
    assert (held["held_ns"] == held["freed_ns"] - held["decided_ns"]).all()
