"""Fixtures shared by all tests: a small synthetic run directory, told event by event."""

from __future__ import annotations

import gzip
import json
import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pytest

from zeropeak.profile.labels import NVTX_DOMAIN, RECORD_PREFIX, RUN_SCHEMA, STREAMS, Kind, event_id, range_name

if TYPE_CHECKING:
    from pathlib import Path

BOOT_TO_UNIX_NS = 1_700_000_000_000_000_000
SESSION_NS = 5_000_000_000
"""The nsys session begins this long after boot in a synthetic run."""

MODULES = ("", "layers.0", "layers.1")
FULL, SHARD, BUFFER, ACTIVATION, SCRATCH, STATE = 4096, 1024, 4608, 2048, 512, 8192

_INT, _TEXT = pa.int64(), pa.string()
_TYPES = {
    **dict.fromkeys(
        (
            "edge",
            "kind",
            "target",
            "phase",
            "name",
            "class_name",
            "dtype",
            "mark",
            "holder",
            "holder_module",
            "category",
            "owner",
        ),
        _TEXT,
    ),
    "shape": pa.list_(_INT),
    "trainable": pa.bool_(),
    "persistent": pa.bool_(),
}
_COLUMNS = {
    "events": "event_id edge ts_ns kind target module_id thread_id step micro_step phase stream allocated_bytes "
    "reserved_bytes parent_event_id",
    "event_params": "event_id param_id address storage_id",
    "params": "param_id name module_id shape dtype numel full_bytes shard_bytes trainable persistent",
    "modules": "module_id name class_name parent_module_id",
    "marks": "ts_ns step micro_step mark allocated_bytes max_allocated_bytes reserved_bytes released_alive_bytes "
    "released_alive_count",
    "retained": "ts_ns step micro_step mark param_id size_bytes address storage_id release_event_id holder "
    "holder_module",
    "storages": "storage_id edge ts_ns address size_bytes category owner param_id event_id",
    "saved": "ts_ns step micro_step address size_bytes storage_id holder holder_module",
}


@dataclass
class RankStory:
    """One rank's raw data as it happens. ``now`` is CLOCK_MONOTONIC in ns and moves by 1 microsecond a row."""

    rank: int
    now: int = 10_000_000_000
    step: int = -1
    phase: str | None = None
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {name: [] for name in STREAMS})
    memory: list[tuple[int, int, int]] = field(default_factory=list)
    """(monotonic ns, signed bytes, address) as the profiler reports it."""
    ranges: list[dict[str, Any]] = field(default_factory=list)
    allocated: int = 0
    counters: bool = False
    """Whether events and marks carry the allocator's counters, as on a GPU."""
    highest: int = 0
    _events: int = 0
    _storages: int = 0
    _next: int = 0x10000

    def tick(self, ns: int = 1000) -> int:
        self.now += ns
        return self.now

    def begin(self, kind: Kind, target: str = "", module_id: int | None = None, params: tuple[int, ...] = ()) -> int:
        self._events += 1
        number = event_id(self.rank, self._events)
        self.rows["events"].append(self._event(number, "begin", kind, target, module_id))
        self.rows["event_params"] += [{"event_id": number, "param_id": param} for param in params]
        self.ranges.append(
            {"id": number, "name": range_name(kind, target), "kind": kind.value, "start": self.now, "end": None}
        )
        return number

    def end(self, number: int, kind: Kind) -> None:
        row = {"event_id": number, "edge": "end", "ts_ns": self.tick(), "kind": kind.value, **self._counted()}
        self.rows["events"].append(row)
        next(r for r in self.ranges if r["id"] == number)["end"] = self.now

    def free_event(self, target: str, param: int, storage: int) -> int:
        self._events += 1
        number = event_id(self.rank, self._events)
        self.rows["events"].append(self._event(number, "point", Kind.FREE, target, None))
        self.rows["event_params"].append({"event_id": number, "param_id": param, "storage_id": storage})
        self.ranges.append(
            {"id": number, "name": range_name(Kind.FREE, target), "kind": "free", "start": self.now, "end": self.now}
        )
        return number

    def alloc(self, size: int, address: int | None = None, *, reported: bool = True) -> int:
        if address is None:
            address, self._next = self._next, self._next + 0x10000
        self.allocated += size
        self.highest = max(self.highest, self.allocated)
        if reported:
            self.memory.append((self.tick(), size, address))
        return address

    def free(self, address: int, size: int, *, reported: bool = True) -> None:
        self.allocated -= size
        if reported:
            self.memory.append((self.tick(), -size, address))

    def register(
        self, address: int, size: int, category: str, owner: str, param: int | None = None, event: int | None = None
    ) -> int:
        self._storages += 1
        self.rows["storages"].append(
            {
                "storage_id": self._storages,
                "edge": "begin",
                "ts_ns": self.tick(100),
                "address": address,
                "size_bytes": size,
                "category": category,
                "owner": owner,
                "param_id": param,
                "event_id": event,
            }
        )
        return self._storages

    def storage_end(self, storage: int) -> None:
        self.rows["storages"].append({"storage_id": storage, "edge": "end", "ts_ns": self.tick(100)})

    def mark(self, mark: str, alive: list[tuple[int, int, int, int]]) -> None:
        """``alive``: (param, address, storage, free event) of what outlived its release."""
        where = {"ts_ns": self.tick(), "step": self.step, "micro_step": 0, "mark": mark}
        highest = {"max_allocated_bytes": self.highest} if self.counters else {}
        self.highest = self.allocated
        self.rows["marks"].append(
            {
                **where,
                **self._counted(),
                **highest,
                "released_alive_bytes": FULL * len(alive),
                "released_alive_count": len(alive),
            }
        )
        for param, address, storage, event in alive:
            self.rows["retained"].append(
                {
                    **where,
                    "param_id": param,
                    "size_bytes": FULL,
                    "address": address,
                    "storage_id": storage,
                    "release_event_id": event,
                    "holder": "AddmmBackward0._saved_mat2",
                    "holder_module": MODULES[param],
                }
            )

    def _event(self, number: int, edge: str, kind: Kind, target: str, module_id: int | None) -> dict[str, Any]:
        return {
            "event_id": number,
            "edge": edge,
            "ts_ns": self.tick(),
            "kind": kind.value,
            "target": target,
            "module_id": module_id,
            "thread_id": 100 + self.rank,
            "step": self.step,
            "micro_step": 0,
            "phase": self.phase,
            **self._counted(),
        }

    def _counted(self) -> dict[str, int]:
        return {"allocated_bytes": self.allocated, "reserved_bytes": 1 << 20} if self.counters else {}


