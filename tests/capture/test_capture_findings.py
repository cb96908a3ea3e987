"""What the findings say of real captures, and whether what they foretell is so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from zeropeak.reports import open_run
from zeropeak.reports.findings import reduce_bucket, reuse_distance_hold
from zeropeak.reports.findings.replay import read_replay
from zeropeak.reports.selection import peak_bytes

if TYPE_CHECKING:
    from tests.commands import Captured

pytestmark = pytest.mark.slow


def test_every_gather_and_release_is_what_deepspeeds_rules_give(stage3: Captured, stage3_efficient: Captured) -> None:
    for captured in (stage3, stage3_efficient):
        run = open_run(captured.run_dir)
        replays = [read_replay(run, rank) for rank in run.rank_ids]
        assert [replay.doubt for replay in replays] == [None] * 4
        assert all(len(replay.turns[0].recorded.gathers) > 100 for replay in replays)


def test_the_efficient_linear_saves_what_is_foretold(stage3: Captured, stage3_efficient: Captured) -> None:
    now, then = open_run(stage3.run_dir), open_run(stage3_efficient.run_dir)
    for rank, measured in peak_bytes(then).items():
        saving = read_replay(now, rank).saving(autograd_holds=False)
        assert saving is not None
        assert saving.without_bytes == pytest.approx(measured, rel=0.01)


def test_what_is_kept_for_reuse_is_autograds_where_the_linear_saves_a_view(
    stage3: Captured, stage3_efficient: Captured
) -> None:
    for found in reuse_distance_hold.find(open_run(stage3.run_dir)):
        assert (found.verdict, found.value, found.expected) == ("confirmed", None, ())
        assert "autograd holds on to" in (found.advice or "")
    for found in reuse_distance_hold.find(open_run(stage3_efficient.run_dir)):
        assert (found.verdict, found.bytes) == ("confirmed", found.bytes)
        assert found.expected[0].then_bytes < found.expected[0].now_bytes


def test_the_buckets_of_both_stages_are_seen(stage3: Captured, stage2: Captured) -> None:
    for captured in (stage3, stage2):
        for found in reduce_bucket.find(open_run(captured.run_dir)):
            assert (found.verdict, found.knob) == ("confirmed", "zero_optimization.reduce_bucket_size")
            assert found.value == 262_144
