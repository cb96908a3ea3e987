"""Instruments step aside; training goes on."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from zeropeak.profile.guard import RAISED, Guard
from zeropeak.profile.hooks import POINTS, Patches, install
from zeropeak.profile.observers import Observers


def broken(*_: object) -> None:
    raise RuntimeError("ours")


def test_an_observer_that_fails_is_reported_once_and_not_called_again() -> None:
    reports: list[tuple[str, str]] = []
    guard = Guard(lambda name, why: reports.append((name, why)))
    wrapped = guard.around("fetch", lambda x: x + 1, broken, None)
    assert [wrapped(1), wrapped(2)] == [2, 3]
    assert reports == [("fetch", "RuntimeError: ours")]


def test_the_trained_functions_own_error_passes_and_the_event_is_closed() -> None:
    results: list[object] = []

    def fails() -> None:
        raise KeyError("theirs")

    guard = Guard(lambda *_: None)
    wrapped = guard.around("fetch", fails, lambda: "token", lambda token, result: results.append((token, result)))
    with pytest.raises(KeyError, match="theirs"):
        wrapped()
    assert results == [("token", RAISED)]


def test_patches_are_undone_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    class Base:
        def inherited(self) -> str:
            return "base"

    class Engine(Base):
        def own(self) -> str:
            return "own"

    module = types.ModuleType("fake_engine")
    module.Engine = Engine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_engine", module)
    before = dict(vars(Engine))
    patches = Patches()
    for name in ("own", "inherited"):
        assert patches.replace("fake_engine", f"Engine.{name}", lambda original: lambda self: "patched") is None
    assert (Engine().own(), Engine().inherited()) == ("patched", "patched")
    patches.undo()
    assert (Engine().own(), Engine().inherited(), dict(vars(Engine))) == ("own", "base", before)


def test_a_hook_point_that_this_deepspeed_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for point in POINTS:
        if point.module.startswith("deepspeed"):
            monkeypatch.setitem(sys.modules, point.module, types.ModuleType(point.module))
    observers: Any = Observers(None, None)  # type: ignore[arg-type]
    missing = install(Patches(), observers, Guard(lambda *_: None), stage=3)
    assert {
        "name": "free",
        "why": "this DeepSpeed has no deepspeed.runtime.zero.partition_parameters.free_param",
    } in missing
    assert len(missing) == len([point for point in POINTS if 3 in point.stages])


def test_every_hook_point_exists_in_the_installed_deepspeed() -> None:
    pytest.importorskip("deepspeed")
    for stage in (1, 2, 3):
        patches = Patches()
        observers: Any = Observers(None, None)  # type: ignore[arg-type]
        try:
            assert install(patches, observers, Guard(lambda *_: None), stage) == []
        finally:
            patches.undo()


def test_ranges_have_the_reports_colours() -> None:
    from zeropeak.profile.ranges import _COLORS
    from zeropeak.reports.figures.style import EVENT_COLOURS

    assert {kind: f"#{_COLORS[kind]:06x}" for kind in EVENT_COLOURS} == EVENT_COLOURS
