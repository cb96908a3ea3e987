"""nsys sqlite exports (2022.4 and newer) as tables: NVTX ranges, collectives, work on the GPU, and reserved memory.

One export holds all processes of a node, so the caller says which process is which rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.lookup import Lookup, ints
from zeropeak.parse.nsys_collectives import read_collectives
from zeropeak.parse.nsys_export import Export, open_export
from zeropeak.parse.nsys_source import describe
from zeropeak.profile.labels import NVTX_DOMAIN

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from zeropeak.parse.sink import Sink, Source

INT, TEXT = pa.int64(), pa.string()

STYLES: Final = {59: "push_pop", 70: "push_pop", 60: "start_end", 71: "start_end", 34: "mark", 65: "mark"}
_CATEGORY, _DOMAIN, _DOMAIN_END = 33, 75, 76

COPY_KINDS: Final = (
    "unknown",
    "HtoD",
    "DtoH",
    "HtoA",
    "AtoH",
    "AtoA",
    "AtoD",
    "DtoA",
    "DtoD",
    "HtoH",
    "PtoP",
    "unified HtoD",
    "unified DtoH",
    "unified DtoD",
)
"""Names of ``copyKind``, from the export's ENUM_CUDA_MEMCPY_OPER."""

DEVICE_MEMORY: Final = 2
"""``memKind`` of memory on the device; the others are pinned, pageable, managed or static."""

WANTED: Final = {
    "NVTX_EVENTS": "capture with nsys --trace=nvtx",
    "CUPTI_ACTIVITY_KIND_KERNEL": "capture with nsys --trace=cuda",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "capture with nsys --cuda-memory-usage=true",
}
"""Tables whose absence is worth a word, and what brings them."""


def read(path: Path, sink: Sink, *, ranks: Mapping[int, int] | None = None, default_rank: int | None = None) -> Source:
    """Read an export.

    Args:
        path: the sqlite file.
        sink: takes nvtx_ranges, collectives, kernels, and memory_events (segment_alloc and segment_free: what the
            caching allocator reserves), on the session's clock.
        ranks: rank by process id. None: processes that recorded anything are ranks in the order of their ids.
        default_rank: rank of rows that name no process.

    Raises:
        TraceError: the file is no sqlite database, or damaged.
    """
    with open_export(path) as export:
        pids = _pids(export) if ranks is None else list(ranks)
        if ranks is None:
            ranks = {pid: rank for rank, pid in enumerate(pids)}
            sink.count(
                "ranks_by_process_order",
                len(pids),
                "info",
                "the export names no ranks; processes are numbered in the order of their ids",
            )
        for table, remedy in WANTED.items():
            if export.table(table) is None:
                sink.count(f"no_table_{table}", 1, "info", f"no table {table}; {remedy}")
        known = _Ranks(ranks, default_rank)
        _nvtx(export, sink, known)
        read_collectives(export, sink, known.of)
        _kernels(export, sink, known)
        _segments(export, sink, known)
        if export.bad_text:
            sink.count("text_not_utf8", export.bad_text, "mended", "texts with invalid UTF-8, replaced")
        return describe(export, pids)


def source(path: Path) -> Source:
    """What an export says about itself, without reading its rows (so without processes)."""
    with open_export(path) as export:
        return describe(export, [])


def processes(path: Path) -> list[int]:
    """Ids of the processes that recorded ranges, GPU work or GPU memory, ascending."""
    with open_export(path) as export:
        return _pids(export)


def anchors(path: Path) -> tuple[Any, Any]:
    """Event ids and begin times (session clock) of all our ranges and marks, as int64 arrays."""
    ids, starts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    with open_export(path) as export:
        domains = _domains(export)
        for batch in _nvtx_batches(export):
            event = _event_ids(batch, _names_of(batch, domains, "domainId"))
            ours = event.is_valid()
            ids.append(ints(event.filter(ours)))
            starts.append(ints(batch.column("start").filter(ours)))
    return np.concatenate(ids), np.concatenate(starts)


def _nvtx_batches(export: Export) -> Any:
    columns = [
        ("start", INT),
        ("end", INT),
        ("eventType", INT),
        ("category", INT),
        ("text", TEXT),
        ("*textId", TEXT),
        ("globalTid", INT),
        ("domainId", INT),
        ("int64Value|uint64Value", INT),
    ]
    kinds = ", ".join(str(kind) for kind in STYLES)
    return export.batches("NVTX_EVENTS", columns, f"eventType IN ({kinds}) AND start IS NOT NULL", most=True)


