"""Grow a real memory snapshot to as many entries as wanted, so that it stays a history torch could have written.

    python benchmarks/snapshot_grow.py snapshot_r0.pickle.gz grown.pickle --entries 1000000

The history is repeated. Between two copies the state of the first entry is put back: blocks born in a copy and alive at
its end are freed, blocks from before the history that a copy freed are allocated again; segments are only allocated in
the first copy. So every copy starts from the same live blocks in the same segments, addresses and sizes fit, and the
end is the dump of the real file. Stacks are shared as torch shares them: every allocation has a list of its own, which
the entries of its free share, the frames in the lists are shared by all, and strings like the compile context are
written anew in every entry.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import pickle
from pathlib import Path
from typing import Any

Entry = dict[str, Any]

OWN_STRINGS = ("compile_context", "user_metadata")
BLOCK_ACTIONS = ("alloc", "free_requested", "free_completed")


class Copy:
    """One copy of the history: shifts times and gives the entries their own stacks."""

    def __init__(self, shift_us: int) -> None:
        self.shift_us = shift_us
        self.stacks: dict[int, list[Any]] = {}

    def __call__(self, entries: list[Entry]) -> list[Entry]:
        """The entries as this copy has them."""
        stacks = self.stacks
        return [
            {
                **entry,
                "time_us": entry["time_us"] - self.shift_us,
                "frames": stacks.setdefault(id(entry["frames"]), list(entry["frames"])),
                **{key: bytes(entry[key], "utf-8").decode() for key in OWN_STRINGS if key in entry},
            }
            for entry in entries
        ]


def put_back(trace: list[Entry], time_us: int) -> list[Entry]:
    """Entries that lead from the end of ``trace`` back to the state before its first entry."""
    born: dict[int, Entry] = {}
    taken: dict[int, Entry] = {}
    seen: set[int] = set()
    names: dict[str, str] = {}
    for entry in trace:
        address = entry.get("addr", 0)
        # The very string of the file, so that pickle writes a reference as torch's dump does.
        names.setdefault(entry["action"], entry["action"])
        if entry["action"] == "alloc":
            seen.add(address)
            born[address] = entry
        elif entry["action"] == "free_completed":
            if born.pop(address, None) is None and address not in seen:
                taken[address] = entry
            seen.add(address)
    frees = [
        {**entry, "action": names[action], "time_us": time_us}
        for entry in born.values()
        for action in ("free_requested", "free_completed")
    ]
    return frees + [{**entry, "action": names["alloc"], "time_us": time_us} for entry in taken.values()]


def grow(snapshot: dict[str, Any], device: int, entries: int) -> dict[str, Any]:
    """Return a snapshot with at least ``entries`` entries on ``device``; the other parts are the given one's."""
    trace: list[Entry] = snapshot["device_traces"][device]
    span = trace[-1]["time_us"] - trace[0]["time_us"] + 1
    between = put_back(trace, trace[-1]["time_us"])
    steady = [entry for entry in trace if entry["action"] in BLOCK_ACTIONS]
    copies = max(1, -(-(entries - len(trace)) // (len(steady) + len(between))) + 1)
    # The last copy keeps the real times; the ones before it lie further back.
    copy = Copy(span * (copies - 1))
    grown = copy(trace)
    for index in range(copies - 2, -1, -1):
        grown += copy(between)
        copy = Copy(span * index)
        grown += copy(steady)
    traces = list(snapshot["device_traces"])
    traces[device] = grown
    return {**snapshot, "device_traces": traces}


def main() -> None:
    """Write the grown snapshot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--entries", type=int, default=1_000_000)
    options = parser.parse_args()
    gc.disable()
    opener = gzip.open if options.source.suffix == ".gz" else open
    with opener(options.source, "rb") as file:
        # A file of our own; the product itself reads snapshots with an unpickler that refuses every class.
        snapshot = pickle.load(file)
    traces = snapshot["device_traces"]
    device = max(range(len(traces)), key=lambda index: len(traces[index]))
    with options.target.open("wb") as file:
        pickle.dump(grow(snapshot, device, options.entries), file)
    print(f"Wrote {options.target}")


if __name__ == "__main__":
    main()
