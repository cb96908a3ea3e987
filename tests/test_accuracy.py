"""Predictions against what was measured on an H200 and is committed, in full size."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
QUICK = (
    "full-410m-stage3", "offload-1.4b-stage3", "llama-peft-stage3", "seed-stage3-4", "seed-stage2-4",
    "script-trainer-stage3", "script-accelerate-stage2", "script-own-module-stage2",
)  # fmt: skip
"""Cases that CI predicts again, half a minute each; docs/accuracy.md has all of them."""


@pytest.fixture(scope="module")
def accuracy() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("accuracy")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK)
def test_a_prediction_is_what_was_measured(case: str, accuracy: Any, tmp_path: Path) -> None:
    record = json.loads((accuracy.MEASURED / f"{case}.json").read_text())
    rows = accuracy.compare(record["marks"], accuracy.predict(case, tmp_path))
    assert {row.mark for row in rows} == {"init", "forward", "backward", "step"}
    assert {row.value for row in rows} == set(accuracy.BOUNDS)
    assert not [row for row in rows if abs(row.error) > accuracy.BOUNDS[row.value]]


def test_the_page_shows_every_value_that_both_have_and_the_largest_error(accuracy: Any) -> None:
    mark = {"step": 0, "micro_step": 0, "mark": "init", "reserved_bytes": 1 << 30}
    measured = [{**mark, "allocated_bytes": 2000, "max_allocated_bytes": 4000}]
    rows = accuracy.compare(measured, [{**mark, "allocated_bytes": 2010, "max_allocated_bytes": 4000}])
    assert [(row.value, round(row.error, 4)) for row in rows] == [
        ("allocated_bytes", 0.005), ("max_allocated_bytes", 0.0), ("reserved_bytes", 0.0),
    ]  # fmt: skip
    options = {"config": "stage3", "lora": "none", "gradient_checkpointing": True, "settings": ["a.b=1"]}
    case = {"options": options, "world_size": 4, "device": "a GPU", "versions": {"torch": "2"}}
    page = accuracy.page({"one": (case, rows)})
    assert "`stage3 --lora none --gradient-checkpointing --set a.b=1`" in page
    assert "| 0.50 % | 0.00 % | 0.00 % |" in page
    assert "| 0 | init | allocated | 0.000 GiB | 0.000 GiB | +0.50 % |" in page


def test_the_committed_page_has_every_case_within_bounds_or_says_why(accuracy: Any) -> None:
    rows = [line.split("|") for line in accuracy.PAGE.read_text().splitlines() if line.startswith("| ") and "`" in line]
    assert {row[1].strip() for row in rows} == {path.stem for path in accuracy.MEASURED.glob("*.json")}
    for row in rows:
        errors = [float(cell.strip().removesuffix(" %")) / 100 for cell in row[5:8]]
        within = all(error <= bound for error, bound in zip(errors, accuracy.BOUNDS.values(), strict=True))
        assert within or row[8].strip(), row
