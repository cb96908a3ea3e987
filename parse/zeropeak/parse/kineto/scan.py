"""One pass over a trace file, or a part of it: its metadata, and packets of what fills tables.

Needs neither numpy nor pyarrow, so that a process which does nothing else is quickly there.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from zeropeak.parse.kineto.events import Events
from zeropeak.parse.kineto.packets import Packets
from zeropeak.parse.kineto.part import DEFAULTS, WHOLE, Limits, Part
from zeropeak.parse.kineto.split import Skip, Splitter
from zeropeak.parse.kineto.unpack import Blocks
from zeropeak.profile.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zeropeak.parse.kineto.packets import Packet

    Begin = Callable[[dict[str, Any]], None]
    Take = Callable[[Packet], None]
    Progress = Callable[[int, int], None]


class Scan(Struct):
    """What a pass learned besides the rows.

    Attributes:
        metadata: the file's values beside its events.
        counts: see ``zeropeak.parse.kineto.COUNTED``.
        pids: processes on the host.
        partial: the file ends before the trace does.
        problem: what is wrong with the compressed stream.
        met: the pass ended where the next part begins; else it went on to the end of the file.
    """

    metadata: dict[str, Any] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    pids: set[int] = field(default_factory=set)
    partial: bool = False
    problem: str | None = None
    met: bool = False


def scan(
    path: Path | str,
    begin: Begin,
    take: Take,
    limits: Limits = DEFAULTS,
    progress: Progress | None = None,
    part: Part = WHOLE,
) -> Scan:
    """Read a trace.

    Args:
        path: the file.
        begin: called once before the first packet with the metadata that times depend on; not for a later part.
        take: called with each packet, rows of a kind in the order of the file.
        limits: what the file may be.
        progress: called with (bytes done, bytes in all) after each read.
        part: what part of the file.

    Raises:
        TraceError: not a trace, empty, or beyond a limit.
    """
    done = Scan()
    done.counts["events"] = 0
    packets = Packets(done.counts, take)
    events = Events(packets, done.counts)
    with closing(Blocks(path, limits, progress)) as blocks:
        splitter = Splitter(blocks, path, events, done.counts, part)
        if splitter.open():
            if not part.begin:
                late = "baseTimeNanoseconds" not in splitter.metadata and not splitter.bare
                # torch 2.3 to 2.7 wrote it after the events
                begin(_all_metadata(path, limits) if late else splitter.metadata)
            splitter.take()
            packets.hand_on(1)
    if splitter.bare and done.counts["events"] and not events.phases:
        raise TraceError(path, "a JSON list of objects without ph or cat: not a torch.profiler trace")
    done.metadata, done.pids, done.problem = splitter.metadata, packets.pids, blocks.problem
    done.partial, done.met = splitter.partial or blocks.problem is not None, splitter.met
    done.counts["stream_trailing_bytes"] += blocks.trailing
    return done


def _all_metadata(path: Path | str, limits: Limits) -> dict[str, Any]:
    """The metadata, by a pass over the whole file that decodes no event."""
    with closing(Blocks(path, limits)) as blocks:
        splitter = Splitter(blocks, path, Skip(), Counter())
        splitter.open()
        splitter.take()
    return splitter.metadata
