"""Which GPUs are visible, by a stand-in for nvidia-smi."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from zeropeak.profile.errors import UsageError, ZeropeakError
from zeropeak.profile.gpus import visible

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TWO = "0, GPU-aaa, NVIDIA H200, 1000\n1, GPU-bbb, NVIDIA H200, [N/A]\n"


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    def make(says: str, code: int = 0) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\nprintf '%s' '{says}'\nexit {code}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return make


def test_without_a_driver_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible({}) == []


def test_memory_that_is_not_told_is_none(nvidia_smi: Callable[..., None]) -> None:
    nvidia_smi(TWO)
    assert [(gpu.name, gpu.free_bytes) for gpu in visible({})] == [("NVIDIA H200", 1000 * 2**20), ("NVIDIA H200", 0)]


@pytest.mark.parametrize(("wanted", "count"), [("1", 1), ("1,0", 2), ("GPU-aa", 1), ("", 0), ("-1", 0)])
def test_the_users_choice_is_kept(nvidia_smi: Callable[..., None], wanted: str, count: int) -> None:
    nvidia_smi(TWO)
    assert len(visible({"CUDA_VISIBLE_DEVICES": wanted})) == count


def test_a_choice_that_names_none_of_them_is_an_error_and_not_a_cpu_run(nvidia_smi: Callable[..., None]) -> None:
    nvidia_smi(TWO)
    with pytest.raises(UsageError, match="MIG is not supported"):
        visible({"CUDA_VISIBLE_DEVICES": "MIG-1234"})


def test_a_driver_that_fails_is_said(nvidia_smi: Callable[..., None]) -> None:
    nvidia_smi("Failed to initialize NVML: Driver/library version mismatch", 18)
    with pytest.raises(ZeropeakError, match="version mismatch; set CUDA_VISIBLE_DEVICES= to run on the CPU"):
        visible({})
    nvidia_smi("No devices were found", 6)
    assert visible({}) == []