def tell(story: RankStory, steps: int, *, retain: bool, unreported_frees: bool) -> None:
    """Train a model of two layers (one weight each) under stage 3 for some steps.

    Args:
        story: where it is recorded.
        steps: optimizer steps.
        retain: full weights outlive their release in forward until their backward.
        unreported_frees: the profiler misses the frees of gather buffers, as with gloo's threads.
    """
    for module, name in enumerate(MODULES):
        story.rows["modules"].append(
            {
                "module_id": module,
                "name": name,
                "class_name": "Linear" if name else "Net",
                "parent_module_id": 0 if name else None,
            }
        )
    for param in (1, 2):
        story.rows["params"].append(
            {
                "param_id": param,
                "name": f"{MODULES[param]}.weight",
                "module_id": param,
                "shape": [32, 64],
                "dtype": "bfloat16",
                "numel": 2048,
                "full_bytes": FULL,
                "shard_bytes": SHARD,
                "trainable": True,
                "persistent": False,
            }
        )
    phase = _phase(story, "init")
    for param in (1, 2):
        shard = story.alloc(SHARD)
        story.register(shard, SHARD, "param_shard", f"{MODULES[param]}.weight", param)
    story.end(phase, Kind.PHASE)
    story.mark("init", [])
    for step in range(steps):
        story.step = step
        alive = _forward(story, retain=retain, reported=not unreported_frees, prefetch=step > 0)
        _backward(story, alive, reported=not unreported_frees)
        phase = _phase(story, "step")
        event = story.begin(Kind.STEP)
        if step == 0:
            state = story.alloc(STATE)
            story.register(state, STATE, "optimizer_state", "exp_avg")
        story.tick(50_000)
        story.end(event, Kind.STEP)
        story.end(phase, Kind.PHASE)
        story.mark("step", [])


def _phase(story: RankStory, name: str) -> int:
    story.phase = name
    return story.begin(Kind.PHASE, name)


@dataclass
class Held:
    """A full weight that outlived its release, and what else a layer's forward left."""

    full: int
    storage: int
    event: int
    activation: int
    alive: bool


def _gather(story: RankStory, layer: int, kind: Kind, *, reported: bool) -> tuple[int, int]:
    """Fetch a layer's weight: flat buffer, wait, copy out; returns address and storage of the full weight."""
    name = MODULES[layer]
    launched = story.begin(kind, name, layer if kind is Kind.FETCH else 0, (layer,))
    buffer = story.alloc(BUFFER, 0x9000000 + layer * 0x10000)
    flat = story.register(buffer, BUFFER, "gather_buffer", name, None, launched)
    story.end(launched, kind)
    wait = story.begin(Kind.WAIT, name, layer, (layer,))
    full = story.alloc(FULL)
    storage = story.register(full, FULL, "param_full", f"{name}.weight", layer, wait)
    story.free(buffer, BUFFER, reported=reported)
    story.storage_end(flat)
    story.end(wait, Kind.WAIT)
    return full, storage


