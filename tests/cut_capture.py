"""Cut a fixture of less than 100 KB from a capture on GPUs: what it would hold had it been interrupted early.

    ./launch.sh nsys stage3 --model 6.9b --ranks 2 --out runs/two
    PYTHONPATH=profile:parse:reports python -m tests.cut_capture runs/two tests/data/captures/two-ranks.cut.xz

A cut ends with the first forward, or inside of it with ``--until MODULE``, before that module's begin. Kept are: the
rows of the event log up to then; of the allocator's history the entries up to then, with the segments and blocks of
that moment as they follow from them; of Nsight's export zeropeak's ranges and the device's memory, and from the
forward's begin on NCCL's ranges with their kernels and launches. Of other kernels, copies and ranges, of which there
are hundreds of thousands, and of a torch.profiler trace only those from the forward's begin to the begin of the module
that ``--detail-until`` names. Python stacks, the log, the machine's identity and every folder are left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pickle
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from tests.cuts import pack

from zeropeak.parse.nsys import DEVICE_MEMORY
from zeropeak.parse.sink import MemorySink
from zeropeak.parse.snapshot import reader as snapshot
from zeropeak.profile.labels import NVTX_DOMAIN, RECORD_PREFIX
from zeropeak.profile.privacy import scrubbed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BOOT: Final = "00000000-0000-0000-0000-000000000000"
"""In place of the machine's."""

NCCL_DOMAIN: Final = "NCCL"

WHOLE_TABLES: Final = ("META_DATA_EXPORT", "TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS")
"""Tables of an nsys export that are kept as they are."""


