"""Which files of tables a run has. A parse leaves one a table and rank, be it empty, so an absent one was taken away.

Read as empty it would say that nothing was fetched, released or retained, and findings would confirm it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from zeropeak.parse.schema import BY_NAME
from zeropeak.profile.errors import ZeropeakError

if TYPE_CHECKING:
    from pathlib import Path

_OF_NO_RANK: Final = "rank-none.parquet"
"""Rows of no rank: the import's counts, and NVTX ranges of processes that are not the run's."""
_OF_THE_RUN: Final = "import_stats"
"""The table that has a file for the run instead of one a rank."""


class TableFiles:
    """The files of a run's tables, as they are when first asked for.

    Args:
        run_dir: run directory.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def of(self, name: str, rank: int | None = None) -> list[Path]:
        """Files of a table, or its file of one rank; none where no table has one of that rank.

        Raises:
            ZeropeakError: the table lacks one that other tables have.
        """
        found = self._found[name]
        if rank is not None and (path := found.get(f"rank-{rank}.parquet")):
            return [path]
        lacking = [file for file in self._lacking(name) if rank is None or file == f"rank-{rank}.parquet"]
        if lacking:
            folder = self._run_dir / "tables" / name
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            raise ZeropeakError(
                f"{folder / lacking[0]}{more}: missing, so nothing true can be said of the run; run "
                f"`zeropeak parse {self._run_dir}` where its raw files are"
            )
        return [] if rank is not None else list(found.values())

    def check(self) -> None:
        """Look at all tables.

        Raises:
            ZeropeakError: one of them lacks a file.
        """
        for name in BY_NAME:
            self.of(name)

    @cached_property
    def _found(self) -> dict[str, dict[str, Path]]:
        tables = self._run_dir / "tables"
        found = {name: {path.name: path for path in (tables / name).glob("rank-*.parquet")} for name in BY_NAME}
        return {name: {file: files[file] for file in sorted(files, key=_rank_in_name)} for name, files in found.items()}

    @cached_property
    def _ranks(self) -> list[str]:
        """Files that every table has."""
        names = {file for name, files in self._found.items() if name != _OF_THE_RUN for file in files}
        return sorted(names - {_OF_NO_RANK}, key=_rank_in_name)

    def _lacking(self, name: str) -> list[str]:
        found = self._found[name]
        if name == _OF_THE_RUN:
            return [_OF_NO_RANK] if self._ranks and not found else []
        return [file for file in self._ranks if file not in found]


def _rank_in_name(file: str) -> tuple[bool, int, str]:
    word = file.removeprefix("rank-").removesuffix(".parquet")
    return (not word.isdecimal(), int(word) if word.isdecimal() else 0, word)