def _forward(story: RankStory, *, retain: bool, reported: bool, prefetch: bool) -> list[Held]:
    phase = _phase(story, "forward")
    model = story.begin(Kind.MODULE, "model forward", 0)
    kept = []
    for layer in (1, 2):
        kind = Kind.PREFETCH if prefetch and layer == 2 else Kind.FETCH
        full, storage = _gather(story, layer, kind, reported=reported)
        running = story.begin(Kind.MODULE, f"{MODULES[layer]} forward", layer)
        scratch = story.alloc(SCRATCH)
        activation = story.alloc(ACTIVATION)
        story.free(scratch, SCRATCH)
        story.end(running, Kind.MODULE)
        event = _release(story, layer, storage)
        if not retain:
            story.free(full, FULL)
            story.storage_end(storage)
        kept.append(Held(full, storage, event, activation, retain))
    story.end(model, Kind.MODULE)
    story.end(phase, Kind.PHASE)
    story.mark("forward", [(n, h.full, h.storage, h.event) for n, h in enumerate(kept, 1) if h.alive])
    return kept


def _release(story: RankStory, layer: int, storage: int) -> int:
    release = story.begin(Kind.RELEASE, MODULES[layer], layer, (layer,))
    event = story.free_event(f"{MODULES[layer]}.weight", layer, storage)
    story.end(release, Kind.RELEASE)
    return event


def _backward(story: RankStory, kept: list[Held], *, reported: bool) -> None:
    phase = _phase(story, "backward")
    for layer in (2, 1):
        held = kept[layer - 1]
        full, storage = _gather(story, layer, Kind.FETCH, reported=reported)
        running = story.begin(Kind.MODULE, f"{MODULES[layer]} backward", layer)
        if held.alive:
            story.free(held.full, FULL)
            story.storage_end(held.storage)
        story.free(held.activation, ACTIVATION)
        bucket = story.alloc(FULL)
        owner = story.register(bucket, FULL, "gradient_bucket", "bucket 0")
        story.end(running, Kind.MODULE)
        _release(story, layer, storage)
        story.free(full, FULL)
        story.storage_end(storage)
        reduce = story.begin(Kind.REDUCE, "bucket 0", None, (layer,))
        story.free(bucket, FULL)
        story.storage_end(owner)
        story.end(reduce, Kind.REDUCE)
    story.end(phase, Kind.PHASE)
    story.mark("backward", [])


class MakeRun(Protocol):
    """Writes a run directory; see the fixture :func:`make_run`."""

    def __call__(
        self,
        name: str = "run",
        *,
        ranks: int = 2,
        steps: int = 2,
        retain: bool = True,
        unreported_frees: bool = False,
        counters: bool = False,
        kineto: bool = True,
        nsys: bool = True,
        status: str = "complete",
    ) -> Path: ...


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests through ./launch.sh gets the same help texts as whoever does not."""
    monkeypatch.delenv("ZEROPEAK_PROGRAM", raising=False)


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Write ``tmp_path/<name>``: event logs, and on request a torch trace a rank and one nsys export."""

    def make(
        name: str = "run",
        *,
        ranks: int = 2,
        steps: int = 2,
        retain: bool = True,
        unreported_frees: bool = False,
        counters: bool = False,
        kineto: bool = True,
        nsys: bool = True,
        status: str = "complete",
    ) -> Path:
        run = tmp_path / name
        run.mkdir()
        stories = []
        for rank in range(ranks):
            story = RankStory(rank, now=10_000_000_000 + rank * 777, counters=counters)
            tell(story, steps, retain=retain, unreported_frees=unreported_frees)
            stories.append(story)
            folder = run / "raw" / f"rank-{rank}"
            folder.mkdir(parents=True)
            write_streams(folder, story)
            write_rank_json(folder, rank, ranks, status, steps)
            if kineto:
                write_kineto(folder / "torch.json.gz", story)
        if nsys:
            write_nsys(run / "raw" / "node-0.sqlite", stories)
        manifest = {
            "schema": RUN_SCHEMA,
            "name": name,
            "tool": "nsys" if nsys else "torch",
            "status": status,
            "created_unix_ns": BOOT_TO_UNIX_NS,
            "basis": "measured",
            "config_name": "stage3",
            "command": ["zeropeak", "nsys", "stage3"],
            "versions": {"zeropeak": "0.1.0", "torch": "2.13.0", "deepspeed": "0.19.8"},
            "world_size": ranks,
            "fake_world": False,
            "backend": "gloo",
            "device": "cpu",
            "steps": steps,
            "seq": 128,
            "micro_batch": 1,
            "grad_accum": 1,
            "model": {"preset": "tiny", "layers": 2},
            "failure": None,
            "notes": [],
            "ds_config": {"zero_optimization": {"stage": 3, "memory_efficient_linear": not retain}},
            "config_changes": [],
            "disk": {"expected_bytes": 1000, "actual_bytes": 900, "cap_bytes": 10**9},
        }
        (run / "run.json").write_text(json.dumps(manifest))
        return run

    return make