def _nvtx(export: Export, sink: Sink, ranks: _Ranks) -> None:
    domains, categories = _domains(export), _categories(export)
    styles = pa.array([STYLES.get(kind) for kind in range(max(STYLES) + 1)], TEXT)
    total = open_ = foreign = 0
    for batch in _nvtx_batches(export):
        pid = _pid(batch.column("globalTid"))
        rank = ranks.of(pid)
        domain = _names_of(batch, domains, "domainId")
        style = pc.take(styles, batch.column("eventType"))
        mark = pc.equal(style, "mark")
        end = pc.if_else(mark, batch.column("start"), batch.column("end"))
        total += batch.num_rows
        open_ += end.null_count
        foreign += rank.null_count
        sink.write(
            "nvtx_ranges",
            pa.table(
                {
                    "rank": rank,
                    "pid": pid,
                    "thread_id": pc.bit_wise_and(batch.column("globalTid"), 0xFFFFFF),
                    "domain": pc.fill_null(domain, ""),
                    "category": _names_of(batch, categories, "domainId", "category"),
                    "name": pc.coalesce(batch.column("text"), batch.column("textId")),
                    "start_ns": batch.column("start"),
                    "end_ns": end,
                    "style": style,
                    "event_id": _event_ids(batch, domain),
                    "source": pa.repeat(pa.scalar("nsys"), batch.num_rows),
                }
            ),
        )
    sink.count("nvtx_rows", total)
    sink.count("nvtx_open", open_, "info", "ranges that were never closed, or were open when the capture ended")
    sink.count("nvtx_of_other_processes", foreign, "info", "ranges of processes that are not ranks of the run")
    _count_skipped(export, sink)


def _count_skipped(export: Export, sink: Sink) -> None:
    """NVTX rows of kinds that no range or mark is: names of threads and streams, and kinds from the future."""
    real = export.table("NVTX_EVENTS")
    if real is None:
        return
    known = ", ".join(str(kind) for kind in (*STYLES, _CATEGORY, _DOMAIN, _DOMAIN_END))
    is_known = f"coalesce(eventType IN ({known}), 0)"
    rows = export.rows(
        f'SELECT {is_known}, count(*) - count(start), count(*) FROM "{real}" WHERE start IS NULL OR NOT {is_known} '
        "GROUP BY 1"
    )
    skipped = sum(count for ours, _, count in rows if not ours)
    damaged = sum(count for ours, count, _ in rows if ours)
    sink.count("nvtx_rows_of_other_kinds", skipped, "info", "NVTX rows that are neither ranges nor marks")
    sink.count("nvtx_without_start", damaged, "lost", "NVTX rows without a time")


def _kernels(export: Export, sink: Sink, ranks: _Ranks) -> None:
    shared = [
        ("start", INT),
        ("end", INT),
        ("deviceId", INT),
        ("streamId", INT),
        ("correlationId", INT),
        ("globalPid", INT),
    ]
    for table, category, extra in (
        ("KERNEL", "kernel", [("*shortName", TEXT), ("*demangledName", TEXT)]),
        ("MEMCPY", "memcpy", [("bytes", INT), ("copyKind", INT)]),
        ("MEMSET", "memset", [("bytes", INT)]),
    ):
        total = foreign = 0
        for batch in export.batches(f"CUPTI_ACTIVITY_KIND_{table}", [*shared, *extra], "start IS NOT NULL", most=True):
            total += batch.num_rows
            rank = ranks.of(_pid(batch.column("globalPid")))
            if category == "kernel":
                name = pc.coalesce(batch.column("shortName"), batch.column("demangledName"))
                size = pa.nulls(batch.num_rows, INT)
            else:
                name = _copy_names(batch) if category == "memcpy" else pa.repeat(pa.scalar("memset"), batch.num_rows)
                size = batch.column("bytes")
            rows = pa.table(
                {
                    "rank": rank,
                    "name": name,
                    "category": pa.repeat(pa.scalar(category), batch.num_rows),
                    "start_ns": batch.column("start"),
                    "end_ns": batch.column("end"),
                    "device": batch.column("deviceId"),
                    "stream": batch.column("streamId"),
                    "correlation_id": batch.column("correlationId"),
                    "size_bytes": size,
                    "source": pa.repeat(pa.scalar("nsys"), batch.num_rows),
                }
            )
            foreign += rank.null_count
            sink.write("kernels", rows.filter(pc.is_valid(rows["rank"])))
        sink.count(f"{category}_rows", total)
        sink.count(f"{category}_of_other_processes", foreign, "info", "of processes that are not ranks of the run")


def _copy_names(batch: pa.RecordBatch) -> pa.Array:
    kind = ints(batch.column("copyKind"), 0)
    known = np.where((kind >= 0) & (kind < len(COPY_KINDS)), kind, 0)
    return pc.binary_join_element_wise("memcpy", pa.array(COPY_KINDS).take(pa.array(known)), " ")


