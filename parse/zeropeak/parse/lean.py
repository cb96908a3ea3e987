"""A quick start and end for processes that only parse; what numpy and pyarrow load by themselves is not needed."""

from __future__ import annotations

import gc
import os
import sys

GC_OBJECTS = 200_000
"""New objects after which the garbage collector looks for cycles. At its usual 700 it takes a twentieth of a parse:
imports and decoding make objects by the hundred thousand, and no cycles to speak of."""

MANY_ROWS = 200_000
"""Rows from which on what making them took is worth giving back before more is made."""


class _NoPandas:
    """Finds no pandas, wherever it is installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """As ``importlib`` asks of a finder, whose base class takes 7 ms to import; None leaves it to the others."""
        if fullname == "pandas":
            raise ModuleNotFoundError("this process reads and writes tables without pandas", name=fullname)


def start_lean() -> None:
    """Call it before numpy is imported, in a process that makes tables and ends.

    pyarrow imports pandas, where it is installed, as soon as it is handed a list: a quarter of a second, and no table
    needs it. It takes it for not installed from here on. numpy's linear algebra, which nothing here uses, would start a
    thread for each core. The garbage collector looks less often. Arrow shares numpy's allocator: its own would keep for
    itself what it frees, a tenth of the memory of a long parse, and is no faster.
    """
    sys.meta_path.insert(0, _NoPandas())
    gc.set_threshold(GC_OBJECTS, 20, 20)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def give_back() -> None:
    """Give the system back what is free in the middle of the heap; for every 100 MB or so: it takes 10 ms.

    A long parse allocates and frees columns of all sizes, and glibc keeps the holes: 4 MB more for every million rows.
    Other C libraries have no such call, nor the habit.
    """
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def give_back_of(rows: int) -> None:
    """The same, where what many rows were made of was let go of."""
    if rows >= MANY_ROWS:
        give_back()


def end_lean() -> None:
    """Call it when all is done: the collector is not to look through what the end of the process frees, 60 ms of it."""
    gc.freeze()
