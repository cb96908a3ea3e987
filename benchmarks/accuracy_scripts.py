"""Users' own scripts by which predictions are judged: run here on a GPU, one JSON record a case.

    python benchmarks/accuracy_scripts.py --out tests/data/measured [CASE...]

The scripts are those of ``tests/scripts``; each is one process that stands for rank 0 of a job (a fake process group),
with the hooks and the event log of a capture. Models are built from their configs, as in a prediction: no weights are
needed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

SCRIPTS: Final = Path(__file__).parents[1] / "tests" / "scripts"
STEPS: Final = 3

LLAMA: Final = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "torch_dtype": "bfloat16",
}
NEOX: Final = {
    "model_type": "gpt_neox",
    "architectures": ["GPTNeoXForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "vocab_size": 50304,
    "max_position_embeddings": 2048,
    "rotary_pct": 0.25,
    "eos_token_id": 0,
    "bos_token_id": 0,
    "torch_dtype": "float16",
}
AUTO: Final = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {
        "stage": 3,
        "stage3_prefetch_bucket_size": "auto",
        "reduce_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
}
FILES: Final = {"llama/config.json": LLAMA, "neox/config.json": NEOX, "ds_config.json": AUTO}
"""What the cases' options name, by its place in the folder that a script is started in."""

SCRIPT_CASES: Final = {
    "script-trainer-stage3": (4, "python trainer.py --model llama --deepspeed ds_config.json --out out --tokens 700"),
    "script-accelerate-stage2": (4, "python accelerate_loop.py --model llama --tokens 700"),
    "script-chat-stage3": (4, "deepspeed chat.py --model_name_or_path neox --tokens 700"),
    "script-own-module-stage2": (2, "python own_module.py 5"),
}
"""Ranks, and the command."""


def prepare(folder: Path) -> None:
    """Lay out what the commands name."""
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))


def words_of(case: str) -> list[str]:
    """A case's command, with the script where it is."""
    program, script, *rest = SCRIPT_CASES[case][1].split()
    return [program, str(SCRIPTS / script), *rest]


def run(case: str, out: Path) -> None:
    """Run a case on this GPU, in this process and folder; leaves ``out/raw/rank-0`` as a capture does."""
    ranks = SCRIPT_CASES[case][0]
    os.environ.update(
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
    )
    import deepspeed
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from zeropeak.profile.command import read_command
    from zeropeak.profile.counters import CudaCounters
    from zeropeak.profile.labels import Status
    from zeropeak.profile.script_plan import plan_script
    from zeropeak.profile.session import Session
    from zeropeak.profile.simulate.patches import Patches
    from zeropeak.profile.simulate.pretrained import pretrained_patches
    from zeropeak.profile.simulate.readings import Readings
    from zeropeak.profile.simulate.script import run_script
    from zeropeak.profile.simulate.script_patches import group_patches
    from zeropeak.profile.version import PACKAGES, installed

    torch.cuda.set_device(0)
    torch.distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    deepspeed.init_distributed(dist_backend="fake", dist_init_required=False)
    plan = plan_script(read_command(words_of(case)), ranks=ranks, steps=STEPS, gpu_memory_bytes=None)
    session = Session(out, rank=0, world_size=ranks, counters=CudaCounters(0), sampled=False)
    session.note(versions=installed(*PACKAGES, "pyarrow"))
    with Patches([*group_patches(ranks), *pretrained_patches(Readings())]):
        run_script(plan, session, Readings())
    session.close(Status.COMPLETE, None)


def marks_of(out: Path) -> list[dict[str, Any]]:
    """Rows of a run's marks."""
    table = pa.ipc.open_stream((out / "raw" / "rank-0" / "marks.arrows").read_bytes()).read_all()
    rows: list[dict[str, Any]] = table.drop_columns(["ts_ns", "device_used_bytes"]).to_pylist()
    return rows


def record(case: str, out: Path) -> dict[str, Any]:
    """A case's record."""
    info = json.loads((out / "raw" / "rank-0" / "rank.json").read_text())
    return {
        "case": case,
        "options": {"command": SCRIPT_CASES[case][1]},
        "basis": "measured",
        "device": info["device_name"],
        "versions": info["versions"],
        "world_size": SCRIPT_CASES[case][0],
        "ended": info["ended"],
        "error": info["error"],
        "zero": info["zero"],
        "marks": marks_of(out),
    }


def main() -> None:
    """Measure the cases named, or all, each in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all")
    parser.add_argument("--out", type=Path, required=True, help="folder for the records")
    parser.add_argument("--here", action="store_true", help="run one case in this process and folder")
    args = parser.parse_args()
    if args.here:
        run(args.cases[0], args.out)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for case in args.cases or SCRIPT_CASES:
        with tempfile.TemporaryDirectory(prefix="zeropeak-scripts-") as scratch:
            prepare(Path(scratch))
            command = [sys.executable, str(Path(__file__).resolve()), case, "--here", "--out", "measured"]
            done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{case}: {done.stderr[-3000:]}")
            (args.out / f"{case}.json").write_text(
                json.dumps(record(case, Path(scratch) / "measured"), indent=1) + "\n"
            )
        print(case, flush=True)


if __name__ == "__main__":
    main()
