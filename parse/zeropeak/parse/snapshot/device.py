"""One device of a memory snapshot: from its history and its dump to blocks and curve, and what to say about them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zeropeak.parse.snapshot.curve import Curve, draw
from zeropeak.parse.snapshot.entries import OOM, SNAPSHOT, Entries
from zeropeak.parse.snapshot.holes import Sizes, find_sizes, segments
from zeropeak.parse.snapshot.lives import (
    ADDRESS_REUSED,
    BEFORE,
    BORN_UNSEEN,
    GONE_AT_DUMP,
    MENDS,
    Lives,
    join,
    meet_dump,
    meet_nothing,
    nothing,
    pair,
)
from zeropeak.parse.snapshot.segments import Dump, no_dump
from zeropeak.parse.snapshot.sizes import Settings, rounded

if TYPE_CHECKING:
    from zeropeak.parse.sink import Severity, Sink


@dataclass(frozen=True)
class Device:
    """What a snapshot tells about one device.

    Attributes:
        lives: all blocks, those of the history and those that only the dump knows.
        curve: rows of memory_events.
        sizes: how the sizes were found.
        dump: the dump; None when the file has no segments of this device.
    """

    lives: Lives
    curve: Curve
    sizes: Sizes
    dump: Dump | None


def read_device(entries: Entries, dump: Dump | None, settings: Settings) -> Device:
    """Rebuild a device's memory.

    Args:
        entries: the history; may be empty.
        dump: the state at the end; without it, what was not freed is taken to be alive. One without segments is
            none, unless the history frees all that it allocates.
        settings: the allocator's.
    """
    history = pair(entries)
    standing = nothing(history.end)
    if dump is not None and not len(dump.segment_address) and (history.freed == history.never).any():
        dump = None
    known = segments(entries, dump or no_dump())
    if dump is None:
        met = meet_nothing(history)
    else:
        met, standing = meet_dump(history, dump, rounded(history.requested, settings))
    sizes = find_sizes(met, standing, known, settings)
    lives = replace(met, size=sizes.size)
    curve = draw(entries, lives, standing, None if dump is None else dump.reserved_bytes)
    return Device(join(lives, standing), curve, sizes, dump)


def count_device(name: str, entries: Entries, device: Device, sink: Sink) -> bool:
    """Count what was read, mended and lost on one device; return whether the curve misses a part of the run.

    What is counted has the device's name behind a colon, so that two devices of a file are told apart.
    """

    def count(what: str, number: int, severity: Severity, detail: str) -> None:
        sink.count(f"{what}:{name}", number, severity, detail)

    lives, curve = device.lives, device.curve
    older = lives.born == BEFORE
    older_bytes = int(lives.size[older].sum())
    count("entries", len(entries), "info", "entries of the history that were read")
    if len(entries):
        count(
            "history_starts_ns",
            int(entries.ts_ns[0]),
            "info",
            f"first entry; {int(older.sum())} blocks of {older_bytes} bytes are older, and what was freed before is "
            "unknown: the history is a ring that drops its oldest entries without a mark",
        )
    else:
        count(
            "history_missing",
            1,
            "lost",
            "no history was recorded: blocks at the dump only; call torch.cuda.memory._record_memory_history() "
            "before the part of the run that matters",
        )
        count(
            "pending_left_out",
            int((lives.let_go == BEFORE).sum()),
            "info",
            "blocks that were freed but still used by a stream at the dump; not allocated, so left out",
        )
    if (peak := curve.peak()) is not None:
        allocated, row = peak
        where = f"first reached at {int(curve.ts_ns[row])} ns" if row >= 0 else "before the first entry"
        count("peak_allocated_bytes", allocated, "info", where)
    if device.dump is None:
        count("segments_missing", 1, "lost", "no segments: nothing to check the history against, reserved is unknown")
    else:
        count("allocated_at_dump_bytes", device.dump.allocated_bytes, "info", "memory_allocated at the dump")
        count("reserved_at_dump_bytes", device.dump.reserved_bytes, "info", "memory_reserved at the dump")
        claimed = device.dump.claimed_bytes
        count(
            "dump_contradicts_itself",
            int(claimed not in (None, device.dump.allocated_bytes)),
            "mended",
            f"the segments say that {claimed} bytes are allocated; what their blocks add up to is used",
        )
        count("dump_damaged", device.dump.damaged, "lost", "segments and blocks without a usable address or size")
    count(
        "out_of_memory",
        int((entries.action == OOM).sum()),
        "info",
        "out-of-memory errors; the device had free (bytes): " + ", ".join(map(str, entries.oom_device_free[:8])),
    )
    count("snapshots_taken", int((entries.action == SNAPSHOT).sum()), "info", "marks of earlier snapshots; no rows")
    count("entries_damaged", entries.damaged, "lost", "entries without a usable action, address or size")
    count(
        "entries_unknown",
        sum(number for _, number in entries.unknown),
        "lost",
        "entries with actions that we do not know: " + ", ".join(action for action, _ in entries.unknown[:8]),
    )
    count("entries_retimed", entries.retimed, "mended", "entries without a time or earlier than the one before")
    mends: tuple[tuple[int, Severity, str], ...] = (
        (ADDRESS_REUSED, "mended", "blocks whose free is missing; they end when their address is allocated again"),
        (GONE_AT_DUMP, "lost", "blocks that the history never frees and the dump does not have; they end at the dump"),
        (BORN_UNSEEN, "lost", "blocks born in a gap of the history; they are born at the dump"),
    )
    for code, severity, detail in mends:
        some = lives.mend == code
        what = f"mend_{MENDS[code]}".replace("-", "_")
        count(what, int(some.sum()), severity, detail)
        count(f"{what}_bytes", int(lives.size[some].sum()), severity, "their bytes")
    if curve.reserved is not None:
        count(
            "reserved_negative",
            int((curve.reserved < 0).sum()),
            "lost",
            "rows with less than no reserved bytes: segments were allocated in a gap of the history",
        )
    count("frees_without_alloc", lives.frees_without_alloc, "lost", "frees of blocks whose birth is in a gap; left out")
    count("ends_unseen", lives.ends_unseen, "mended", "blocks without free_completed; they end when next seen")
    count("state_differs", lives.state_differs, "mended", "blocks whose last entry contradicts the dump")
    count(
        "sizes_misjudged",
        device.sizes.misjudged,
        "mended",
        "blocks whose size by the allocator's rules differs from the dump's, which is used; sizes of blocks that "
        "were freed may be off in the same way",
    )
    count(
        "sizes_outside_segments",
        device.sizes.outside,
        "mended",
        "large blocks in no known segment; the size rounded to 512 bytes is used",
    )
    count(
        "sizes_contradicting",
        device.sizes.contradictions,
        "mended",
        "blocks that reach into their neighbour; the size rounded to 512 bytes is used",
    )
    return not len(entries) or bool(older.any()) or device.dump is None or bool((lives.mend > ADDRESS_REUSED).any())
