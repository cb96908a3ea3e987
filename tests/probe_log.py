"""The log that a probe kept beside the H200 captures, as the tables of an event log: read by tests, never by zeropeak.

The probe wrote down what DeepSpeed's functions did, with times, addresses and names, but no ids. A parameter's module
is its name without the last part, and its gathered storage the snapshot's block at the address that ``free_param`` let
go of. It recorded neither shards nor optimizer states: those have no category here.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from tests.captures import h200
from tests.captures import unpack as unpack_files

from zeropeak.parse.blocks import ALIVE, BEFORE
from zeropeak.parse.lookup import ints
from zeropeak.parse.schema import BY_NAME

if TYPE_CHECKING:
    from pathlib import Path

WIDTH: Final = 2
"""Bytes of an element: the runs are fp16."""
PERSISTENT: Final = 10_000
"""Elements up to which a parameter stays gathered in these runs (stage3_param_persistence_threshold)."""
REUSE: Final = 1_000_000_000
"""Elements of stage3_max_reuse_distance in these runs: DeepSpeed's default."""

Row = dict[str, Any]


def unpack(case: str, rank: int, folder: Path) -> tuple[Path, list[Row]]:
    """One rank's snapshot, and its log in order of time."""
    unpack_files(h200(case), folder, f"snapshot_r{rank}.pickle.gz", f"events_r{rank}.json.gz")
    events = json.loads(gzip.decompress((folder / f"events_r{rank}.json.gz").read_bytes()))
    return folder / f"snapshot_r{rank}.pickle.gz", sorted(events, key=lambda event: int(event["t0"]))


