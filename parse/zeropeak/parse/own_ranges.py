"""Events from our own ranges in a trace, when the event log that belongs to it is not there.

Names and times are there, steps and parameters are not.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.profile.labels import Kind, parse_range_name


def own_events(rows: pa.Table, source: str) -> dict[str, pa.Table]:
    """Rows of zero_events, phases and module_ranges (without ``rank``) from those of nvtx_ranges that are ours.

    Args:
        rows: rows of nvtx_ranges; ours carry an event id and a name of our making.
        source: reader that they come from.
    """
    rows = rows.filter(pc.is_valid(rows["event_id"]))
    if not rows.num_rows:
        return {}
    names = pc.dictionary_encode(rows["name"]).combine_chunks()
    parsed = [parse_range_name(name or "") for name in names.dictionary.to_pylist()]
    kinds = pa.array([found[0].value if found else None for found in parsed], pa.string())
    targets = pa.array([found[1] if found else None for found in parsed], pa.string())
    kind = kinds.take(names.indices)
    rows = rows.select(["event_id", "thread_id", "name", "start_ns", "end_ns"])
    phase, module = pc.equal(kind, Kind.PHASE.value), pc.equal(kind, Kind.MODULE.value)
    zero = pc.and_(pc.is_valid(kind), pc.invert(pc.or_(phase, module)))
    found = {}
    if pc.any(zero).as_py():
        found["zero_events"] = rows.append_column("kind", kind).filter(zero)
        source_column = pa.repeat(pa.scalar(source), found["zero_events"].num_rows)
        found["zero_events"] = found["zero_events"].append_column("source", source_column)
    if pc.any(phase).as_py():
        named = targets.take(names.indices.filter(phase))
        found["phases"] = rows.select(["event_id", "start_ns", "end_ns"]).filter(phase).append_column("phase", named)
    if pc.any(module).as_py():
        found["module_ranges"] = _module_ranges(rows.filter(module), targets.take(names.indices.filter(module)))
    return found


def _module_ranges(rows: pa.Table, target: pa.Array) -> pa.Table:
    """``<module> forward`` and ``model backward`` taken apart; the model's own name is ''."""
    parts = pc.extract_regex(target, r"^(?P<module>.*) (?P<direction>forward|backward)$")
    module = pc.struct_field(parts, "module")
    named = pc.if_else(pc.equal(module, "model"), "", module)
    kept = rows.select(["event_id", "thread_id", "start_ns", "end_ns"]).append_column("module", named)
    return kept.append_column("direction", pc.struct_field(parts, "direction"))
