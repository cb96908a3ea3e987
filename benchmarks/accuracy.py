"""Predicted against measured: records measured runs as cases, and writes docs/accuracy.md.

    python benchmarks/accuracy.py record RUN tests/data/measured/NAME.json    # RUN: a run directory from a GPU
    python benchmarks/accuracy.py write                                       # predicts every case, some minutes

A case is one JSON object, and everything in it is measured:

    schema      1
    options     words of the verb: the config, then options, as ``zeropeak predict`` takes them
    world       {"world_size", "fake"}: ranks of the job, and whether rank 0 ran alone on a fake process group
    gpu         model of the GPU
    versions    of torch, deepspeed, transformers, ...
    marks       rows of the table ``marks`` of rank 0: step, micro_step, mark, allocated_bytes, max_allocated_bytes,
                reserved_bytes (null where nothing was reserved)

A config that does not ship with zeropeak lies beside the case and is named by its path from the repository's root.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from zeropeak.reports import open_run

ROOT: Final = Path(__file__).parents[1]
CASES: Final = ROOT / "tests" / "data" / "measured"
PAGE: Final = ROOT / "docs" / "accuracy.md"
KEY: Final = ("step", "micro_step", "mark")
VALUES: Final = ("allocated_bytes", "max_allocated_bytes", "reserved_bytes")
_WITH_VALUE: Final = ("--out", "--disk-cap")
_ALONE: Final = ("--fake", "--force")


@dataclass(frozen=True)
class Compared:
    """One value of one mark, measured and predicted."""

    step: int
    mark: str
    value: str
    measured_bytes: int
    predicted_bytes: int

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted_bytes / self.measured_bytes - 1


def record(run_dir: Path) -> dict[str, Any]:
    """A measured run as a case."""
    run = open_run(run_dir)
    facts = run.rank_facts(0)
    if run.manifest.get("basis") != "measured":
        raise SystemExit(f"{run_dir}: not measured")
    marks = run.arrow("marks", 0).select([*KEY, *VALUES]).to_pylist()
    return {
        "schema": 1,
        "options": options(run.manifest["command"]),
        "world": {"world_size": run.manifest["world_size"], "fake": run.manifest["fake_world"]},
        "gpu": facts.get("device_name"),
        "versions": facts.get("versions") or run.manifest["versions"],
        "marks": marks,
    }


def options(command: list[str]) -> list[str]:
    """Words of a command for ``predict``: without program, verb, and what a prediction has no choice of."""
    words = iter(command[2:])
    kept = []
    for word in words:
        if word in _WITH_VALUE:
            next(words)
        elif word not in _ALONE:
            kept.append(word)
    return kept


def predict(words: list[str], folder: Path) -> list[dict[str, Any]]:
    """Rows of ``marks`` of a prediction."""
    command = [sys.executable, "-m", "zeropeak.cli", "predict", *words, "--out", str(folder / "run")]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    rows: list[dict[str, Any]] = open_run(folder / "run").arrow("marks", 0).select([*KEY, *VALUES]).to_pylist()
    return rows


def compare(measured: list[dict[str, Any]], predicted: list[dict[str, Any]]) -> list[Compared]:
    """Every value that both have."""
    other = {tuple(row[key] for key in KEY): row for row in predicted}
    return [
        Compared(row["step"], row["mark"], value, row[value], other[key][value])
        for row in measured
        if (key := tuple(row[key] for key in KEY)) in other
        for value in VALUES
        if row[value] and other[key][value]
    ]


def page(cases: dict[str, tuple[dict[str, Any], list[Compared]]]) -> str:
    """docs/accuracy.md."""
    text = [
        "# Predicted against measured",
        "",
        "Written by `python benchmarks/accuracy.py write` from the cases in `tests/data/measured`. Measured: the "
        "allocator's counters of rank 0. max: highest allocated since the mark before. Errors are of the prediction.",
        "",
    ]
    for name, (case, rows) in sorted(cases.items()):
        worst = max((abs(row.error) for row in rows), default=0.0)
        ran = "rank 0 on a fake process group" if case["world"]["fake"] else "all ranks"
        versions = ", ".join(f"{key} {case['versions'].get(key)}" for key in ("torch", "deepspeed", "transformers"))
        text += [
            f"## {name}",
            "",
            f"`zeropeak predict {' '.join(case['options'])}`; measured on {case['gpu']} with {versions}, {ran}. "
            f"Largest error {100 * worst:.2f} %.",
            "",
            "| step | mark | what | measured | predicted | error |",
            "|---:|---|---|---:|---:|---:|",
        ]
        for row in rows:
            what = row.value.removesuffix("_bytes").replace("_", " ")
            text.append(
                f"| {row.step} | {row.mark} | {what} | {_gib(row.measured_bytes)} | {_gib(row.predicted_bytes)} | "
                f"{100 * row.error:+.2f} % |"
            )
        text.append("")
    return "\n".join(text)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.3f} GiB"


def main() -> None:
    """Run a command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    recorder = verbs.add_parser("record")
    recorder.add_argument("run", type=Path)
    recorder.add_argument("case", type=Path)
    verbs.add_parser("write")
    args = parser.parse_args()
    if args.verb == "record":
        args.case.write_text(json.dumps(record(args.run), indent=1) + "\n")
        return
    cases = {}
    for path in sorted(CASES.glob("*.json")):
        case = json.loads(path.read_text())
        with tempfile.TemporaryDirectory() as folder:
            cases[path.stem] = (case, compare(case["marks"], predict(case["options"], Path(folder))))
    PAGE.write_text(page(cases))


if __name__ == "__main__":
    main()
