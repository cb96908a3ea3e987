"""Real captures on CPU, each made once a test session and only read by the tests."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.commands import CANARY, Captured, Command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Command]:
    """Start a command; its run directory is named after its words."""

    def start(*words: str, site: Path | None = None) -> Command:
        name = "-".join(Path(word).name for word in words[:2])
        return Command(tmp_path_factory.mktemp("run") / name, *words, site=site)

    return start


@pytest.fixture(scope="session")
def stage3(command: Callable[..., Command]) -> Captured:
    return command("nsys", "stage3").finish()


@pytest.fixture(scope="session")
def stage3_efficient(command: Callable[..., Command]) -> Captured:
    return command("nsys", "stage3-efficient", "--steps", "2").finish()


@pytest.fixture(scope="session")
def stage2(command: Callable[..., Command]) -> Captured:
    return command("nsys", "stage2", "--steps", "2").finish()


@pytest.fixture(scope="session")
def verified(command: Callable[..., Command], stage3: Captured) -> Captured:
    """The main job again, with the knob turned that its report advises."""
    return command("verify", str(stage3.run_dir)).finish()


@pytest.fixture(scope="session")
def one_rank(command: Callable[..., Command]) -> Captured:
    return command("torch", "stage3-efficient", "--ranks", "1", "--steps", "1").finish()


@pytest.fixture(scope="session")
def interrupted(command: Callable[..., Command]) -> Captured:
    """Ctrl-C in step 1."""
    started = command("nsys", "stage3", "--steps", "500")
    started.read_until("step 0 of 500 done")
    started.process.send_signal(signal.SIGINT)
    return started.finish()


@pytest.fixture(scope="session")
def impatient(command: Callable[..., Command]) -> Captured:
    """SIGHUP (a closed terminal) while the ranks start, and Ctrl-C right after it."""
    started = command("torch", "stage3", "--ranks", "2")
    started.read_until("expecting about")
    time.sleep(3)
    started.process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    started.process.send_signal(signal.SIGINT)
    return started.finish()


@pytest.fixture(scope="session")
def killed(command: Callable[..., Command]) -> Captured:
    """SIGKILL of rank 2, a little after step 0."""
    started = command("nsys", "stage3", "--steps", "500")
    started.read_until("step 0 of 500 done")
    time.sleep(0.5)
    started.rank(2).send_signal(signal.SIGKILL)
    return started.finish()


@pytest.fixture(scope="session")
def hung(command: Callable[..., Command]) -> Captured:
    """Rank 1 stops for good, a little after step 0."""
    started = command("torch", "stage3", "--ranks", "2", "--steps", "500", "--timeout", "8")
    started.read_until("step 0 of 500 done")
    time.sleep(0.5)
    started.rank(1).send_signal(signal.SIGSTOP)
    return started.finish()


_RAISING = """
# The training data of rank 1 break in step 1, like a bad sample in a user's script.
from zeropeak.profile import text

good = text.batch

def batch(data, step, rank, *rest):
    if step == 1 and rank == 1:
        raise ValueError("bad sample")
    return good(data, step, rank, *rest)

text.batch = batch
"""


@pytest.fixture(scope="session")
def raised(command: Callable[..., Command], tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """An exception in the training script of rank 1."""
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(_RAISING)
    return command("nsys", "stage3", site=site).finish()


@pytest.fixture(autouse=True)
def no_process_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    left: list[Any] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("CANARY_TOKEN") == CANARY and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process.cmdline())
        except (psutil.Error, OSError):
            continue
    assert not left
