"""Which GPUs this process would see, without importing torch."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from zeropeak.profile.errors import UsageError, ZeropeakError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Gpu(NamedTuple):
    """One visible GPU; ``free_bytes`` is what other processes leave."""

    name: str
    free_bytes: int


def visible(environ: Mapping[str, str]) -> list[Gpu]:
    """GPUs by ``nvidia-smi``, narrowed by ``CUDA_VISIBLE_DEVICES``; empty without a driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None or environ.get("CUDA_VISIBLE_DEVICES") == "":
        return []
    query = [tool, "--query-gpu=index,uuid,name,memory.free", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    if "No devices" in answer.stdout + answer.stderr:
        return []
    if answer.returncode:
        said = (answer.stdout + answer.stderr).strip().splitlines() or [f"exit status {answer.returncode}"]
        raise ZeropeakError(f"nvidia-smi fails: {said[-1]}; set CUDA_VISIBLE_DEVICES= to run on the CPU")
    rows = [[part.strip() for part in line.split(",")] for line in answer.stdout.splitlines() if line.strip()]
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is not None:
        names = [name.strip() for name in wanted.split(",") if name.strip() not in ("", "-1")]
        chosen = [row for name in names for row in rows if name == row[0] or row[1].startswith(name)]
        if names and not chosen:
            listed = ", ".join(f"{row[0]} ({row[1]})" for row in rows)
            raise UsageError(f"CUDA_VISIBLE_DEVICES={wanted}: none of nvidia-smi's GPUs {listed}; MIG is not supported")
        rows = chosen
    return [Gpu(row[2], int(row[3]) * 2**20 if row[3].isdecimal() else 0) for row in rows]
