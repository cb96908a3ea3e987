"""What nothing explains at the peaks, and what would explain it; and how well activations are told."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.parse.conservation import MOST_UNATTRIBUTED
from zeropeak.reports import composition
from zeropeak.reports.given import of_files
from zeropeak.reports.selection import SAMPLED, shown_ranks
from zeropeak.reports.story import UNATTRIBUTED
from zeropeak.reports.units import percent, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeropeak.reports.run import Run

_EARLIER = "from before the recorded history: record from the start of the process"
_OUTSIDE = "born outside every phase that the log knows: let the capture see the whole training loop"
_STAYED = "made in a {phase} and never given back, like the workspaces that libraries keep"


def sentences(run: Run) -> Iterator[str]:
    """One sentence for ranks of whose peak more than a hundredth is unattributed, with what would explain it."""
    ranks: defaultdict[str, list[int]] = defaultdict(list)
    most: dict[str, tuple[int, int]] = {}
    for one in composition.at_peaks(run):
        left, total = one.parts.get(UNATTRIBUTED, 0), one.total_bytes
        if left <= MOST_UNATTRIBUTED * total:
            continue
        why = _why(run, one.rank)
        ranks[why].append(one.rank)
        most[why] = max(most.get(why, (0, 0)), (left, total))
    for why, members in ranks.items():
        left, total = most[why]
        yield (
            f"{percent(left, total)} of the peak of {shown_ranks(members)} is unattributed ({size(left)} of "
            f"{size(total)}): {why}."
        )


def _why(run: Run, rank: int) -> str:
    """Where the unattributed bytes of a rank's peak come from, the largest part first."""
    if of_files(run):
        return "no file says what a block holds; `zeropeak nsys` and `zeropeak torch` register it"
    facts = run.arrow("ranks", rank, ["memory_source"]).to_pylist()
    if facts and facts[0]["memory_source"] == SAMPLED:
        return (
            "the memory curve is counters, so of what is not registered (activations, workspace) no block is known; "
            "`zeropeak torch` records every allocation"
        )
    rows = run.arrow("peak_blocks", rank, ["scope", "category", "block_id", "size_bytes"])
    rows = rows.filter(pc.and_(pc.equal(rows["scope"], "run"), pc.equal(rows["category"], UNATTRIBUTED)))
    blocks = run.arrow("memory_blocks", rank, ["block_id", "born_ns", "born_phase"])
    blocks = blocks.filter(pc.is_in(blocks["block_id"], value_set=rows["block_id"].combine_chunks()))
    born = {row["block_id"]: row for row in blocks.to_pylist()}
    sums: defaultdict[str, int] = defaultdict(int)
    for block_id, size_bytes in zip(rows["block_id"].to_pylist(), rows["size_bytes"].to_pylist(), strict=True):
        block = born.get(block_id)
        if block is None or block["born_ns"] is None:
            sums[_EARLIER] += size_bytes
        elif block["born_phase"] is None:
            sums[_OUTSIDE] += size_bytes
        else:
            sums[_STAYED.format(phase=block["born_phase"])] += size_bytes
    if not run.arrow("params", rank, ["param_id"]).num_rows:
        sums["in files that name no parameter: `zeropeak torch` registers them"] = 0
    told = sorted(sums.items(), key=lambda part: -part[1])
    return "; ".join(f"{size(bytes_)} {why}" if bytes_ else why for why, bytes_ in told) or "no table says more"


def activations_checked(run: Run) -> str | None:
    """How activations, told by lifetimes, agree with what autograd had saved in one step; None when nobody looked."""
    saved = run.arrow("saved_tensors", columns=["rank", "step", "storage_id", "size_bytes", "block_id", "category"])
    saved = saved.filter(pc.is_null(saved["storage_id"]))
    if not saved.num_rows:
        return None
    known = pc.fill_null(pc.equal(saved["category"], "activations"), False)
    found = pc.sum(saved.filter(known)["size_bytes"]).as_py() or 0
    missed = pc.sum(saved.filter(pc.invert(known))["size_bytes"]).as_py() or 0
    step = pc.min(saved["step"]).as_py()
    blocks = run.arrow("mark_blocks", columns=["rank", "step", "micro_step", "mark", "category", "size_bytes"])
    here = pc.and_(pc.equal(blocks["step"], step), pc.equal(blocks["mark"], "forward"))
    here = pc.and_(here, pc.is_in(blocks["rank"], value_set=pa.array(pc.unique(saved["rank"]).to_pylist())))
    total = pc.sum(blocks.filter(pc.and_(here, pc.equal(blocks["category"], "activations")))["size_bytes"]).as_py() or 0
    skipped = sum(int(run.rank_facts(rank).get("holder_saves_skipped") or 0) for rank in run.rank_ids)
    hooked = f"; {skipped:,} saves with hooks (checkpointing) were not looked at" if skipped else ""
    return (
        f"Activations after the forward of step {step}, told by lifetimes: {percent(found, total)} of their bytes are "
        f"in tensors that autograd had saved, and {percent(found, found + missed)} of what it had saved beside "
        f"parameters is in them{hooked}."
    )
