"""Launches of collectives by their external id: a kernel has that of the operator that launched it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from zeropeak.parse.kineto.columns import int_column

if TYPE_CHECKING:
    import pyarrow as pa

    from zeropeak.parse.kineto.columns import Flags, Ints

MAX_ROWS: Final = 1_000_000
"""Launches that are remembered; kernels of later ones do not know theirs."""

FILLED: Final = ("sequence", "in_address", "out_address")
"""What some versions of torch say of the launch only."""

Values = tuple["Ints", "Flags | None"]


class Launches:
    """Remembers launches as packets of them come, before the kernels as the profiler writes them."""

    def __init__(self) -> None:
        self._parts: list[dict[str, tuple[Ints, Flags]]] = []
        self._rows = 0
        self._found: tuple[Ints, dict[str, tuple[Ints, Flags]]] | None = None

    def add(self, start: Ints, good: Flags, columns: dict[str, Values]) -> None:
        """Remember launches.

        Args:
            start: when, on the trace's clock.
            good: which of them have a time.
            columns: ``external_id``, ``thread_id`` and FILLED.
        """
        if self._rows >= MAX_ROWS:
            return
        told = {name: _with_flags(*columns[name]) for name in ("external_id", "thread_id", *FILLED)}
        told["launched_ns"] = start, good
        keep = good & told["external_id"][1]
        self._parts.append({name: (values[keep], valid[keep]) for name, (values, valid) in told.items()})
        self._rows += int(keep.sum())
        self._found = None

    def columns(self, external: Values, own: dict[str, Values]) -> dict[str, pa.Array]:
        """Columns ``launched_ns``, ``thread_id`` and FILLED of collectives.

        Args:
            external: their external ids.
            own: FILLED as they say it themselves, which wins.
        """
        row, found = self._rows_of(*external)
        _, launches = self._index()
        columns = {}
        for name in ("launched_ns", "thread_id", *FILLED):
            values, valid = launches[name]
            told = (values[row], found & valid[row]) if len(values) else (np.zeros(len(row), np.int64), found)
            if name in own:
                mine, known = _with_flags(*own[name])
                told = np.where(known, mine, told[0]), known | told[1]
            columns[name] = int_column(*told)
        return columns

    def _rows_of(self, external: Ints, known: Flags | None) -> tuple[Ints, Flags]:
        """Row of each launch, and whether there is exactly one."""
        ids, _ = self._index()
        if not len(ids):
            return np.zeros(len(external), np.int64), np.zeros(len(external), bool)
        first, last = np.searchsorted(ids, external), np.searchsorted(ids, external, "right")
        found = (last - first == 1) if known is None else known & (last - first == 1)
        return np.where(found, first, 0), found

    def _index(self) -> tuple[Ints, dict[str, tuple[Ints, Flags]]]:
        """All launches in order of their external id."""
        if self._found is None:
            names = ("external_id", "launched_ns", "thread_id", *FILLED)
            nothing = (np.empty(0, np.int64), np.empty(0, bool))
            parts = self._parts or [dict.fromkeys(names, nothing)]
            whole = {
                name: (
                    np.concatenate([part[name][0] for part in parts]),
                    np.concatenate([part[name][1] for part in parts]),
                )
                for name in names
            }
            order = np.argsort(whole["external_id"][0], kind="stable")
            whole = {name: (values[order], valid[order]) for name, (values, valid) in whole.items()}
            self._parts, self._found = [whole], (whole["external_id"][0], whole)
        return self._found


def _with_flags(values: Ints, valid: Flags | None) -> tuple[Ints, Flags]:
    return values, np.ones(len(values), bool) if valid is None else valid
