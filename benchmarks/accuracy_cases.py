"""The cases by which predictions are judged: run here on a GPU, one JSON record a case.

    python benchmarks/accuracy_cases.py --out tests/data/measured [CASE...]

A record holds the options, the versions and the allocator's counters at every mark. Each case is one process that
stands for rank 0 of a job (a fake process group), with hooks and event log and nothing else that takes GPU memory;
several run side by side, since each process has an allocator of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa

from zeropeak.parse.pipeline import parse_run
from zeropeak.profile import gpus, manifest
from zeropeak.profile.options import Options, Plan
from zeropeak.profile.planning import make_plan
from zeropeak.reports import open_run

LLAMA: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
"""A shape with grouped-query attention, a gated MLP and a large vocabulary."""

MIXTRAL: Final = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
"""Experts: which tokens go where depends on values, how much memory does not."""

MODELS: Final = {"llama": LLAMA, "mixtral": MIXTRAL}

_SEED: Final = {"model": "6.9b", "seq": 1200, "lora_rank": 128, "dtype": "fp16"}
_OFFLOAD: Final = ("zero_optimization.offload_optimizer.device=cpu", "zero_force_ds_cpu_optimizer=false")

_DEFAULT_PREFETCH: Final = (
    "zero_optimization.stage3_prefetch_bucket_size=50000000",
    "zero_optimization.stage3_max_live_parameters=1000000000",
)
"""DeepSpeed's defaults, where the bug report's config has 3e7 for both."""

CASES: Final[dict[str, dict[str, Any]]] = {
    "seed-stage2-4": {"config": "stage2", **_SEED},
    "seed-stage3-4": {"config": "stage3", **_SEED},
    "seed-efficient-4": {"config": "stage3-efficient", **_SEED},
    "seed-stage2-2": {"config": "stage2", "ranks": 2, **_SEED},
    "seed-stage3-2": {"config": "stage3", "ranks": 2, **_SEED},
    "seed-efficient-2": {"config": "stage3-efficient", "ranks": 2, **_SEED},
    "full-410m-stage3": {"config": "stage3", "model": "410m", "lora": "none"},
    "full-1.4b-stage3": {"config": "stage3-efficient", "model": "1.4b", "lora": "none"},
    "llama-peft-stage3": {"config": "stage3-efficient", "model": "llama", "lora": "peft", "lora_rank": 16},
    "mixtral-stage3": {"config": "stage3", "model": "mixtral", "lora": "none", "dtype": "bf16", "attention": "sdpa"},
    "mixtral-fp16-stage2": {"config": "stage2", "model": "mixtral", "lora": "none", "dtype": "fp16"},
    "checkpointing-stage3": {"config": "stage3", **_SEED, "gradient_checkpointing": True},
    "sdpa-stage3": {"config": "stage3", **_SEED, "attention": "sdpa"},
    "full-1.4b-stage1": {
        "config": "stage2",
        "model": "1.4b",
        "lora": "none",
        "settings": ("zero_optimization.stage=1",),
    },
    "offload-1.4b-stage3": {"config": "stage3-efficient", "model": "1.4b", "lora": "none", "settings": _OFFLOAD},
    "peft-1.4b-bf16-stage3": {
        "config": "stage3",
        "model": "1.4b",
        "lora": "peft",
        "dtype": "bf16",
        "settings": ("fp16.enabled=false", "bf16.enabled=true"),
    },
    "accumulation-410m-stage2": {"config": "stage2", "model": "410m", "lora": "none", "grad_accum": 2},
    "seed-stage3-64": {"config": "stage3", "ranks": 64, **_SEED},
    **{
        f"prefetch-{bucket}-reuse-{reuse}": {
            "config": "stage3-efficient",
            "steps": 4,
            **_SEED,
            "settings": (*settings, f"zero_optimization.stage3_max_reuse_distance={distance}"),
        }
        for bucket, settings in (("seed", ()), ("default", _DEFAULT_PREFETCH))
        for reuse, distance in (("none", 0), ("default", 1_000_000_000))
    },
}
"""Options by case; the rest are those of a GPU: 1200 tokens, fp16, four ranks, three steps. The last four are what
prefetching does."""

SIDE_BY_SIDE: Final = 4
"""Cases at once: together they fit a GPU of 141 GB."""


def options_of(case: str, folder: Path) -> Options:
    """Options of a case; a model given as a shape is written into ``folder`` first."""
    given = {"ranks": 4, "steps": 3, "seq": 1200, **CASES[case]}
    if (name := given["model"]) in MODELS:
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(MODELS[name]))
        given["model"] = str(folder / name)
    return Options(fake=True, **given)


def measure(case: str, scratch: Path) -> dict[str, Any]:
    """Run a case; its record."""
    run = scratch / case
    (run / "raw").mkdir(parents=True)
    plan = make_plan(options_of(case, scratch), "nsys", gpus.visible(os.environ))
    plan.save(run / "raw" / "plan.json")
    manifest.write(run, manifest.new(case, time.time_ns(), ["accuracy_cases"], plan, {}))
    done = subprocess.run(
        [sys.executable, "-m", "zeropeak.profile.train", str(run)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    info = json.loads((run / "raw" / "rank-0" / "rank.json").read_text())
    with pa.OSFile(str(run / "raw" / "rank-0" / "marks.arrows")) as file:
        marks = pa.ipc.open_stream(file).read_all().drop_columns(["ts_ns", "device_used_bytes"]).to_pylist()
    print(f"{case}: {info['ended']} {info['error'] or ''}", flush=True)
    if info["ended"] != "complete":
        print(done.stderr[-3000:], flush=True)
    return {**_record(case, plan, info, marks), "peaks": _peaks(run)}


def _peaks(run: Path) -> list[dict[str, Any]]:
    """Highest allocated memory of each step, and what was going on then."""
    parse_run(run, workers=1)
    opened = open_run(run)
    names = dict(zip(opened.zero_events["event_id"], opened.zero_events["name"], strict=True))
    peaks = opened.peaks[opened.peaks["scope"] == "step"].astype(object)
    return [
        {
            "step": row["step"],
            "allocated_bytes": row["allocated_bytes"],
            "reserved_bytes": row["reserved_bytes"],
            "event": names.get(row["event_id"]),
            "last_event": names.get(row["last_event_id"]),
            "module": None if pd.isna(row["module"]) else row["module"],
        }
        for row in peaks.to_dict("records")
    ]


def _record(case: str, plan: Plan, info: dict[str, Any], marks: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "case": case,
        "options": {**CASES[case], "settings": list(CASES[case].get("settings", ()))},
        "basis": "measured",
        "device": info["device_name"],
        "versions": info["versions"],
        "world_size": plan.world_size,
        "ended": info["ended"],
        "error": info["error"],
        "zero": info["zero"],
        "marks": marks,
    }


def main() -> None:
    """Measure the cases named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all")
    parser.add_argument("--out", type=Path, required=True, help="folder for the records")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="zeropeak-cases-") as scratch, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for record in pool.map(lambda case: measure(case, Path(scratch)), args.cases or list(CASES)):
            (args.out / f"{record['case']}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
