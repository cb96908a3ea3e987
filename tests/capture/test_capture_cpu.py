"""The main job, for real: four ranks on CPU under Nsight Systems."""

from __future__ import annotations

import gzip
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from zeropeak.cli.main import main
from zeropeak.reports import open_run

if TYPE_CHECKING:
    from tests.commands import Captured

CANARY = "zeropeak-canary-5f1d"

pytestmark = pytest.mark.slow


def table(captured: Captured, name: str) -> pd.DataFrame:
    return pd.read_parquet(captured.run_dir / "tables" / name)


def findings(captured: Captured) -> list[dict[str, Any]]:
    report: dict[str, Any] = json.loads((captured.run_dir / "report" / "findings.json").read_text())
    assert report["schema"] == 1
    return [one for one in report["findings"] if one["id"] == "retained-after-release"]


def manifest(captured: Captured) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((captured.run_dir / "run.json").read_text())
    return values


def count(captured: Captured, what: str) -> int:
    stats = table(captured, "import_stats")
    return int(stats.loc[stats["what"] == what, "count"].sum())


def test_the_main_job_ends_with_the_report(stage3: Captured) -> None:
    assert stage3.exit_code == 0, stage3.output
    assert stage3.output.splitlines()[-1] == f"Wrote {stage3.run_dir / 'report' / 'report.pdf'}"
    assert (stage3.run_dir / "report" / "report.pdf").read_bytes().startswith(b"%PDF")
    assert len(list((stage3.run_dir / "report").glob("*.png"))) >= 4


def test_retained_weights_are_confirmed_on_every_rank_with_their_holder(stage3: Captured) -> None:
    found = findings(stage3)
    assert [one["rank"] for one in found] == [0, 1, 2, 3]
    assert {(one["verdict"], one["basis"], one["cause"], one["step"]) for one in found} == {
        ("confirmed", "measured", "memory-efficient-linear-off", 0)
    }
    assert {one["holder"] for one in found} == {"AddmmBackward0._saved_mat2"}
    assert {one["knob"] for one in found} == {"zero_optimization.memory_efficient_linear"}


def test_retained_bytes_are_those_of_the_linear_weights(stage3: Captured) -> None:
    params, modules = table(stage3, "params"), table(stage3, "modules")
    linear = modules.loc[modules["class_name"].isin(["LowRankLinear", "Linear"]), ["rank", "module_id"]]
    weights = params[params["name"].str.endswith(".weight")].merge(linear, on=["rank", "module_id"])
    expected = weights.groupby("rank")["full_bytes"].sum()
    assert len(weights) == 4 * 33
    for one in findings(stage3):
        assert one["bytes"] == pytest.approx(expected[one["rank"]], rel=0.01)


def test_every_range_joins_to_one_event(stage3: Captured) -> None:
    ranges, events = table(stage3, "nvtx_ranges"), table(stage3, "zero_events")
    ours = ranges[(ranges["source"] == "nsys") & (ranges["domain"] == "zeropeak")]
    assert ours["event_id"].is_unique
    assert set(events["event_id"]) <= set(ours["event_id"])
    for miss in ("nvtx_without_event", "event_without_nvtx", "nvtx_doubled"):
        assert count(stage3, miss) == 0
    named = events.merge(ours, on="event_id", suffixes=("", "_nsys"))
    assert (named["name"] == named["name_nsys"]).all()


def test_fetch_and_prefetch_are_told_apart(stage3: Captured) -> None:
    events = table(stage3, "zero_events")
    counts = events.groupby(["step", "kind"]).size()
    assert (0, "prefetch") not in counts, "DeepSpeed prefetches nothing before its trace is complete"
    assert counts[1, "prefetch"] > 0
    assert counts[0, "fetch"] > counts[1, "fetch"] > 0
    assert {"wait", "release", "free", "reduce", "step", "gather"} <= set(events["kind"])


def test_the_memory_curve_adds_up(stage3: Captured) -> None:
    blocks = table(stage3, "memory_blocks")
    peaks = table(stage3, "peaks")
    composition = table(stage3, "peak_composition")
    assert set(table(stage3, "ranks")["memory_source"]) == {"kineto"}
    for _, peak in peaks[peaks["scope"] == "run"].iterrows():
        own = blocks[(blocks["rank"] == peak["rank"]) & (blocks["source"] == "kineto")]
        alive = own[(own["born_ns"] <= peak["ts_ns"]) & ~(own["freed_ns"] <= peak["ts_ns"])]
        assert alive["size_bytes"].sum() == peak["allocated_bytes"]
    keys = ["rank", "scope", "step", "phase"]
    peaks = peaks.fillna({"step": -9, "phase": ""})
    composition = composition.fillna({"step": -9, "phase": ""})
    summed = composition.groupby(keys, dropna=False)["size_bytes"].sum()
    loose = composition[composition["category"] == "unattributed"].set_index(keys)["size_bytes"]
    assert len(summed) == len(peaks)
    for _, peak in peaks.iterrows():
        key = tuple(peak[keys])
        assert summed[key] == peak["allocated_bytes"]
        assert abs(loose[key]) < 0.01 * peak["allocated_bytes"], key


