"""The layout that makes every way of installing and checking work."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STAGES = ("profile", "parse", "reports")
PACKAGES = {"profile": "profile", "parse": "parse", "reports": "reports", "cli": "reports"}
MAY_IMPORT = {
    "profile": {"profile"},
    "parse": {"parse", "profile"},
    "reports": {"reports", "parse", "profile"},
    "cli": {"cli", "reports", "parse", "profile"},
}
SHARED_PROFILE_MODULES = {f"zeropeak.profile.{name}" for name in ("allocator", "errors", "labels", "privacy")}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / PACKAGES[package] / "zeropeak" / package).rglob("*.py"))


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {name for name in names if name.startswith("zeropeak.")}


def test_no_module_shadows_the_standard_library() -> None:
    assert not [path for stage in STAGES for path in (ROOT / stage).glob("*.py")]
    assert not [path for stage in STAGES for path in (ROOT / stage / "zeropeak").glob("*.py")]


def test_standard_profile_imports_from_the_root() -> None:
    script = "import cProfile, profile; assert hasattr(profile, 'Profile')"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_upstream_only(package: str) -> None:
    for path in modules(package):
        for name in imported(path):
            assert name.split(".")[1] in MAY_IMPORT[package], f"{path.name} imports {name}"


@pytest.mark.parametrize("package", ["parse", "reports"])
def test_reading_a_run_needs_only_what_the_capture_shares(package: str) -> None:
    for path in modules(package):
        for name in imported(path):
            if name.split(".")[1] == "profile" and name != "zeropeak.profile":
                assert ".".join(name.split(".")[:3]) in SHARED_PROFILE_MODULES, f"{path.name} imports {name}"


def test_the_allocator_model_needs_nothing_but_errors() -> None:
    for path in modules("profile"):
        if path.parent.name == "allocator":
            names = {name for name in imported(path) if not name.startswith("zeropeak.profile.allocator")}
            assert all(name.startswith("zeropeak.profile.errors") for name in names), f"{path.name} imports {names}"
            found = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
            assert not found & {"torch", "numpy"}


def test_help_needs_no_third_party_package() -> None:
    paths = ":".join(str(ROOT / stage) for stage in STAGES)
    command = [sys.executable, "-S", "-m", "zeropeak.cli", "--help"]
    answer = subprocess.run(command, env={"PYTHONPATH": paths}, capture_output=True, text=True, check=True)
    assert "zeropeak nsys stage3" in answer.stdout


def test_no_module_is_too_long() -> None:
    long = {
        path.name: count
        for package in PACKAGES
        for path in modules(package)
        if (count := len(path.read_text().splitlines())) > 400 and path.name != "schema.py"  # one table after another
    }
    assert not long, "past 400 lines, split"


def test_findings_ask_for_hook_points_that_exist() -> None:
    engine = {f"engine {method}" for method in ("forward", "backward", "step")}
    known = {point.name for point in import_module("zeropeak.profile.hooks").POINTS} | engine
    for path in (ROOT / "reports/zeropeak/reports/findings").glob("*.py"):
        asked = getattr(import_module(f"zeropeak.reports.findings.{path.stem}"), "_NEEDED", ())
        assert set(asked) <= known, path.name
