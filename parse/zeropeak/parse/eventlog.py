"""The event log of one rank (Arrow streams of the capture) as tables.

Begin and end of an event are separate rows of the stream; here they become one row. An event that was open when the
rank died keeps a null end. Times stay on the machine's CLOCK_MONOTONIC (``Source.clock`` is "boot").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.lookup import Lookup, ints
from zeropeak.parse.sink import MemorySink, Source
from zeropeak.parse.streams import read_stream
from zeropeak.profile.labels import STREAMS, Edge, Kind, rank_of

if TYPE_CHECKING:
    from pathlib import Path

    from zeropeak.parse.sink import Sink

    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]

_COLUMNS = {
    "events": "event_id edge ts_ns kind target module_id thread_id step micro_step phase stream allocated_bytes "
    "reserved_bytes parent_event_id",
    "event_params": "event_id param_id address storage_id",
    "params": "param_id name module_id shape dtype numel full_bytes shard_bytes trainable persistent",
    "modules": "module_id name class_name parent_module_id",
    "marks": "ts_ns step micro_step mark allocated_bytes max_allocated_bytes reserved_bytes released_alive_bytes "
    "released_alive_count device_used_bytes",
    "retained": "ts_ns step micro_step mark param_id size_bytes address storage_id release_event_id holder "
    "holder_module",
    "storages": "storage_id edge ts_ns address size_bytes category owner param_id event_id",
    "saved": "ts_ns step micro_step address size_bytes storage_id holder holder_module",
}
_TEXT = {
    "edge",
    "kind",
    "target",
    "phase",
    "name",
    "dtype",
    "class_name",
    "mark",
    "holder",
    "holder_module",
    "category",
    "owner",
}
_KEYS = {
    "events": ("event_id", "edge", "ts_ns", "kind"),
    "event_params": ("event_id", "param_id"),
    "params": ("param_id",),
    "modules": ("module_id",),
    "marks": ("ts_ns", "mark"),
    "retained": ("ts_ns", "mark", "param_id"),
    "storages": ("storage_id", "edge", "ts_ns"),
    "saved": ("ts_ns", "address", "size_bytes"),
}
"""Columns without which a row says nothing."""
_NEW: Final = ("saved",)
"""Streams that captures of earlier versions do not have."""
_OTHER = {"shape": pa.list_(pa.int64()), "trainable": pa.bool_(), "persistent": pa.bool_()}


def read(path: Path, sink: Sink) -> Source:
    """Read the event log of one rank.

    Args:
        path: the rank's folder, ``raw/rank-<r>``.
        sink: takes zero_events, zero_event_params, phases, module_ranges, modules, params, marks, retained and, for
            each registered storage, a row of memory_blocks with ``source`` log; memory_samples where the log holds
            the allocator's counters; saved_tensors where autograd's graph was walked.
    """
    streams: dict[str, pa.Table] = {}
    whole = True
    for name in STREAMS:
        if name in _NEW and not (path / f"{name}.arrows").is_file():
            streams[name] = _typed(name, None, sink)
            continue
        rows, complete = read_stream(path / f"{name}.arrows", sink)
        whole &= complete
        streams[name] = _typed(name, rows, sink)
        sink.count(f"{name}_rows", streams[name].num_rows)
    events = _join_edges(streams["events"], sink)
    names = _Names(streams["params"], streams["modules"])
    sink.write("modules", streams["modules"])
    sink.write("params", streams["params"])
    sink.write("marks", streams["marks"])
    sink.write("memory_samples", _samples(streams["events"], streams["marks"]))
    _write_events(events, streams["event_params"], names, sink)
    freed = _free_times(events, streams["event_params"])
    blocks = _storages(streams["storages"], freed, names, sink)
    sink.write("memory_blocks", blocks)
    sink.write("saved_tensors", streams["saved"])
    _write_retained(streams["retained"], events, blocks, names, sink)
    middle = int(np.sort(ints(events["event_id"]))[events.num_rows // 2]) if events.num_rows else None
    return Source("log", path, None if middle is None else rank_of(middle), clock="boot", partial=not whole)


def anchors(path: Path) -> tuple[Ints, Ints]:
    """Event ids and begin times (CLOCK_MONOTONIC) of a rank's event log, for clock fits; empty when unreadable."""
    sink = MemorySink()
    rows, _ = read_stream(path / "events.arrows", sink)
    events = _typed("events", rows, sink)
    begun = events.filter(pc.not_equal(events["edge"], Edge.END.value))
    return ints(begun["event_id"]), ints(begun["ts_ns"])


@dataclass(frozen=True)
class _Names:
    """Names and sizes by id."""

    params: pa.Table
    modules: pa.Table

    def param(self, column: str, ids: pa.ChunkedArray) -> pa.Array:
        return self.params[column].take(Lookup(self.params["param_id"]).find(ids))

    def module(self, ids: pa.ChunkedArray | pa.Array) -> pa.Array:
        return self.modules["name"].take(Lookup(self.modules["module_id"]).find(ids))


