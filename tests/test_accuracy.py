"""Predictions against measurements that are committed, in full size: a minute each."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CASES = sorted((ROOT / "tests" / "data" / "measured").glob("*.json"))
BOUNDS = {"allocated_bytes": 0.01, "max_allocated_bytes": 0.01, "reserved_bytes": 0.03}


@pytest.fixture(scope="module")
def accuracy() -> Any:
    spec = importlib.util.spec_from_file_location("accuracy", ROOT / "benchmarks" / "accuracy.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["accuracy"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_prediction_is_what_was_measured(path: Path, accuracy: Any, tmp_path: Path) -> None:
    case = json.loads(path.read_text())
    rows = accuracy.compare(case["marks"], accuracy.predict(case["options"], tmp_path))
    assert {row.mark for row in rows} == {"init", "forward", "backward", "step"}
    assert not [row for row in rows if abs(row.error) > BOUNDS[row.value]]


def test_a_measured_command_becomes_words_of_predict(accuracy: Any) -> None:
    command = "zeropeak torch stage3 --fake --model 6.9b --out .../r/tfake --seq 1200 --force"
    assert accuracy.options(command.split()) == ["stage3", "--model", "6.9b", "--seq", "1200"]


def test_the_page_shows_every_value_that_both_have(accuracy: Any) -> None:
    mark = {"step": 0, "micro_step": 0, "mark": "init", "max_allocated_bytes": None, "reserved_bytes": 1 << 30}
    rows = accuracy.compare([{**mark, "allocated_bytes": 2000}], [{**mark, "allocated_bytes": 2010}])
    assert [(row.value, round(row.error, 4)) for row in rows] == [("allocated_bytes", 0.005), ("reserved_bytes", 0.0)]
    case = {"options": ["stage3"], "world": {"fake": True}, "gpu": "a GPU", "versions": {"torch": "2"}}
    page = accuracy.page({"one": (case, rows)})
    assert "| 0 | init | allocated | 0.000 GiB | 0.000 GiB | +0.50 % |" in page
    assert "Largest error 0.50 %" in page
