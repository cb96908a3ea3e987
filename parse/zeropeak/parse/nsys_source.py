"""What an nsys export says about itself: when its clock was zero, and which nsys wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeropeak.parse.sink import Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeropeak.parse.nsys_export import Export


def describe(export: Export, pids: Sequence[int]) -> Source:
    """What an export says about itself.

    Args:
        export: the export.
        pids: processes whose rows are read.
    """
    return Source(
        "nsys",
        export.path,
        pids=tuple(pids),
        clock="session",
        session_start_unix_ns=_session_start(export),
        version=(version := _version(export)),
        versions={"nsys export": version} if version else {},
    )


def _session_start(export: Export) -> int | None:
    """Unix time of the session clock's zero."""
    if not export.has("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
        return None
    rows = export.rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME WHERE utcEpochNs IS NOT NULL")
    begin = (
        export.rows("SELECT min(startTime) FROM ANALYSIS_DETAILS")
        if export.has("ANALYSIS_DETAILS", "startTime")
        else []
    )
    return int(rows[0][0]) - int((begin[0][0] if begin else 0) or 0) if rows else None


def _version(export: Export) -> str | None:
    """Version of the nsys that exported, or of its schema."""
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if export.has(table, "name"):
            found = dict(
                export.rows(
                    f'SELECT name, value FROM "{table}" WHERE name IN '
                    "('EXPORT_PRODUCT_VERSION', 'EXPORT_SCHEMA_VERSION')"
                )
            )
            value = found.get(b"EXPORT_PRODUCT_VERSION") or found.get(b"EXPORT_SCHEMA_VERSION")
            if value:
                return bytes(value).decode("utf-8", "replace")
    return None