def _typed(stream: str, rows: pa.Table | None, sink: Sink) -> pa.Table:
    """The stream with exactly its columns and types; rows without their keys are dropped.

    A column that this capture did not write, or that is not of its type, is null.
    """
    names = _COLUMNS[stream].split()
    schema = pa.schema([(name, pa.string() if name in _TEXT else _OTHER.get(name, pa.int64())) for name in names])
    if rows is None:
        return schema.empty_table()
    arrays = []
    for field in schema:
        places = rows.schema.get_all_field_indices(field.name)
        values = pa.nulls(rows.num_rows, field.type)
        if places:
            try:
                values = pc.cast(rows.column(places[0]), field.type)
            except pa.ArrowException:
                found = str(rows.schema.field(places[0]).type)[:60]
                sink.count("column_unusable", 1, "lost", f"{stream}.{field.name} holds {found} that is no {field.type}")
        if field.name == "edge":
            values = pc.if_else(pc.is_in(values, pa.array(list(Edge))), values, pa.scalar(None, field.type))
        arrays.append(values)
    typed = pa.Table.from_arrays(arrays, schema=schema)
    keyed = typed
    for key in _KEYS[stream]:
        keyed = keyed.filter(pc.is_valid(keyed[key]))
    if stream == "storages":
        # The tables know no block without a size; an end needs none.
        sized = pc.or_(pc.equal(keyed["edge"], Edge.END.value), pc.is_valid(keyed["size_bytes"]))
        keyed = keyed.filter(sized)
    if dropped := typed.num_rows - keyed.num_rows:
        sink.count("rows_dropped", dropped, "lost", f"rows of {stream} that lack one of {', '.join(_KEYS[stream])}")
    return keyed.combine_chunks()


def _join_edges(events: pa.Table, sink: Sink) -> pa.Table:
    """One row an event: the begin (or point) row with ``end_ns`` and ``allocated_after_bytes`` added."""
    begins = events.filter(pc.not_equal(events["edge"], Edge.END.value))
    ends = events.filter(pc.equal(events["edge"], Edge.END.value))
    _, first = np.unique(ints(begins["event_id"]), return_index=True)
    if doubles := begins.num_rows - len(first):
        sink.count("events_doubled", doubles, "lost", "begin rows whose event id had been used before")
    begins = begins.take(pa.array(np.sort(first)))
    found = Lookup(ends["event_id"]).find(begins["event_id"])
    point = pc.equal(begins["edge"], Edge.POINT.value)
    end_ns = pc.if_else(point, begins["ts_ns"], ends["ts_ns"].take(found))
    after = pc.if_else(point, begins["allocated_bytes"], ends["allocated_bytes"].take(found))
    if cut := end_ns.null_count:
        sink.count("events_cut", cut, "lost", "events without an end: open when the capture stopped")
    if orphans := Lookup(begins["event_id"]).find(ends["event_id"]).null_count:
        sink.count("event_ends_without_begin", orphans, "lost", "end rows whose begin is not in the log")
    begins = begins.drop_columns(["edge"]).rename_columns({"ts_ns": "start_ns", "allocated_bytes": "before"})
    return begins.append_column("end_ns", end_ns).append_column("after", after)


def _write_events(events: pa.Table, event_params: pa.Table, names: _Names, sink: Sink) -> None:
    known = Lookup(events["event_id"]).find(event_params["event_id"])
    if strays := known.null_count:
        sink.count("event_params_without_event", strays, "lost", "parameters of events whose begin is not in the log")
        event_params = event_params.filter(pc.is_valid(known))
    full = names.param("full_bytes", event_params["param_id"])
    shard = names.param("shard_bytes", event_params["param_id"])
    moved = event_params.append_column("param", names.param("name", event_params["param_id"]))
    moved = moved.append_column("full_bytes", full).append_column("shard_bytes", shard)
    sink.write("zero_event_params", moved)
    sums = moved.group_by("event_id").aggregate([("param_id", "count"), ("full_bytes", "sum"), ("shard_bytes", "sum")])
    module = pc.equal(events["kind"], Kind.MODULE.value)
    phase = pc.equal(events["kind"], Kind.PHASE.value)
    zero = events.filter(pc.invert(pc.or_(module, phase)))
    at = Lookup(sums["event_id"]).find(zero["event_id"])
    columns = {
        name: zero[name]
        for name in (
            "event_id",
            "kind",
            "module_id",
            "step",
            "micro_step",
            "phase",
            "thread_id",
            "stream",
            "start_ns",
            "end_ns",
            "parent_event_id",
        )
    }
    spaced = pc.binary_join_element_wise(
        zero["kind"], zero["target"], " ", null_handling="replace", null_replacement=""
    )
    sink.write(
        "zero_events",
        pa.table(
            {
                **columns,
                "name": pc.utf8_rtrim_whitespace(spaced),
                "module": names.module(zero["module_id"]),
                "allocated_before_bytes": zero["before"],
                "allocated_after_bytes": zero["after"],
                "param_count": pc.fill_null(sums["param_id_count"].take(at), 0),
                "full_bytes": sums["full_bytes_sum"].take(at),
                "shard_bytes": sums["shard_bytes_sum"].take(at),
                "source": pa.repeat(pa.scalar("log"), zero.num_rows),
            }
        ),
    )
    phases = events.filter(pc.and_(phase, pc.is_valid(events["target"])))
    if nameless := pc.sum(phase).as_py() or 0:
        sink.count("phases_without_name", nameless - phases.num_rows, "lost", "phases whose name is unreadable")
    sink.write(
        "phases",
        phases.select(["event_id", "step", "micro_step", "start_ns", "end_ns"]).append_column(
            "phase", phases["target"]
        ),
    )
    _write_module_ranges(events.filter(module), names, sink)


