"""Instruments never harm the training run: an observer that fails is reported once and steps aside."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable


class Guard:
    """Runs observers; after an observer's first exception it is not called again.

    Args:
        report: receives (observer, why) once for each observer that failed.
    """

    def __init__(self, report: Callable[[str, str], None]) -> None:
        self._report = report
        self._failed: set[str] = set()

    def call(self, name: str, observer: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call an observer; None when it fails or has failed before."""
        if name in self._failed:
            return None
        try:
            return observer(*args, **kwargs)
        except Exception as problem:  # noqa: BLE001 - whatever goes wrong in us must not stop training
            self._fail(name, problem)
            return None

    def _fail(self, name: str, problem: Exception) -> None:
        self._failed.add(name)
        self._report(name, f"{type(problem).__name__}: {problem}")

    def around(
        self,
        name: str,
        original: Callable[..., Any],
        before: Callable[..., Any] | None,
        after: Callable[..., Any] | None,
    ) -> Callable[..., Any]:
        """Wrap a function: ``before(*args, **kwargs)`` gives a token, ``after(token, result, *args, **kwargs)`` closes.

        ``after`` runs also when the function raises (with result :data:`RAISED`), but not when ``before`` failed.
        """

        failed = self._failed

        # The observers are called here, not through `call`: this runs thousands of times a step.
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if name in failed:
                return original(*args, **kwargs)
            token = None
            if before is not None:
                try:
                    token = before(*args, **kwargs)
                except Exception as problem:  # noqa: BLE001 - whatever goes wrong in us must not stop training
                    self._fail(name, problem)
            if after is None:
                return original(*args, **kwargs)
            result: Any = RAISED
            try:
                result = original(*args, **kwargs)
            finally:
                if name not in failed:
                    try:
                        after(token, result, *args, **kwargs)
                    except Exception as problem:  # noqa: BLE001 - as above
                        self._fail(name, problem)
            return result

        wrapper.__wrapped__ = original  # type: ignore[attr-defined]
        wrapper.__name__ = getattr(original, "__name__", name)
        return wrapper


RAISED: Final = object()
"""Result that an ``after`` observer gets when the function raised."""


def warn(message: str) -> None:
    """One line on standard error, for the person who watches the run."""
    print(f"zeropeak: {message}", file=sys.stderr, flush=True)
