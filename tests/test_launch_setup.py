"""launch.sh: which Python it takes, what it installs, that a set-up is done once. A stand-in plays Python and pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
TOOLS = (
    *("bash", "cat", "cp", "cut", "diff", "dirname", "env", "flock", "grep", "head", "mkdir", "readlink", "rm", "sed"),
    *("sha256sum", "sleep", "tail", "uname"),
)
# Answers questions as a bare Python with only the modules of PYTHONPATH; writes down what pip is told.
PYTHON = """#!/bin/bash
case "$1 $2" in
"-m venv") mkdir -p "${!#}/bin"; cp "$0" "${!#}/bin/python"; echo venv >> "$CALLS" ;;
"-m pip") echo "pip ${*:3}" >> "$CALLS"; sleep "${PIP_SECONDS:-0}"
  [[ -z ${PIP_FAILS_ON-} || "$*" != *"$PIP_FAILS_ON"* ]] || { echo "ERROR: $PIP_SAYS"; exit 1; } ;;
"-m "*) echo "ran $0 $*"; echo "path $PYTHONPATH" ;;
*) exec "$REAL" -S "$@" ;;
esac
"""
READING = ("pandas", "pyarrow", "matplotlib", "msgspec", "rich")
ALL_MODULES = ("torch", "deepspeed", "nvtx", "transformers", "psutil", *READING)


class Machine:
    """A checkout (its path has a space) on a machine with a chosen PATH."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "my clone"
        self.venv = self.checkout / ".venv"
        self.calls = folder / "calls"
        self.bin = folder / "bin"
        self.site = folder / "site"
        for path in (self.checkout, self.bin, self.site):
            path.mkdir()
        for name in ("launch.sh", "constraints.txt", "pyproject.toml"):
            shutil.copy(CHECKOUT / name, self.checkout)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or pytest.skip(f"no {tool} here"))
        self.put("python3", PYTHON)
        self.environ = {
            "PATH": str(self.bin),
            "HOME": str(folder),
            "CALLS": str(self.calls),
            "REAL": sys.executable,
            "PYTHONPATH": str(self.site),
        }

    def put(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def install(self, *modules: str) -> None:
        for module in modules:
            (self.site / f"{module}.py").write_text("raise SystemError('was imported')")

    def run(self, *arguments: str, script: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [script or self.checkout / "launch.sh", *arguments],
            cwd=self.bin,
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def pip(self) -> list[str]:
        """What pip was told, without what is the same every time."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        common = f"pip install --quiet --no-input --disable-pip-version-check -c {self.checkout}/constraints.txt "
        return [line.removeprefix(common) for line in lines]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


no_gpu = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="the machine has a GPU")


def pinned_torch() -> str:
    pins = (CHECKOUT / "constraints.txt").read_text().splitlines()
    return next(pin.removeprefix("torch==") for pin in pins if pin.startswith("torch=="))


@no_gpu
def test_a_bare_machine_gets_a_venv_with_the_cpu_build_first(machine: Machine) -> None:
    done = machine.run("nsys", "stage3")
    assert done.returncode == 0, done.stderr
    assert machine.pip() == ["venv", f"--no-deps torch=={pinned_torch()}+cpu", "-e .[profile,test]"]
    assert f"ran {machine.venv}/bin/python -m zeropeak.cli nsys stage3" in done.stdout
    assert done.stdout.splitlines()[-1] == "path " + ":".join(
        f"{machine.checkout}/{s}" for s in ("profile", "parse", "reports")
    )
    assert "no NVIDIA GPU here" in done.stderr
    assert "my\\ clone/.venv" in done.stderr, "the command to undo it can be pasted"


@no_gpu
def test_the_cpu_index_is_asked_when_pips_own_have_no_such_build(machine: Machine) -> None:
    build = f"torch=={pinned_torch()}+cpu"
    done = machine.run("setup", PIP_FAILS_ON="--no-deps torch", PIP_SAYS=f"No matching distribution found for {build}")
    assert done.returncode == 0, done.stderr
    assert machine.pip()[2] == f"--no-deps --index-url https://download.pytorch.org/whl/cpu {build}"


@no_gpu
def test_a_cpu_build_that_is_nowhere_to_be_had_is_said(machine: Machine) -> None:
    done = machine.run("setup", PIP_FAILS_ON="torch", PIP_SAYS="No route to host")
    assert done.returncode == 1
    assert "not on pip's indexes, and PyTorch's own index failed too" in done.stderr
    assert "No route to host" in done.stderr


def test_a_gpu_gets_the_plain_build(machine: Machine) -> None:
    machine.put("nvidia-smi", "#!/bin/bash\nexit 0\n")
    assert machine.run("setup").returncode == 0
    assert machine.pip()[1] == f"torch=={pinned_torch()}"


def test_a_second_start_sets_nothing_up_and_is_quick(machine: Machine) -> None:
    machine.run("setup")
    machine.calls.unlink()
    started = time.monotonic()
    done = machine.run("parse", "runs/x")
    assert time.monotonic() - started < 2
    assert machine.pip() == []
    assert done.stderr == ""


def test_changed_pins_are_installed_into_the_same_venv(machine: Machine) -> None:
    machine.run("setup")
    (machine.venv / "kept").touch()
    with (machine.checkout / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    machine.calls.unlink()
    machine.run("setup")
    assert "venv" not in machine.pip()
    assert "-e .[profile,test]" in machine.pip()
    assert (machine.venv / "kept").exists()


def test_an_interrupted_set_up_is_done_again_from_the_start(machine: Machine) -> None:
    broken = machine.run("setup", PIP_FAILS_ON="profile,test", PIP_SAYS="No space left on device")
    assert broken.returncode == 1
    assert "No space left on device" in broken.stderr
    assert f"{machine.venv}/setup.log" in broken.stderr
    machine.calls.unlink()
    assert machine.run("setup").returncode == 0
    assert machine.pip()[0] == "venv"


def test_two_at_once_set_up_once(machine: Machine) -> None:
    command = [str(machine.checkout / "launch.sh"), "parse", "x"]
    environ = {**machine.environ, "PIP_SECONDS": "0.3"}
    both = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = b"".join(process.communicate(timeout=60)[1] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert machine.pip().count("venv") == 1
    assert b"Another set-up" in said


def test_an_environment_with_torch_and_deepspeed_is_used_as_it_is(machine: Machine) -> None:
    machine.install(*ALL_MODULES)
    done = machine.run("nsys", "stage3")
    assert done.returncode == 0, done.stderr
    assert f"ran {machine.bin}/python3 -m zeropeak.cli nsys stage3" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(f":{machine.site}")
    assert not machine.venv.exists()
    assert machine.pip() == []


def test_what_such_an_environment_lacks_is_named_with_the_command(machine: Machine) -> None:
    machine.install(*(set(ALL_MODULES) - {"msgspec", "nvtx"}))
    done = machine.run("nsys", "stage3")
    assert done.returncode == 1
    assert (
        f"lacks: msgspec nvtx. Install them: {machine.bin}/python3 -m pip install msgspec nvtx==0.2.11" in done.stderr
    )
    assert machine.pip() == []
    machine.install("msgspec")
    assert machine.run("report", "runs/x").returncode == 0, "a report needs no nvtx"


def test_torch_without_deepspeed_is_no_environment_to_use(machine: Machine) -> None:
    machine.install(*(set(ALL_MODULES) - {"deepspeed"}))
    assert f"ran {machine.venv}/bin/python" in machine.run("nsys", "stage3").stdout


@pytest.mark.parametrize("arguments", [[], ["--help"], ["nsys", "--help"], ["-h"]])
def test_help_sets_nothing_up(machine: Machine, arguments: list[str]) -> None:
    done = machine.run(*arguments)
    assert f"ran {machine.bin}/python3 -m zeropeak.cli {' '.join(arguments) or '--help'}" in done.stdout
    assert not machine.venv.exists()


def test_an_old_python_is_passed_over_for_a_newer_one(machine: Machine) -> None:
    machine.put("python3", "#!/bin/bash\nexit 1\n")
    done = machine.run("setup")
    assert done.returncode == 1
    assert "needs Python 3.11 or newer and found none" in done.stderr
    machine.put("python3.12", PYTHON)
    assert machine.run("setup").returncode == 0


def test_a_missing_venv_module_is_named_with_the_package(machine: Machine) -> None:
    machine.put("python3", PYTHON.replace("*) exec", "-c\\ import\\ venv*) exit 1 ;;\n*) exec"))
    done = machine.run("setup")
    assert done.returncode == 1
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"has no venv module; on Debian or Ubuntu: sudo apt install python{minor}-venv" in done.stderr


def test_a_link_to_launch_sh_runs_its_own_checkout(machine: Machine, tmp_path: Path) -> None:
    link = tmp_path / "zp"
    link.symlink_to(machine.checkout / "launch.sh")
    assert f"ran {machine.venv}/bin/python -m zeropeak.cli parse x" in machine.run("parse", "x", script=link).stdout


def test_the_checkouts_own_venv_is_kept_up_even_when_activated(machine: Machine) -> None:
    machine.run("setup")
    machine.install(*ALL_MODULES)
    machine.put("python3", PYTHON.replace('exec "$REAL" -S "$@"', 'exec "$REAL" -S -c "{ }" "$@"'))
    prefix = f"import sys; sys.prefix = '{machine.venv}'; sys.argv = sys.argv[1:]; exec(sys.argv.pop(1))"
    machine.put("python3", PYTHON.replace('-S "$@"', f'-S -c "{prefix}" "$@"'))
    assert f"ran {machine.venv}/bin/python" in machine.run("parse", "x").stdout


def test_test_runs_what_ci_runs_and_pytest_last(machine: Machine) -> None:
    (machine.checkout / "docs").mkdir()
    machine.run("setup")
    (machine.venv / "bin/python").write_text(
        PYTHON.replace('"-m "*)', '"-m zeropeak.parse.schema") echo declared ;;\n"-m "*)')
    )
    (machine.checkout / "docs/schema.md").write_text("declared\n")
    done = machine.run("test")
    assert done.returncode == 0, done.stderr
    ran = [line.split(" -m ")[1] for line in done.stdout.splitlines() if line.startswith("ran ")]
    assert ran == ["ruff check .", "ruff format --check .", "mypy", "pytest"]
    (machine.checkout / "docs/schema.md").write_text("something else\n")
    done = machine.run("test")
    assert done.returncode == 1
    assert "docs/schema.md is out of date" in done.stderr
    assert machine.run("test", "-k", "name").stdout.startswith(f"ran {machine.venv}/bin/python -m pytest -k name")


def test_a_failing_check_fails_the_run(machine: Machine) -> None:
    machine.run("setup")
    (machine.venv / "bin/python").write_text(PYTHON.replace('"-m "*)', '"-m ruff") exit 4 ;;\n"-m "*)'))
    assert machine.run("test").returncode == 4


def test_ci_runs_the_test_verb() -> None:
    assert (CHECKOUT / ".ci/run").read_text().splitlines()[-1] == "exec ./launch.sh test"
    assert os.access(CHECKOUT / ".ci/run", os.X_OK)


def test_every_verb_that_runs_something_gets_the_environment(machine: Machine) -> None:
    from zeropeak.cli.main import VERBS

    machine.run("setup")
    for verb in VERBS:
        done = machine.run(verb, "x")
        assert f"ran {machine.venv}/bin/python -m " in done.stdout, (verb, done.stdout, done.stderr)