@dataclass
class ProbeLog:
    """Tables made of the log.

    Args:
        events: the log.
        blocks: rows of memory_blocks of the rank's device, from its snapshot.
    """

    events: list[Row]
    blocks: pa.Table
    marks: list[Row] = field(default_factory=list)
    storage_rows: list[int] = field(default_factory=list)
    """Rows of ``blocks`` that hold a gathered parameter, in order of storage id."""

    def __post_init__(self) -> None:
        self._params: dict[str, Row] = {}
        self._modules: dict[str, int] = {"": 0}
        self._rows: dict[str, list[Row]] = {
            name: [] for name in ("zero_events", "zero_event_params", "module_ranges", "phases", "memory_blocks")
        }
        self._address = ints(self.blocks["address"])
        self._born, self._gone = ints(self.blocks["born_ns"], BEFORE), ints(self.blocks["free_requested_ns"], ALIVE)
        self._by_address: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
        self._storages: dict[int, int] = {}
        self._step = self._phase_start = 0
        self._seen_first_mark = False
        self._open: dict[tuple[str, bool], int] = {}
        self._releases = [event for event in self.events if event["kind"] == "release_sub_module"]
        self._release_at = np.array([event["t0"] for event in self._releases], np.int64)
        self._release_ids: dict[int, int] = {}
        for event in self.events:
            if event["kind"] == "release_sub_module":
                self._release_ids[int(event["t0"])] = len(self._release_ids) + 10**6
        for number, event in enumerate(self.events, 1):
            getattr(self, f"_{event['kind']}")(number, event)

    def tables(self) -> dict[str, pa.Table]:
        """As an event log gives them."""
        rows = {**self._rows, "params": list(self._params.values()), "retained": []}
        rows["modules"] = [{"module_id": number, "name": name} for name, number in self._modules.items()]
        return {name: pa.Table.from_pylist(some, schema=BY_NAME[name].unranked) for name, some in rows.items()}

    def _mark(self, number: int, event: Row) -> None:
        step, _, phase = event["name"].partition(" ")
        if step.startswith("step"):
            self._step = int(step.removeprefix("step"))
            names = {"fwd": "forward", "bwd": "backward"}
            name = names.get(phase, "step")
            self._rows["phases"].append(
                {
                    **self._where(),
                    "event_id": number,
                    "phase": name,
                    "start_ns": self._phase_start,
                    "end_ns": event["t0"],
                }
            )
            self.marks.append({"step": self._step, "mark": name, "ts_ns": event["t0"], "allocated": event["ma0"]})
            if name == "step":
                self._step += 1
        self._phase_start = event["t0"]
        self._seen_first_mark = True

    def _fetch_sub_module(self, number: int, event: Row) -> None:
        self._open[event["module"], event["forward"]] = len(self._rows["module_ranges"])
        self._rows["module_ranges"].append(
            {
                **self._where(), "event_id": number, "module_id": self._module(event["module"]),
                "module": event["module"], "direction": "forward" if event["forward"] else "backward",
                "start_ns": event["t0"], "end_ns": None,
            }
        )  # fmt: skip
        self._fetching = event["module"]

    def _all_gather_params(self, number: int, event: Row) -> None:
        # Logged inside a fetch_sub_module, whose own row begins earlier.
        own = all(name.rpartition(".")[0] == self._fetching for name in event["params"])
        self._event(number, "fetch" if own else "prefetch", event, self._fetching, event["params"])

    def _gather_wait(self, number: int, event: Row) -> None:
        self._event(number, "wait", event, self._fetching, event["params"])

    def _release_sub_module(self, number: int, event: Row) -> None:
        self._event(self._release_ids[event["t0"]], "release", event, event["module"], [])
        row = self._open.pop((event["module"], event["forward"]), None)
        if row is not None:
            self._rows["module_ranges"][row]["end_ns"] = event["t1"]

    def _free_param(self, number: int, event: Row) -> None:
        if not self._seen_first_mark or event["param"] == "?":
            return  # zero.Init, before the history
        place = int(np.searchsorted(self._release_at, event["t0"], "right")) - 1
        inside = place >= 0 and event["t0"] <= self._releases[place]["t1"]
        parent = self._release_ids[self._releases[place]["t0"]] if inside else None
        self._event(number, "free", {**event, "t1": event["t0"]}, None, [], parent)
        storage = self._storage(event)
        param = self._param(event["param"], event["bytes"] // WIDTH)
        self._rows["zero_event_params"].append({"event_id": number, "param_id": param, "storage_id": storage})

    def _event(
        self, number: int, kind: str, event: Row, module: str | None, params: list[str], parent: int | None = None
    ) -> None:
        phase = {"forward": True, "backward": False}
        self._rows["zero_events"].append(
            {
                **self._where(), "event_id": number, "kind": kind, "name": kind, "parent_event_id": parent,
                "module_id": None if module is None else self._module(module), "module": module,
                "start_ns": event["t0"], "end_ns": event["t1"],
                "phase": next((name for name, value in phase.items() if value == event.get("forward")), None),
            }
        )  # fmt: skip
        self._rows["zero_event_params"] += [{"event_id": number, "param_id": self._param(name)} for name in params]

    def _where(self) -> Row:
        return {"step": self._step, "micro_step": 0, "thread_id": 1}

    def _module(self, name: str) -> int:
        return self._modules.setdefault(name, len(self._modules))

    def _param(self, name: str, numel: int | None = None) -> int:
        row = self._params.setdefault(
            name, {"param_id": len(self._params), "name": name, "module_id": self._module(name.rpartition(".")[0])}
        )
        if numel is not None:
            row |= {"numel": numel, "full_bytes": numel * WIDTH, "persistent": numel <= PERSISTENT}
        return int(row["param_id"])

    def _storage(self, event: Row) -> int | None:
        """Registers the block at the address that was let go of, which was alive then."""
        address = event["addr"]
        if address not in self._by_address:
            self._by_address[address] = np.flatnonzero(self._address == address)
        rows = self._by_address[address]
        alive = rows[(self._born[rows] <= event["t0"]) & (self._gone[rows] >= event["t0"] - 1000)]
        if not len(alive):
            return None
        row = int(alive[np.argmax(self._born[alive])])
        known = self._storages.get(row)
        if known is not None:
            return known
        number = self._storages[row] = len(self.storage_rows)
        self.storage_rows.append(row)
        param = self._param(event["param"], event["bytes"] // WIDTH)
        self._rows["memory_blocks"].append(
            {
                "block_id": number, "storage_id": number, "category": "param_full", "owner": event["param"],
                "param_id": param, "address": address, "size_bytes": int(self.blocks["size_bytes"][row].as_py()),
                "born_ns": self.blocks["born_ns"][row].as_py(), "released_ns": event["t0"],
                "free_requested_ns": self.blocks["free_requested_ns"][row].as_py(),
                "freed_ns": self.blocks["free_requested_ns"][row].as_py(),
            }
        )  # fmt: skip
        return number
