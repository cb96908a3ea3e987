"""What the instruments cost a training step, on the machine this runs on.

    python benchmarks/overhead.py [--turns N] [--rounds N] [--block-steps N] stage3 --model 6.9b --fake --out DIR

All but the first options are those of ``zeropeak nsys``. Two processes take turns, one plain and one under nsys; each
switches its instruments between blocks of steps (``overhead_steps.py``). Writes overhead.json and overhead.md into DIR.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from zeropeak.cli.model_options import add_training_options, plan_of
from zeropeak.profile.nsys_find import profile_args, require

PLAIN: Final = (
    "nothing",
    "ranges + event log",
    "ranges + event log + memory history",
    "torch.profiler with memory",
    "everything of the torch verb",
)
UNDER_NSYS: Final = ("nothing", "ranges + event log", "ranges + event log + memory history")
_HERE: Final = Path(__file__).parent


def measure(plan: Path, scratch: Path, rounds: int, steps: int, *, nsys: bool) -> list[dict[str, Any]]:
    """Blocks of one process."""
    out = scratch / "blocks.json"
    variants = UNDER_NSYS if nsys else PLAIN
    words = [sys.executable, str(_HERE / "overhead_steps.py"), str(plan), str(out), str(rounds), str(steps), *variants]
    if nsys:
        words = [*profile_args(require(os.environ), scratch / "report", cuda=True), *words]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(scratch)})
    blocks: list[dict[str, Any]] = json.loads(out.read_text())
    return [{**block, "variant": f"nsys: {block['variant']}" if nsys else block["variant"]} for block in blocks]


def table(blocks: list[dict[str, Any]]) -> str:
    """Markdown: medians, and ratios to nothing; ratios of what runs under nsys also to nsys with nothing."""
    seconds: dict[str, list[float]] = {}
    peaks: dict[str, int] = {}
    for block in blocks:
        seconds.setdefault(block["variant"], []).extend(block["seconds"])
        peaks[block["variant"]] = max(peaks.get(block["variant"], 0), block["peak_bytes"] or 0)
    medians = {variant: statistics.median(found) for variant, found in seconds.items()}
    lines = [
        "| instruments | median of a step, ms | steps | against nothing | against nothing in the same process "
        "| peak, bytes above nothing's |",
        "|---|---|---|---|---|---|",
    ]
    for variant, median in medians.items():
        own = median / medians["nsys: nothing" if variant.startswith("nsys: ") else "nothing"] - 1
        plain = median / medians["nothing"] - 1
        lines.append(
            f"| {variant} | {1000 * median:.0f} | {len(seconds[variant])} | {100 * plain:+.1f} % | {100 * own:+.1f} % "
            f"| {peaks[variant] - peaks['nothing']:,} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2, help="rounds of each process's turn (2)")
    parser.add_argument("--turns", type=int, default=2, help="how often the two processes take turns (2)")
    parser.add_argument("--block-steps", type=int, default=5, help="timed steps of a block (5)")
    parser.add_argument("--out", type=Path, required=True, help="folder for overhead.json and overhead.md")
    parser.add_argument("config", help="as for zeropeak nsys")
    add_training_options(parser)
    args = parser.parse_args()
    out: Path = args.out
    out.mkdir(parents=True, exist_ok=True)
    blocks: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="zeropeak-overhead-") as folder:
        plan = Path(folder) / "plan.json"
        plan_of(args, "nsys").save(plan)
        for _ in range(args.turns):
            for nsys in (False, True):
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    blocks += measure(plan, Path(scratch), args.rounds, args.block_steps, nsys=nsys)
    (out / "overhead.json").write_text(json.dumps(blocks) + "\n")
    (out / "overhead.md").write_text(table(blocks))
    print(table(blocks), end="")


if __name__ == "__main__":
    main()