def test_ranks_that_do_the_same_peak_alike(stage3: Captured) -> None:
    """A free that the profiler misses must not make one rank look worse."""
    at_run = table(stage3, "peaks").query("scope == 'run'")["allocated_bytes"]
    assert at_run.max() - at_run.min() < 0.001 * at_run.max()


def test_a_release_names_what_went_and_not_what_stays(stage3: Captured) -> None:
    events, params = table(stage3, "zero_events"), table(stage3, "zero_event_params")
    released = events[(events["kind"] == "release") & events["module_id"].notna() & (events["step"] > 0)]
    gone = params[params["event_id"].isin(released["event_id"])].merge(table(stage3, "params"), on=["rank", "param_id"])
    assert len(gone) > 0
    assert not gone["persistent"].any()


def test_one_rank_keeps_its_parameters_by_design(one_rank: Captured) -> None:
    """Nothing is gathered: the full parameter is the shard."""
    assert one_rank.exit_code == 0, one_rank.output
    assert [(one["verdict"], one["bytes"]) for one in findings(one_rank)] == [("ruled_out", 0)]
    assert "wait" in set(table(one_rank, "zero_events")["kind"])


def test_clocks_are_fitted_over_shared_events(stage3: Captured) -> None:
    clocks = table(stage3, "clocks")
    fitted = clocks[clocks["source"].isin(["nsys", "kineto"])]
    assert len(fitted) == 8
    assert (fitted["shared_events"] > 1000).all()
    assert (fitted["residual_ns"] < 1_000_000).all()


def test_open_run_gives_the_tables(stage3: Captured) -> None:
    run = open_run(stage3.run_dir)
    assert len(run.zero_events) == len(table(stage3, "zero_events"))
    assert list(run.table("ranks")["rank"]) == [0, 1, 2, 3]


def test_nothing_private_is_in_what_people_share(stage3: Captured) -> None:
    private = [CANARY, socket.gethostname(), str(Path.home()), str(Path.cwd())]
    for path in stage3.run_dir.rglob("*"):
        if not path.is_file() or path.suffix == ".nsys-rep" or path.name == "train.log":
            continue
        data = path.read_bytes()
        words = [CANARY] if "raw" in path.parts else private
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        elif path.suffix == ".parquet":
            data = pd.read_parquet(path).to_csv().encode()
        found = [word for word in words if len(word) > 3 and word.encode() in data]
        assert not found, f"{path.relative_to(stage3.run_dir)} holds {found}"


def test_files_are_the_users_alone_to_write(stage3: Captured) -> None:
    mask = os.umask(0o022)
    os.umask(mask)
    files = [path for path in stage3.run_dir.rglob("*") if path.is_file()]
    assert len(files) > 50
    assert not [path for path in files if path.stat().st_mode & mask & 0o777]
    assert (stage3.run_dir / "raw" / "node-0.nsys-rep").stat().st_mode & 0o777 == 0o600


def test_the_run_says_what_was_scaled(stage3: Captured) -> None:
    changes = {change["key"]: change for change in manifest(stage3)["config_changes"]}
    assert "scaled" in changes["zero_optimization.stage3_max_reuse_distance"]["why"]
    assert manifest(stage3)["disk"]["actual_bytes"] < manifest(stage3)["disk"]["cap_bytes"]


def test_the_efficient_linear_rules_it_out(stage3_efficient: Captured) -> None:
    assert stage3_efficient.exit_code == 0, stage3_efficient.output
    assert {(one["verdict"], one["bytes"]) for one in findings(stage3_efficient)} == {("ruled_out", 0)}
    assert len(findings(stage3_efficient)) == 4
    assert table(stage3_efficient, "ranks")["linear_wrapped"].all()


def test_stage_2_has_nothing_to_release(stage2: Captured) -> None:
    assert stage2.exit_code == 0, stage2.output
    assert [one["verdict"] for one in findings(stage2)] == ["not_applicable"] * 4
    kinds = set(table(stage2, "zero_events")["kind"])
    assert {"reduce", "all_gather", "step"} <= kinds
    assert not {"fetch", "prefetch", "release"} & kinds


def test_fail_on_exits_3_only_when_the_finding_holds(stage3: Captured, stage3_efficient: Captured) -> None:
    words = ["--fail-on", "retained-after-release"]
    assert main(["report", str(stage3.run_dir), *words]) == 3
    assert main(["report", str(stage3_efficient.run_dir), *words]) == 0


def test_a_capture_is_not_overwritten_without_force(stage3: Captured, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nsys", "stage3", "--out", str(stage3.run_dir)]) == 2
    assert "--force overwrites it" in capsys.readouterr().err