def write_streams(folder: Path, story: RankStory) -> None:
    for stream, rows in story.rows.items():
        schema = pa.schema([(name, _TYPES.get(name, _INT)) for name in _COLUMNS[stream].split()])
        with pa.OSFile(str(folder / f"{stream}.arrows"), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for first in range(0, len(rows), 20):
                writer.write_table(pa.Table.from_pylist(rows[first : first + 20], schema=schema))


def write_rank_json(folder: Path, rank: int, world_size: int, ended: str | None, steps: int) -> None:
    info = {
        "rank": rank,
        "world_size": world_size,
        "pid": 4000 + rank,
        "node": 0,
        "device": "cpu",
        "device_name": "CPU",
        "device_total_bytes": 1 << 30,
        "boot_id": "b",
        "clock": {"monotonic_ns": 1_000, "unix_ns": BOOT_TO_UNIX_NS + 1_000 + rank * 40},
        "hooks_missing": [],
        "linear_wrapped": False,
        "linear_wrapper_available": True,
        "ended": ended,
        "error": None,
        "nvtx": "on",
        "steps_done": steps,
        "holder_step": 0,
        "zero": {"stage": 3},
    }
    (folder / "rank.json").write_text(json.dumps(info))


def write_kineto(path: Path, story: RankStory) -> None:
    """A trace whose clock is 3 ms off and whose ranges begin 200 ns after the log's rows."""
    base = BOOT_TO_UNIX_NS
    off = 3_000_000
    events: list[dict[str, Any]] = []
    total = 0
    for ts, size, address in story.memory:
        total += size
        events.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": "[memory]",
                "pid": 1,
                "tid": 1,
                "ts": (ts + off) / 1000,
                "args": {
                    "Total Allocated": total,
                    "Total Reserved": 0,
                    "Bytes": size,
                    "Addr": address,
                    "Device Id": -1,
                    "Device Type": 0,
                },
            }
        )
    for span in story.ranges:
        end = span["end"] if span["end"] is not None else story.now
        events.append(
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": RECORD_PREFIX + span["name"],
                "pid": 4000 + story.rank,
                "tid": 1,
                "ts": (span["start"] + off + 200) / 1000,
                "dur": (end - span["start"]) / 1000,
                "args": {"event_id": span["id"], "External id": 1},
            }
        )
    events.sort(key=lambda event: float(event["ts"]))
    trace = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "gloo", "rank": story.rank, "world_size": 2},
        "profile_memory": True,
        "baseTimeNanoseconds": base,
        "traceEvents": events,
    }
    path.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))


def write_nsys(path: Path, stories: list[RankStory]) -> None:
    """An export with our ranges of all ranks, on a session clock that begins :data:`SESSION_NS` after boot."""
    db = sqlite3.connect(path)
    db.executescript("""
        CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
            category INTEGER, text TEXT, globalTid INTEGER, textId INTEGER, domainId INTEGER, int64Value INTEGER);
        CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
        CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
        INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.20.3');
    """)
    db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?)", (BOOT_TO_UNIX_NS + SESSION_NS,))
    kinds = list(Kind)
    names: dict[str, int] = {}
    insert = "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    for story in stories:
        thread = (1 << 48) | ((4000 + story.rank) << 24) | (100 + story.rank)
        db.execute(insert, (1, None, 75, None, None, NVTX_DOMAIN, thread, None, 7, None))
        for number, kind in enumerate(kinds):
            db.execute(insert, (2, None, 33, None, number, kind.value, thread, None, 7, None))
        for span in story.ranges:
            text = names.setdefault(span["name"], len(names))
            style = 34 if span["kind"] == "free" else 60 if span["kind"] in ("module", "phase") else 59
            end = None if style == 34 or span["end"] is None else span["end"] - SESSION_NS
            db.execute(
                insert,
                (
                    span["start"] - SESSION_NS + 150,
                    end,
                    style,
                    None,
                    kinds.index(Kind(span["kind"])),
                    None,
                    thread,
                    text,
                    7,
                    span["id"],
                ),
            )
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, name) for name, number in names.items()])
    db.commit()
    db.close()
