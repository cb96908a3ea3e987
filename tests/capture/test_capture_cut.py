"""Captures that end badly leave a run that parses and reports, and no process behind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.commands import Captured

pytestmark = pytest.mark.slow


def manifest(captured: Captured) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((captured.run_dir / "run.json").read_text())
    return values


def table(run_dir: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(run_dir / "tables" / name)


def verdicts(captured: Captured) -> list[str]:
    report = json.loads((captured.run_dir / "report" / "findings.json").read_text())
    return [one["verdict"] for one in report["findings"] if one["id"] == "retained-after-release"]


def test_ctrl_c_closes_every_rank_in_order(interrupted: Captured) -> None:
    assert interrupted.exit_code == 130, interrupted.output
    assert manifest(interrupted)["status"] == "interrupted"
    assert verdicts(interrupted) == ["confirmed"] * 4
    assert set(table(interrupted.run_dir, "ranks")["status"]) == {"interrupted"}
    assert (table(interrupted.run_dir, "ranks")["memory_source"] == "kineto").all()


def test_ranges_are_checked_against_rows_after_a_cut(interrupted: Captured) -> None:
    stats = table(interrupted.run_dir, "import_stats")
    assert stats.loc[stats["what"] == "nvtx_without_event", "count"].sum() == 0
    assert (
        stats.loc[stats["what"] == "nvtx_ranges", "count"].sum() > 1000
        or len(table(interrupted.run_dir, "nvtx_ranges")) > 1000
    )


def test_a_closed_terminal_and_an_impatient_user_leave_no_process(impatient: Captured) -> None:
    """What must not be left is checked after every test of this folder."""
    assert impatient.exit_code == 130, impatient.output
    assert manifest(impatient)["status"] == "interrupted"


def test_an_exception_names_its_rank_and_message(raised: Captured) -> None:
    assert raised.exit_code == 1, raised.output
    values = manifest(raised)
    assert values["status"] == "failed"
    assert (values["failure"]["rank"], values["failure"]["kind"]) == (1, "exception")
    assert values["failure"]["message"] == "ValueError: bad sample"
    assert verdicts(raised) == ["confirmed"] * 4


def test_a_killed_rank_keeps_its_log_up_to_the_last_flush(killed: Captured) -> None:
    assert killed.exit_code == 1, killed.output
    values = manifest(killed)
    assert values["status"] == "failed"
    assert values["failure"] == {
        "rank": 2,
        "kind": "signal",
        "message": "killed by signal 9",
        "exit_code": -9,
    }
    ranks = table(killed.run_dir, "ranks").set_index("rank")
    assert ranks.loc[2, "status"] == "cut"
    assert ranks["memory_source"].isna()[2], "its profiler trace is written at the end, which it never saw"
    events = table(killed.run_dir, "zero_events")
    assert (events["rank"] == 2).sum() > 400
    phases = table(killed.run_dir, "phases")
    assert phases.loc[(phases["rank"] == 2), "end_ns"].isna().any(), "the phase it died in has no end"
    assert verdicts(killed) == ["confirmed"] * 4


def test_a_rank_that_hangs_is_named_and_ends_with_the_run(hung: Captured) -> None:
    """Stopped, it cannot end in order; who waited for it did. That no process is left is checked, too."""
    assert hung.exit_code == 1, hung.output
    values = manifest(hung)
    assert (values["status"], values["failure"]["rank"], values["failure"]["kind"]) == ("failed", 1, "hang")
    assert values["failure"]["message"] == "hung: rank 0 waited for it in a collective until the timeout"
    assert "rank 1: hung: rank 0 waited for it" in hung.output
    ranks = table(hung.run_dir, "ranks").set_index("rank")
    assert ranks["status"].to_dict() == {0: "failed", 1: "cut"}
    events = table(hung.run_dir, "zero_events")
    assert (events["rank"] == 1).sum() > 400
    assert verdicts(hung) == ["confirmed"] * 2
