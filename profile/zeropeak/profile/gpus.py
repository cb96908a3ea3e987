"""Which GPUs this process would see, without importing torch."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Gpu(NamedTuple):
    """One visible GPU; ``free_bytes`` is what other processes leave."""

    name: str
    free_bytes: int


def visible(environ: Mapping[str, str]) -> list[Gpu]:
    """GPUs by ``nvidia-smi``, narrowed by ``CUDA_VISIBLE_DEVICES``; empty without a driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=index,uuid,name,memory.free", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    if answer.returncode:
        return []
    rows = [[part.strip() for part in line.split(",")] for line in answer.stdout.splitlines() if line.strip()]
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is not None:
        names = [name.strip() for name in wanted.split(",") if name.strip()]
        rows = [row for name in names for row in rows if name == row[0] or row[1].startswith(name)]
    return [Gpu(row[2], int(row[3]) * 2**20) for row in rows]