@dataclass(frozen=True)
class Ends:
    """Where one rank is cut.

    Attributes:
        first_ns: begin of the first forward, on the machine's clock.
        detail_ns: end of what is kept in detail.
        last_ns: end of the cut.
        offset_ns: unix time minus the machine's clock.
    """

    first_ns: int
    detail_ns: int
    last_ns: int
    offset_ns: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run directory of a capture on GPUs, of ZeRO stage 3")
    parser.add_argument("out", type=Path, help="the .cut.xz to write")
    parser.add_argument("--until", metavar="MODULE", help="end before this module's first forward")
    parser.add_argument("--detail-until", default="gpt_neox.layers.1", metavar="MODULE", help="(gpt_neox.layers.1)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cut(args.run, Path(folder), args.until, args.detail_until)
        pack(Path(folder), args.out)
    print(f"{args.out}: {args.out.stat().st_size:,} bytes")


def cut(run: Path, out: Path, last: str | None, detail: str) -> None:
    """Write the cut of a run into an empty folder."""
    folders = sorted((run / "raw").glob("rank-*"))
    ends, pids = {}, {}
    for folder in folders:
        target = out / "raw" / folder.name
        target.mkdir(parents=True)
        info = json.loads((folder / "rank.json").read_text())
        ends[folder] = end = find_ends(folder, info, last, detail)
        pids[folder] = info["pid"]
        for stream in sorted(folder.glob("*.arrows")):
            cut_stream(stream, target / stream.name, end.last_ns)
        if (folder / "snapshot.pickle.gz").is_file():
            info["history_entries"] = cut_snapshot(folder, target, end)
        if (folder / "torch.json.gz").is_file():
            cut_kineto(folder, target, end)
        info |= {"ended": "interrupted", "error": "interrupted", "steps_done": 0, "boot_id": BOOT}
        (target / "rank.json").write_text(json.dumps(scrubbed(info), indent=1))
    for export in sorted((run / "raw").glob("node-*.sqlite")):
        cut_export(export, out / "raw" / export.name, ends, pids)
    about = json.loads((run / "run.json").read_text())
    about |= {
        "status": "interrupted",
        "failure": {"rank": None, "kind": "interrupt", "message": "interrupted", "exit_code": 130},
        "notes": ["cut from a longer run by tests/cut_capture.py"],
    }
    (out / "run.json").write_text(json.dumps(scrubbed(about), indent=1))


# The event log


def read_rows(path: Path) -> pa.Table:
    """All rows of a stream."""
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        return stream.read_all()


def until(rows: pa.Table, last_ns: int) -> pa.Table:
    """The rows up to a moment."""
    return rows.filter(pc.less_equal(rows["ts_ns"], last_ns))


def find_ends(folder: Path, info: dict[str, Any], last: str | None, detail: str) -> Ends:
    """Where a rank is cut."""
    events = read_rows(folder / "events.arrows").to_pylist()
    forward = next(row for row in events if (row["kind"], row["target"]) == ("phase", "forward"))
    [end] = [row["ts_ns"] for row in events if (row["event_id"], row["edge"]) == (forward["event_id"], "end")]
    begins = {
        row["target"].removesuffix(" forward"): row["ts_ns"]
        for row in reversed(events)
        if row["kind"] == "module" and row["edge"] == "begin" and row["target"].endswith(" forward")
    }
    last_ns = end if last is None else begins[last] - 1
    clock = info["clock"]
    return Ends(forward["ts_ns"], min(begins[detail], last_ns), last_ns, clock["unix_ns"] - clock["monotonic_ns"])


def cut_stream(path: Path, out: Path, last_ns: int) -> None:
    """Write the rows of a stream up to a moment, as one batch."""
    rows = read_rows(path)
    if path.stem == "event_params":
        kept = until(read_rows(path.with_name("events.arrows")), last_ns)["event_id"]
        rows = rows.filter(pc.is_in(rows["event_id"], pc.unique(kept)))
    elif "ts_ns" in rows.column_names:
        rows = until(rows, last_ns)
    with pa.OSFile(str(out), "wb") as file, pa.ipc.new_stream(file, rows.schema) as stream:
        stream.write_table(rows.combine_chunks())


# The allocator's history


def cut_snapshot(folder: Path, out: Path, ends: Ends) -> int:
    """Write the history up to the cut and the allocator's state then; returns the entries that are left."""
    path = folder / "snapshot.pickle.gz"
    whole = pickle.loads(gzip.decompress(path.read_bytes()))
    last_us = (ends.last_ns + ends.offset_ns) // 1000
    traces = [[entry for entry in trace if entry["time_us"] <= last_us] for trace in whole["device_traces"]]
    sizes = block_sizes(path)
    segments = [segment for device, trace in enumerate(traces) for segment in state_after(device, trace, sizes)]
    for trace in traces:
        for entry in trace:
            entry.pop("frames", None)
    whole |= {
        "device_traces": traces,
        "segments": segments,
        "external_annotations": [one for one in whole["external_annotations"] if one["time_us"] <= last_us],
    }
    (out / path.name).write_bytes(gzip.compress(pickle.dumps(whole, protocol=4), 1))
    return max(len(trace) for trace in traces)


def block_sizes(path: Path) -> dict[tuple[int, int], int]:
    """What each block took of its segment, by address and birth (unix ns): its request, rounded up by the allocator."""
    sink = MemorySink()
    snapshot.read(path, sink)
    blocks = sink.full_table("memory_blocks")
    columns = (blocks[name].to_pylist() for name in ("address", "born_ns", "size_bytes"))
    return {(address, born): size for address, born, size in zip(*columns, strict=True)}


def state_after(device: int, trace: list[dict[str, Any]], sizes: dict[tuple[int, int], int]) -> list[dict[str, Any]]:
    """Segments with their blocks after a history that is whole from its begin."""
    segments: dict[int, dict[str, Any]] = {}
    alive: dict[int, tuple[dict[str, Any], str]] = {}
    for entry in trace:
        address, action = entry["addr"], entry["action"]
        if action == "segment_alloc":
            segments[address] = entry
        elif action == "segment_free":
            del segments[address]
        elif action == "alloc":
            alive[address] = entry, "active_allocated"
        elif action == "free_requested":
            alive[address] = alive[address][0], "active_pending_free"
        elif action == "free_completed":
            del alive[address]
        else:
            raise ValueError(f"a cut of a history with {action} is not known how to make")
    blocks = sorted(alive.items())
    found = []
    for address, segment in sorted(segments.items()):
        end = address + segment["size"]
        mine = [
            {"address": place, "size": sizes[place, entry["time_us"] * 1000], "requested_size": entry["size"],
             "state": state, "frames": []}
            for place, (entry, state) in blocks if address <= place < end
        ]  # fmt: skip
        found.append(
            {
                "device": device, "address": address, "total_size": segment["size"], "stream": segment["stream"],
                "allocated_size": sum(one["size"] for one in mine if one["state"] == "active_allocated"),
                "active_size": sum(one["size"] for one in mine),
                "requested_size": sum(one["requested_size"] for one in mine),
                "segment_type": "small" if segment["size"] == 2 << 20 else "large",
                "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
                "blocks": list(with_gaps(mine, address, end)),
            }
        )  # fmt: skip
    return found


def with_gaps(blocks: Sequence[dict[str, Any]], start: int, end: int) -> Iterable[dict[str, Any]]:
    """The blocks of a segment with the free ones between them."""
    for block in [*blocks, None]:
        until = end if block is None else block["address"]
        if until > start:
            yield {"address": start, "size": until - start, "requested_size": 0, "state": "inactive", "frames": []}
        if block is not None:
            yield block
            start = block["address"] + block["size"]


# torch.profiler


def cut_kineto(folder: Path, out: Path, ends: Ends) -> None:
    """Write our ranges up to the cut, and everything else of the detail."""
    trace = json.loads(gzip.decompress((folder / "torch.json.gz").read_bytes()))
    base = trace["baseTimeNanoseconds"]
    first, detail, last = ((ns + ends.offset_ns - base) / 1000 for ns in (ends.first_ns, ends.detail_ns, ends.last_ns))
    trace.pop("traceName", None)
    trace["traceEvents"] = [
        event
        for event in trace["traceEvents"]
        # Arrows between rows of the picture are left out: no reader takes them.
        if event["ph"] not in {"s", "f"} and (event["ph"] == "M" or (
            event["ts"] <= last if event["name"].startswith(RECORD_PREFIX) else first <= event["ts"] <= detail))
    ]  # fmt: skip
    (out / "torch.json.gz").write_bytes(gzip.compress(json.dumps(scrubbed(trace)).encode(), 1))


# Nsight Systems


def cut_export(path: Path, out: Path, ends: dict[Path, Ends], pids: dict[Path, int]) -> None:
    """Write what a cut keeps of an nsys export."""
    source = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    target = sqlite3.connect(out)
    try:
        names = {row[0] for row in source.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        conditions = {name: ["1"] for name in WHOLE_TABLES if name in names}
        for folder, end in ends.items():
            for name, condition in wanted(source, folder, end, pids[folder]).items():
                conditions.setdefault(name, []).append(condition)
        texts = set()
        for name, some in sorted(conditions.items()):
            columns = [row[1] for row in source.execute(f"PRAGMA table_info({name})")]
            rows = source.execute(f"SELECT * FROM {name} WHERE {' OR '.join(f'({one})' for one in some)}").fetchall()
            copy(source, target, name, rows)
            for column in ("textId", "jsonTextId", "shortName", "demangledName", "mangledName", "nameId"):
                if column in columns:
                    texts |= {row[columns.index(column)] for row in rows}
        rows = [row for row in source.execute("SELECT * FROM StringIds") if row[0] in texts]
        copy(source, target, "StringIds", scrubbed(rows))
        target.commit()
        target.execute("VACUUM")
    finally:
        source.close()
        target.close()


def copy(source: sqlite3.Connection, target: sqlite3.Connection, name: str, rows: list[Any]) -> None:
    """Make a table as it is in another file, with some rows."""
    [(sql,)] = source.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchall()
    target.execute(sql)
    if rows:
        target.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)


def wanted(source: sqlite3.Connection, folder: Path, ends: Ends, pid: int) -> dict[str, str]:
    """Which rows of which tables are kept of one process."""
    first, detail, last = (session_time(source, folder, ns) for ns in (ends.first_ns, ends.detail_ns, ends.last_ns))
    tid, process = f"(globalTid >> 24) & 16777215 = {pid}", f"(globalPid >> 24) & 16777215 = {pid}"
    in_detail, in_forward = f"start BETWEEN {first} AND {detail}", f"start BETWEEN {first} AND {last}"
    domains = dict(source.execute(f"SELECT text, domainId FROM NVTX_EVENTS WHERE eventType = 75 AND {tid}").fetchall())
    ours, theirs = domains[NVTX_DOMAIN], domains.get(NCCL_DOMAIN, -1)
    # By its id, not by its time: clocks differ by microseconds, and every event must be in both or in none.
    last_event = pc.max(until(read_rows(folder / "events.arrows"), ends.last_ns)["event_id"]).as_py()
    nccl = f"{in_forward} AND shortName IN (SELECT id FROM StringIds WHERE value LIKE 'ncclDevKernel%')"
    launched = f"SELECT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE {process} AND {nccl}"
    return {
        "NVTX_EVENTS": f"{tid} AND (eventType IN (33, 75) OR (domainId = {ours} AND int64Value <= {last_event}) OR "
        f"(domainId = {theirs} AND {in_forward}) OR (domainId != {ours} AND {in_detail}))",
        "CUDA_GPU_MEMORY_USAGE_EVENTS": f"{process} AND ((memKind = {DEVICE_MEMORY} AND start <= {last}) "
        f"OR {in_detail})",
        "CUPTI_ACTIVITY_KIND_KERNEL": f"{process} AND (({nccl}) OR {in_detail})",
        "CUPTI_ACTIVITY_KIND_MEMCPY": f"{process} AND {in_detail}",
        "CUPTI_ACTIVITY_KIND_MEMSET": f"{process} AND {in_detail}",
        "CUPTI_ACTIVITY_KIND_RUNTIME": f"{tid} AND {in_forward} AND correlationId IN ({launched})",
        "PROCESSES": process,
    }


def session_time(source: sqlite3.Connection, folder: Path, ns: int) -> int:
    """A moment of a rank on the export's clock: as long after the last event that both recorded."""
    events = read_rows(folder / "events.arrows")
    nearest = until(events.filter(pc.equal(events["edge"], "begin")), ns).sort_by("ts_ns").to_pylist()[-1]
    condition = f"int64Value = {nearest['event_id']} AND eventType IN (59, 60)"
    [(start,)] = source.execute(f"SELECT start FROM NVTX_EVENTS WHERE {condition}").fetchall()
    return int(start) + ns - int(nearest["ts_ns"])


if __name__ == "__main__":
    main()
