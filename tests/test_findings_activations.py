"""activations-dominate: whether more than half of the peak is what forward keeps for backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.ranks import MIB, Rows, parts, peak, phases, rank
from tests.written import write_tables

from zeropeak.reports import open_run
from zeropeak.reports.findings.activations_dominate import find

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.reports.findings import Finding


def tables(activations: int, unattributed: int = 0, *, again: str | None = "") -> Rows:
    """A peak of 100 MiB. ``again``: modules whose forward runs inside the backward; None: no module ranges."""
    runs = [("m", "backward", "backward"), *((name, "forward", "backward") for name in again or "")]
    ranges = [
        {"rank": 0, "event_id": n, "module": name, "direction": direction, "phase": phase, "start_ns": 140 + n}
        for n, (name, direction, phase) in enumerate(runs)
    ]
    rest = 100 - activations - unattributed
    sizes = {"activations": activations * MIB, "unattributed": unattributed * MIB, "inputs": rest * MIB}
    return {
        "ranks": [rank()],
        "phases": phases(1),
        "peaks": [peak(100 * MIB, ts=140)],
        "peak_composition": parts({name: size for name, size in sizes.items() if size or name == "unattributed"}),
        "module_ranges": ranges if again is not None else [],
    }


def judged(path: Path, rows: Rows, **manifest: Any) -> Finding:
    [found] = find(open_run(write_tables(path, {k: v for k, v in rows.items() if v}, zero={"stage": 3}, **manifest)))
    return found


def test_activations_without_checkpointing_are_confirmed(tmp_path: Path) -> None:
    found = judged(tmp_path, tables(68))
    assert (found.verdict, found.bytes, found.cause) == ("confirmed", 68 * MIB, "no-checkpointing")
    assert "nothing is checkpointed" in found.headline
    assert found.advice is not None
    assert "model.gradient_checkpointing_enable()" in found.advice


def test_what_checkpointing_leaves_is_computed_from_the_layers_blocks_and_the_models_shape(tmp_path: Path) -> None:
    rows = tables(68)
    blocks = [("layers.0.mlp", 20), ("layers.0", 10), ("layers.1.mlp", 25), ("head", 13), ("layers.1.mlp", 0)]
    rows["peak_blocks"] = [
        {"rank": 0, "scope": "run", "block_id": n, "category": "activations", "module": name, "size_bytes": mib * MIB}
        for n, (name, mib) in enumerate(blocks)
    ]
    rows["peak_blocks"].append({**rows["peak_blocks"][0], "scope": "step"})
    rows["peak_blocks"].append({**rows["peak_blocks"][0], "category": "inputs"})
    model = {"hidden": 1024, "dtype": "bf16", "gradient_checkpointing": False}
    found = judged(tmp_path, rows, model=model, seq=1024, micro_batch=1)
    # 55 MiB of two layers go but for the larger one (30) and two inputs of 2 MiB.
    [expected] = found.expected
    assert (expected.now_bytes, expected.then_bytes) == (100 * MIB, 79 * MIB)
    assert found.advice is not None
    assert "expect about 21.0 MiB less at the peak (100 MiB to 79.0 MiB)" in found.advice
    assert found.modules == ["layers.*.mlp (2)", "head", "layers.0"]


def test_a_model_without_a_shape_promises_no_figure(tmp_path: Path) -> None:
    found = judged(tmp_path, tables(68))
    assert (found.expected, found.knob) == ([], None)


@pytest.mark.parametrize("section", [None, {"partition_activations": True}])
def test_the_configs_section_is_said_to_do_nothing_where_it_does_nothing(tmp_path: Path, section: Any) -> None:
    config = {"zero_optimization": {"stage": 3}, **({"activation_checkpointing": section} if section else {})}
    headline = judged(tmp_path, tables(68), ds_config=config).headline
    assert ("section activation_checkpointing has no effect" in headline) is bool(section)


def test_a_forward_inside_the_backward_is_checkpointing_whatever_the_manifest_says(tmp_path: Path) -> None:
    found = judged(tmp_path, tables(68, again="aab"), model={"gradient_checkpointing": False})
    assert (found.verdict, found.cause) == ("confirmed", "in-spite-of-checkpointing")
    assert "although 3 forwards of modules ran again inside backward" in found.headline
    assert [(row["module"], row["count"]) for row in found.evidence[1].rows] == [("a", 2), ("b", 1)]


def test_half_of_the_peak_is_not_most_of_it(tmp_path: Path) -> None:
    found = judged(tmp_path, tables(50))
    assert (found.verdict, found.bytes) == ("ruled_out", 50 * MIB)


def test_bytes_without_an_owner_can_leave_it_open(tmp_path: Path) -> None:
    assert judged(tmp_path / "a", tables(40, unattributed=11)).verdict == "unknown"
    found = judged(tmp_path / "b", tables(40, unattributed=9))
    assert (found.verdict, found.bytes) == ("ruled_out", 40 * MIB)
    assert "at most 49.0 MiB with what is not attributed" in found.headline


def test_counters_that_leave_less_than_half_open_rule_it_out_without_bytes(tmp_path: Path) -> None:
    rows = tables(0, unattributed=45)
    rows["ranks"][0]["memory_source"] = "counters"
    rows["peaks"][0] |= {"source": "counters", "allocator_peak_bytes": 102 * MIB}
    found = judged(tmp_path, rows)
    assert (found.verdict, found.bytes) == ("ruled_out", None)
    assert found.headline.startswith("At most 47.0 MiB (46 %) of the peak of 102 MiB can be activations")


def test_without_module_ranges_the_manifest_tells_and_without_both_it_is_open(tmp_path: Path) -> None:
    said = judged(tmp_path / "a", tables(68, again=None), model={"gradient_checkpointing": True})
    assert said.cause == "in-spite-of-checkpointing"
    found = judged(tmp_path / "b", tables(68, again=None))
    assert (found.verdict, found.cause) == ("confirmed", None)
    assert "Whether the run checkpoints is not known" in found.headline


@pytest.mark.parametrize("lost", ["peaks", "peak_composition"])
def test_without_a_composed_peak_it_abstains(tmp_path: Path, lost: str) -> None:
    rows = tables(68)
    del rows[lost]
    assert judged(tmp_path, rows).verdict == "unknown"
