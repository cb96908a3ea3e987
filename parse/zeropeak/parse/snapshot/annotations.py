"""Ranges that ``record_function`` left in a memory snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from zeropeak.parse.snapshot.columns import constant, integers, table, texts
from zeropeak.profile.labels import NVTX_DOMAIN, RECORD_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa

    from zeropeak.parse.sink import Sink

MAX_TIME_US: Final = (1 << 63) // 1000 - 1


def read_annotations(annotations: list[Any], sink: Sink) -> pa.Table | None:
    """Rows of nvtx_ranges from ``external_annotations``.

    The file names no threads: an END closes the innermost open range of its name. Where two threads run ranges of one
    name at a time, their ends can be swapped.

    Args:
        annotations: dicts with name, stage (START or END), device and time_us, in order of time.
        sink: takes the counts.

    Returns:
        The rows; None when there are none.
    """
    rows: list[tuple[str, int, int | None]] = []
    open_: dict[str, list[int]] = {}
    damaged = unopened = 0
    for annotation in annotations:
        name, stage, time_us = _parts(annotation)
        if name is None:
            damaged += 1
        elif stage == "START":
            open_.setdefault(name, []).append(len(rows))
            rows.append((name, time_us * 1000, None))
        elif open_.get(name):
            row = open_[name].pop()
            rows[row] = (name, rows[row][1], max(time_us * 1000, rows[row][1]))
        else:
            unopened += 1
    sink.count(
        "annotations",
        len(rows),
        "info",
        "ranges of record_function; those of the recording thread only, "
        "unless the history was recorded with global_record_annotations=True",
    )
    sink.count("annotations_unclosed", sum(map(len, open_.values())), "info", "ranges still open at the dump")
    sink.count("annotations_unopened", unopened, "lost", "ends of ranges that began before the known history")
    sink.count("annotations_damaged", damaged, "lost", "annotations without a name, stage or time")
    if not rows:
        return None
    columns = {
        "name": texts([row[0].removeprefix(RECORD_PREFIX) for row in rows]),
        "domain": texts([NVTX_DOMAIN if row[0].startswith(RECORD_PREFIX) else "" for row in rows]),
        "start_ns": integers(np.array([row[1] for row in rows], np.int64)),
        "end_ns": integers(
            np.array([row[2] or 0 for row in rows], np.int64), np.array([row[2] is None for row in rows], np.bool_)
        ),
        "style": constant("record_function", len(rows)),
        "source": constant("snapshot", len(rows)),
    }
    return table(columns)


def _parts(annotation: Any) -> tuple[str | None, str, int]:
    if not isinstance(annotation, dict):
        return None, "", 0
    name, stage, time_us = annotation.get("name"), annotation.get("stage"), annotation.get("time_us")
    if not isinstance(name, str) or stage not in ("START", "END") or type(time_us) is not int:
        return None, "", 0
    return (name, stage, time_us) if 0 <= time_us < MAX_TIME_US else (None, "", 0)
