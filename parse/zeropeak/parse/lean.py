"""A quick start for processes that only parse: of what numpy and pyarrow load at their first use, they need little."""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    """Finds no pandas, wherever it is installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """See :class:`importlib.abc.MetaPathFinder`; None leaves the search to the other finders."""
        if fullname == "pandas":
            raise ModuleNotFoundError("this process reads and writes tables without pandas", name=fullname)


def start_lean() -> None:
    """Call it before numpy is imported, in a process that makes tables and ends.

    pyarrow imports pandas, where it is installed, as soon as it is handed a list: a quarter of a second, and no table
    needs it. It takes it for not installed from here on. numpy's linear algebra, which nothing here uses, would start a
    thread for each core.
    """
    sys.meta_path.insert(0, _NoPandas())
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
