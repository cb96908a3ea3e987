"""A run directory becomes tables; what a killed or damaged one still gives."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from zeropeak.parse import clocks
from zeropeak.parse.pipeline import parse_run
from zeropeak.parse.schema import TABLES
from zeropeak.profile.errors import TraceError, ZeropeakError
from zeropeak.reports import open_run, quality
from zeropeak.reports.curve import allocated as allocated_curve
from zeropeak.reports.curve import reserved as reserved_curve

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeRun


def table(run: Path, name: str, rank: int | None = None) -> pd.DataFrame:
    rows = pd.read_parquet(run / "tables" / name)
    return rows if rank is None else rows[rows["rank"] == rank].reset_index(drop=True)


def counts(run: Path) -> dict[str, int]:
    stats = table(run, "import_stats")
    return {str(what): int(count) for what, count in stats.groupby("what")["count"].sum().items()}


def test_a_run_becomes_tables_that_pandas_reads(make_run: MakeRun) -> None:
    run = make_run(ranks=2, steps=2)
    summary = parse_run(run)
    events = table(run, "zero_events")
    assert summary.ranks == (0, 1)
    assert sorted(events["rank"].unique()) == [0, 1]
    assert summary.rows["zero_events"] == len(events)
    assert summary.lost == {}
    assert {path.name for path in (run / "tables").iterdir()} == {declared.name for declared in TABLES}


def test_parsing_again_gives_the_same_tables(make_run: MakeRun) -> None:
    run = make_run()
    first, second = (parse_run(run), parse_run(run))
    assert first == second


def test_an_event_is_one_row_with_its_parameters_and_sizes(make_run: MakeRun) -> None:
    run = make_run(ranks=1, steps=2)
    parse_run(run)
    events = table(run, "zero_events")
    fetch = events[events["kind"] == "fetch"].iloc[0]
    assert (fetch["name"], fetch["module"], fetch["phase"], fetch["step"]) == (
        "fetch layers.0",
        "layers.0",
        "forward",
        0,
    )
    assert (fetch["param_count"], fetch["full_bytes"], fetch["shard_bytes"]) == (1, 4096, 1024)
    assert fetch["end_ns"] > fetch["start_ns"]
    moved = table(run, "zero_event_params")
    assert moved[moved["event_id"] == fetch["event_id"]]["param"].tolist() == ["layers.0.weight"]
    free = events[events["kind"] == "free"].iloc[0]
    assert free["end_ns"] == free["start_ns"]


def test_every_range_joins_to_one_event(make_run: MakeRun) -> None:
    run = make_run(ranks=2)
    parse_run(run)
    found = counts(run)
    assert found["nvtx_joined"] > 0
    assert [found[name] for name in ("nvtx_without_event", "event_without_nvtx", "nvtx_doubled")] == [0, 0, 0]


def test_clocks_are_fitted_by_shared_events(make_run: MakeRun) -> None:
    run = make_run(ranks=2)
    parse_run(run)
    maps = table(run, "clocks")
    assert sorted(maps["source"].unique()) == ["kineto", "log", "nsys"]
    fitted = maps[maps["source"] != "log"]
    assert (fitted["residual_ns"] == 0).all()
    ranges = table(run, "nvtx_ranges").merge(table(run, "zero_events"), on="event_id")
    assert (ranges["start_ns_x"] == ranges["start_ns_y"]).all()


def test_the_curve_and_the_blocks_agree_everywhere(make_run: MakeRun) -> None:
    run = make_run(ranks=1)
    parse_run(run)
    moves, blocks = table(run, "memory_events"), table(run, "memory_blocks")
    signed = moves["size_bytes"].where(moves["action"] == "alloc", -moves["size_bytes"])
    assert (signed.cumsum() == moves["allocated_bytes"]).all()
    for ts, allocated in zip(moves["ts_ns"], moves["allocated_bytes"], strict=True):
        alive = (blocks["born_ns"] <= ts) & ~(blocks["freed_ns"] <= ts)
        assert blocks["size_bytes"][alive].sum() == allocated


def test_frees_that_the_profiler_missed_are_mended_by_the_log(make_run: MakeRun) -> None:
    clean, gloo = make_run("clean", ranks=1), make_run("gloo", ranks=1, unreported_frees=True)
    parse_run(clean)
    parse_run(gloo)
    assert counts(gloo)["mend_storage_ended"] == 8
    assert table(gloo, "marks")["allocated_bytes"].tolist() == table(clean, "marks")["allocated_bytes"].tolist()
    peaks = [table(run, "peaks")["allocated_bytes"].tolist() for run in (clean, gloo)]
    assert peaks[0] == peaks[1]


def test_marks_of_a_cpu_run_are_filled_from_the_curve(make_run: MakeRun) -> None:
    run = make_run(ranks=1, steps=1)
    parse_run(run)
    marks = table(run, "marks").set_index("mark")
    assert marks["allocated_bytes"].to_dict() == {
        "init": 2048,
        "forward": 2048 + 2 * (4096 + 2048),
        "backward": 2048,
        "step": 2048 + 8192,
    }
    assert marks["max_allocated_bytes"]["forward"] == 2048 + 4096 + 2048 + 4096 + 4608
    assert marks["released_alive_bytes"]["forward"] == 8192


def test_a_peak_names_the_event_in_flight_and_adds_up(make_run: MakeRun) -> None:
    run = make_run(ranks=1, steps=1)
    parse_run(run)
    peaks, parts = table(run, "peaks"), table(run, "peak_composition")
    keys = ["scope", "step", "phase"]
    sums = parts.groupby(keys, dropna=False)["size_bytes"].sum()
    assert sums.reset_index()["size_bytes"].sum() == peaks["allocated_bytes"].sum()
    peak = peaks[peaks["scope"] == "run"].iloc[0]
    events = table(run, "zero_events").set_index("event_id")
    assert events["name"][peak["event_id"]] == "wait layers.1"
    assert not peak["partial"]
    at_run = parts[parts["scope"] == "run"].set_index("category")["size_bytes"].to_dict()
    assert at_run == {
        "parameter_shards": 2048,
        "released_but_alive": 8192,
        "activations": 4096,
        "gathered_in_use": 4096,
        "gather_buffers": 4608,
        "unattributed": 0,
    }


def test_what_was_alive_at_a_mark(make_run: MakeRun) -> None:
    run = make_run(ranks=1, steps=1, retain=False)
    parse_run(run)
    parts = table(run, "mark_composition")
    forward = parts[parts["mark"] == "forward"].set_index("category")["size_bytes"].to_dict()
    assert forward == {"parameter_shards": 2048, "activations": 4096, "unattributed": 0}


def test_retained_storages_say_when_they_ended(make_run: MakeRun) -> None:
    run = make_run(ranks=1, steps=1)
    parse_run(run)
    retained = table(run, "retained")
    assert retained["param"].tolist() == ["layers.0.weight", "layers.1.weight"]
    assert (retained["released_ns"] < retained["ts_ns"]).all()
    assert (retained["ended_ns"] > retained["ts_ns"]).all()


def test_a_run_without_a_memory_trace_has_no_peaks_and_says_so(make_run: MakeRun) -> None:
    run = make_run(ranks=1, kineto=False)
    parse_run(run)
    assert table(run, "ranks")["memory_source"].isna().all()
    assert len(table(run, "peaks")) == 0
    blocks = table(run, "memory_blocks")
    assert set(blocks["source"]) == {"log"}
    assert blocks["category"].notna().all()


def test_counters_are_the_curve_of_a_run_without_allocator_events(make_run: MakeRun) -> None:
    run = make_run(ranks=1, steps=1, kineto=False, counters=True)
    parse_run(run)
    rank = table(run, "ranks").iloc[0]
    assert (rank["memory_source"], bool(rank["memory_partial"])) == ("counters", False)
    peaks = table(run, "peaks")
    peak = peaks[peaks["scope"] == "run"].iloc[0]
    forward_end = 2048 + 2 * (4096 + 2048)
    assert peak["allocated_bytes"] == forward_end + 4608
    assert peak["allocator_peak_bytes"] == forward_end + 4608 + 4096
    parts = table(run, "peak_composition")
    assert parts[parts["scope"] == "run"]["size_bytes"].sum() == peak["allocated_bytes"]


def cut(path: Path, keep: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_killed_rank_keeps_its_whole_batches(make_run: MakeRun) -> None:
    run = make_run(ranks=2)
    folder = run / "raw" / "rank-1"
    whole = len((folder / "events.arrows").read_bytes())
    cut(folder / "events.arrows", 0.6)
    (folder / "retained.arrows").write_bytes(b"")
    (folder / "params.arrows").unlink()
    change(folder / "rank.json", ended=None)
    summary = parse_run(run)
    assert whole
    assert table(run, "ranks")["status"].tolist() == ["complete", "cut"]
    assert 0 < len(table(run, "zero_events", 1)) < len(table(run, "zero_events", 0))
    assert table(run, "zero_events", 1)["end_ns"].isna().sum() + table(run, "phases", 1)["end_ns"].isna().sum() > 0
    assert {"events_bytes_lost", "events_cut", "retained_stream_empty", "params_stream_missing"} <= set(summary.lost)
    stats = table(run, "import_stats", 1)
    assert "event_without_nvtx" not in set(stats["what"])
    strays = stats.set_index("what").loc["nvtx_without_event"]
    assert strays["count"] > 0
    assert strays["severity"] == "lost"
    texts = [line.text for line in quality.lines(open_run(run))]
    assert not [text for text in texts if text.startswith("Wrong")]
    assert any(text.startswith("Lost on rank 1: events that nsys saw and the log had not") for text in texts)


def test_a_stream_of_garbage_is_counted(make_run: MakeRun) -> None:
    run = make_run(ranks=1)
    (run / "raw" / "rank-0" / "marks.arrows").write_bytes(b"garbage, not a stream" * 9)
    assert parse_run(run).lost["marks_stream_unreadable"] == 1


def test_half_a_trace_of_a_run_that_failed_costs_only_what_it_held(make_run: MakeRun) -> None:
    run = make_run(ranks=2, status="failed")
    (run / "raw" / "rank-1" / "torch.json.gz").write_bytes(b"")
    (run / "raw" / "node-0.sqlite").write_bytes(b"SQLite format 3")
    assert parse_run(run).lost["trace_unreadable"] == 2
    assert table(run, "ranks")["memory_source"].fillna("none").tolist() == ["kineto", "none"]
    assert len(table(run, "zero_events", 1)) == len(table(run, "zero_events", 0))


def test_a_curve_that_stops_early_makes_no_claim_past_its_end(make_run: MakeRun) -> None:
    run = make_run(ranks=1, steps=2)
    path = run / "raw" / "rank-0" / "torch.json.gz"
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(text[: len(text) // 3]))
    parse_run(run)
    assert bool(table(run, "ranks")["memory_partial"][0])
    peaks = table(run, "peaks")
    assert bool(peaks[peaks["scope"] == "run"]["partial"].iloc[0])
    assert peaks["step"].max() < 1
    assert table(run, "marks")["allocated_bytes"].isna().any()


def test_a_missing_rank_is_counted_unless_the_world_is_fake(make_run: MakeRun) -> None:
    run = make_run(ranks=2)
    change(run / "run.json", world_size=4)
    assert parse_run(run).lost == {"ranks_missing": 2}
    change(run / "run.json", fake_world=True)
    assert parse_run(run).lost == {}


def test_a_rank_without_rank_json_uses_the_machines_clock(make_run: MakeRun) -> None:
    run = make_run(ranks=2, nsys=False)
    (run / "raw" / "rank-1" / "rank.json").unlink()
    summary = parse_run(run)
    assert summary.lost == {"rank_json_missing": 1}
    assert summary.mended["clock_reading_missing"] == 1
    first = table(run, "zero_events").groupby("rank")["start_ns"].min()
    assert abs(first[1] - first[0]) < 10_000


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("run.json", None, "no run.json, so this is not a run directory"),
        ("run.json", '{"schema": 99}', "written by a newer zeropeak .* update zeropeak"),
        ("run.json", "{", "not valid JSON"),
        ("raw/rank-0/rank.json", "[]", "missing or damaged, so the event log's clock"),
        ("raw/node-0.sqlite", "", "the file is empty: the export failed"),
        ("raw/node-0.sqlite", "not a database at all", "damaged or half-written"),
    ],
)
def test_what_cannot_be_read_is_a_one_line_error(
    make_run: MakeRun, file: str, content: str | None, message: str
) -> None:
    run = make_run(ranks=1)
    if content is None:
        (run / file).unlink()
    else:
        (run / file).write_text(content)
    with pytest.raises(ZeropeakError, match=message) as raised:
        parse_run(run)
    assert "\n" not in str(raised.value)


def test_a_truncated_export_is_refused(make_run: MakeRun) -> None:
    run = make_run(ranks=1, steps=20)
    cut(run / "raw" / "node-0.sqlite", 0.5)
    with pytest.raises(TraceError, match=r"node-0\.sqlite: damaged or half-written"):
        parse_run(run)


def test_a_run_without_files_has_empty_tables_that_say_what_happened(make_run: MakeRun) -> None:
    run = make_run(ranks=0, nsys=False, status="interrupted")
    assert parse_run(run).lost == {"nothing_captured": 1}
    assert {path.name for path in (run / "tables").iterdir()} == {declared.name for declared in TABLES}
    assert len(table(run, "ranks")) == 0


@pytest.mark.parametrize("status", ["failed", "complete"])
def test_a_trace_of_another_run_costs_only_itself(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr(clocks, "MIN_SPAN_NS", 0)
    run = make_run(ranks=2, status=status)
    path = run / "raw" / "rank-1" / "torch.json.gz"
    trace = json.loads(gzip.decompress(path.read_bytes()))
    for event in trace["traceEvents"]:
        event["ts"] += 0.5 * (event["ts"] - 10_000_000)  # half as fast again: no clock does that
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    lost = parse_run(run).lost
    assert lost["trace_unreadable"] == 1
    assert table(run, "ranks")["memory_source"].fillna("none").tolist() == ["kineto", "none"]
    assert len(table(run, "zero_events", 1)) == len(table(run, "zero_events", 0))


def test_samples_are_the_curve_that_the_peak_is_the_highest_point_of(make_run: MakeRun) -> None:
    run = make_run(ranks=1, steps=1, kineto=False, counters=True)
    parse_run(run)
    samples, peaks = table(run, "memory_samples"), table(run, "peaks")
    peak = peaks[peaks["scope"] == "run"].iloc[0]
    curve = allocated_curve(open_run(run), 0)
    assert (curve.ts_ns.tolist(), curve.size_bytes.tolist()) == (
        samples["ts_ns"].tolist(),
        samples["allocated_bytes"].tolist(),
    )
    assert curve.size_bytes.max() == peak["allocated_bytes"]
    assert curve.ts_ns[curve.size_bytes.argmax()] == peak["ts_ns"]
    for name in ("phases", "module_ranges", "zero_events"):
        rows = table(run, name)
        assert set(rows["start_ns"]) | set(rows["end_ns"]) <= set(samples["ts_ns"])
    assert set(table(run, "marks")["ts_ns"]) <= set(samples["ts_ns"])
    assert reserved_curve(open_run(run), 0).size_bytes.tolist() == [1 << 20] * len(samples)
    assert peak["reserved_bytes"] == 1 << 20