def _segments(export: Export, sink: Sink, ranks: _Ranks) -> None:
    """cudaMalloc and cudaFree of device memory, with the running total by rank and device."""
    columns = [
        ("start", INT),
        ("globalPid", INT),
        ("deviceId", INT),
        ("address", INT),
        ("bytes", INT),
        ("memKind", INT),
        ("memoryOperationType", INT),
    ]
    reserved: dict[tuple[int, int], int] = {}
    total = other = foreign = 0
    for batch in export.batches("CUDA_GPU_MEMORY_USAGE_EVENTS", columns, "start IS NOT NULL", "start"):
        total += batch.num_rows
        kept = batch.filter(pc.equal(batch.column("memKind"), DEVICE_MEMORY).fill_null(False))
        other += batch.num_rows - kept.num_rows
        ours = kept.filter(ranks.of(_pid(kept.column("globalPid"))).is_valid())
        foreign += kept.num_rows - ours.num_rows
        rank = ints(ranks.of(_pid(ours.column("globalPid"))))
        device, size = ints(ours.column("deviceId"), 0), ints(ours.column("bytes"), 0)
        alloc = ints(ours.column("memoryOperationType")) == 0
        running = []
        for key, signed in zip(
            zip(rank.tolist(), device.tolist(), strict=True), np.where(alloc, size, -size).tolist(), strict=True
        ):
            reserved[key] = reserved.get(key, 0) + signed
            running.append(reserved[key])
        sink.write(
            "memory_events",
            pa.table(
                {
                    "rank": rank,
                    "device": pa.array([f"cuda:{index}" for index in device.tolist()], TEXT),
                    "ts_ns": ours.column("start"),
                    "action": pa.array(np.where(alloc, "segment_alloc", "segment_free").tolist(), TEXT),
                    "address": ours.column("address"),
                    "size_bytes": size,
                    "reserved_bytes": pa.array(running, INT),
                    "source": pa.repeat(pa.scalar("nsys"), ours.num_rows),
                }
            ),
        )
    sink.count("gpu_memory_rows", total)
    sink.count("gpu_memory_not_on_device", other, "info", "pinned, managed and static memory, not part of the curve")
    sink.count("gpu_memory_of_other_processes", foreign, "info", "of processes that are not ranks of the run")


def _pids(export: Export) -> list[int]:
    """Processes with rows, ascending."""
    found: set[int] = set()
    for table, column in (
        ("NVTX_EVENTS", "globalTid"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"),
        ("CUDA_GPU_MEMORY_USAGE_EVENTS", "globalPid"),
    ):
        if export.has(table, column):
            real = export.table(table)
            rows = export.rows(
                f'SELECT DISTINCT ("{column}" >> 24) & 16777215 FROM "{real}" WHERE "{column}" IS NOT NULL'
            )
            found.update(row[0] for row in rows)
    return sorted(found)


def _domains(export: Export) -> tuple[Lookup, pa.Array]:
    """Domain names by process and domain id (ids are the process's own)."""
    return _named(export, _DOMAIN, ("globalTid", "domainId"))


def _categories(export: Export) -> tuple[Lookup, pa.Array]:
    """Category names by process, domain id and category id."""
    return _named(export, _CATEGORY, ("globalTid", "domainId", "category"))


def _named(export: Export, kind: int, key: tuple[str, ...]) -> tuple[Lookup, pa.Array]:
    columns = [(name, INT) for name in key] + [("text", TEXT), ("*textId", TEXT)]
    batches = list(export.batches("NVTX_EVENTS", columns, f"eventType = {kind}"))
    if not batches:
        return Lookup(pa.array([], INT)), pa.array([], TEXT)
    rows = pa.Table.from_batches(batches).combine_chunks()
    keys = pa.array(_key(*(rows[name] for name in key)))
    return Lookup(keys), pc.coalesce(rows["text"], rows["textId"]).combine_chunks()


def _key(tid: Any, domain: Any, category: Any = None) -> Any:
    """One number of process (24 bits), domain (20) and category (20); ids beyond that are never seen."""
    key = (ints(_pid(tid)) & 0xFFFFFF) << 39
    key |= (ints(domain, 0) & 0xFFFFF) << 19
    return key | (ints(category, 0) & 0x7FFFF) if category is not None else key


def _names_of(batch: pa.RecordBatch, names: tuple[Lookup, pa.Array], *columns: str) -> pa.Array:
    lookup, texts = names
    key = _key(batch.column("globalTid"), *(batch.column(name) for name in columns))
    return pc.take(texts, lookup.find(pa.array(key)))


def _event_ids(batch: pa.RecordBatch, domain: pa.Array) -> pa.Array:
    """Our event id: the integer payload of a range in our domain."""
    ours = pc.equal(domain, NVTX_DOMAIN).fill_null(False)
    return pc.if_else(ours, batch.column("int64Value"), pa.scalar(None, INT))


def _pid(global_id: Any) -> Any:
    return pc.bit_wise_and(pc.shift_right(global_id, 24), 0xFFFFFF)


class _Ranks:
    """Ranks of processes, and of rows that name no process."""

    def __init__(self, ranks: Mapping[int, int], default: int | None) -> None:
        self._lookup = Lookup(pa.array(list(ranks), INT))
        self._ranks = pa.array(list(ranks.values()), INT)
        self._default = pa.scalar(default, INT)

    def of(self, pid: Any) -> pa.Array:
        known = pc.take(self._ranks, self._lookup.find(pid))
        return pc.if_else(pc.is_null(pid), self._default, known)