def _write_module_ranges(ran: pa.Table, names: _Names, sink: Sink) -> None:
    direction = pc.struct_field(pc.extract_regex(ran["target"], r"(?P<direction>forward|backward)$"), "direction")
    name = pc.coalesce(names.module(ran["module_id"]), pc.replace_substring_regex(ran["target"], r" ?\S+$", ""))
    kept = ran.select(
        ["event_id", "module_id", "step", "micro_step", "phase", "thread_id", "start_ns", "end_ns", "parent_event_id"]
    )
    kept = kept.append_column("module", name).append_column("direction", direction)
    kept = kept.append_column("allocated_before_bytes", ran["before"])
    sink.write("module_ranges", kept.append_column("allocated_after_bytes", ran["after"]))


def _samples(events: pa.Table, marks: pa.Table) -> pa.Table:
    """The allocator's counters wherever they were read, in time order (as logged among equal times)."""
    columns = ["ts_ns", "allocated_bytes", "reserved_bytes"]
    rows = pa.concat_tables([events.select(columns), marks.select(columns)])
    read = pc.or_(pc.is_valid(rows["allocated_bytes"]), pc.is_valid(rows["reserved_bytes"]))
    rows = rows.filter(pc.and_(read, pc.is_valid(rows["ts_ns"])))
    rows = rows.take(pa.array(np.argsort(ints(rows["ts_ns"]), kind="stable")))
    return rows.append_column("source", pa.repeat(pa.scalar("log"), rows.num_rows))


def _free_times(events: pa.Table, event_params: pa.Table) -> pa.Table:
    """Storages that ZeRO let go of: ``storage_id``, ``released_ns``."""
    free = events.filter(pc.equal(events["kind"], Kind.FREE.value))
    at = Lookup(free["event_id"]).find(event_params["event_id"])
    freed = pa.table({"storage_id": event_params["storage_id"], "released_ns": free["start_ns"].take(at)})
    return freed.filter(pc.and_(pc.is_valid(freed["released_ns"]), pc.is_valid(freed["storage_id"])))


def _storages(storages: pa.Table, freed: pa.Table, names: _Names, sink: Sink) -> pa.Table:
    """Registered storages as rows of memory_blocks; ``born_event_id`` is the event that registered it."""
    begins = storages.filter(pc.not_equal(storages["edge"], Edge.END.value))
    ends = storages.filter(pc.equal(storages["edge"], Edge.END.value))
    if strays := Lookup(begins["storage_id"]).find(ends["storage_id"]).null_count:
        sink.count("storage_ends_without_begin", strays, "lost", "ends of storages whose begin is not in the log")
    end_ns = ends["ts_ns"].take(Lookup(ends["storage_id"]).find(begins["storage_id"]))
    released = freed["released_ns"].take(Lookup(freed["storage_id"]).find(begins["storage_id"]))
    return pa.table(
        {
            "block_id": pa.array(np.arange(begins.num_rows)),
            "address": begins["address"],
            "size_bytes": begins["size_bytes"],
            "born_ns": begins["ts_ns"],
            "free_requested_ns": end_ns,
            "freed_ns": end_ns,
            "category": begins["category"],
            "owner": begins["owner"],
            "param_id": begins["param_id"],
            "storage_id": begins["storage_id"],
            "module": names.module(names.param("module_id", begins["param_id"])),
            "released_ns": released,
            "born_event_id": begins["event_id"],
            "source": pa.repeat(pa.scalar("log"), begins.num_rows),
        }
    )


def _write_retained(retained: pa.Table, events: pa.Table, blocks: pa.Table, names: _Names, sink: Sink) -> None:
    ended = blocks["freed_ns"].take(Lookup(blocks["storage_id"]).find(retained["storage_id"]))
    released = events["start_ns"].take(Lookup(events["event_id"]).find(retained["release_event_id"]))
    rows = retained.append_column("param", names.param("name", retained["param_id"]))
    rows = rows.append_column("module", names.module(names.param("module_id", retained["param_id"])))
    sink.write("retained", rows.append_column("released_ns", released).append_column("ended_ns", ended))
