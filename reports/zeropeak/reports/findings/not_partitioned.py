"""ZeRO-3 that shares nothing: parameters that every rank holds whole, or that stay gathered while they are in use.

Three ways there: the world had one rank when the parameters were partitioned; every parameter is below the persistence
threshold; or every one is used again within the reuse distance, so that forward lets go of none. The last two are what
a small model does under settings made for a large one, and a peak measured so says nothing of the large one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from zeropeak.reports import setting
from zeropeak.reports.columns import ints
from zeropeak.reports.findings.finding import Evidence, Expected, Finding
from zeropeak.reports.findings.judging import judge, mend, ruled_out, sure, unknown, unpartitioned, unseen
from zeropeak.reports.passes import read_passes
from zeropeak.reports.story import read_story
from zeropeak.reports.units import percent, size

if TYPE_CHECKING:
    from zeropeak.reports.passes import Pass
    from zeropeak.reports.run import Run

ID: Final = "not-partitioned"
TITLE: Final = "Parameters are not really partitioned"
ALONE: Final = "one-rank"
ALONE_AT_INIT: Final = "one-rank-at-zero-init"
PERSISTENT: Final = "all-persistent"
REUSED: Final = "all-within-reuse-distance"
NEARLY_ALL: Final = 0.9
"""Share of the parameters' bytes that counts as all of them: an embedding or a head used once is let go of anyway."""


@dataclass(frozen=True)
class Parameters:
    """Sums over the parameters of a rank, in bytes; ``largest_vector`` is in elements.

    Attributes:
        full: gathered.
        shard: this rank's partitions.
        persistent: full bytes of those that stay gathered.
        whole: full bytes of those whose shard is all of them, on a rank of several.
        largest_vector: elements of the largest parameter of one dimension: norms and biases.
    """

    full: int
    shard: int
    persistent: int
    whole: int
    largest_vector: int


def find(run: Run) -> list[Finding]:
    """One finding a rank, missing ranks included."""
    return judge(run, ID, of_rank)


def of_rank(run: Run, blank: Finding) -> Finding:
    """The finding on one rank, filled in from a blank one."""
    if unsaid := unpartitioned(run, blank):
        return unsaid
    rows = run.arrow("params", blank.rank).to_pylist()
    rows = [row for row in rows if row["full_bytes"] is not None and row["shard_bytes"] is not None]
    if not rows or not sum(row["full_bytes"] for row in rows):
        return unknown(
            blank,
            "The capture does not list the model's parameters.",
            mend(run) or "Capture with `zeropeak nsys` or `zeropeak torch`.",
        )
    sums = _sums(rows)
    world = _world(run, blank.rank)
    if world == 1:
        return replace(
            blank,
            verdict=sure(blank),
            cause=ALONE,
            bytes=0,
            headline=f"The run has one rank, which holds all {size(sums.full)} of the parameters: stage 3 has nobody "
            "to share them with.",
            advice="Run on more ranks, or with --fake to see rank 0 of several; on one rank offload is what saves.",
            evidence=[_param_evidence(blank.rank, sums)],
        )
    if sums.whole >= NEARLY_ALL * sums.full and world:
        return _alone_at_init(run, blank, sums, world)
    if sums.persistent >= NEARLY_ALL * sums.full:
        return _persistent(run, blank, sums)
    return _reused(run, blank, sums)


def _sums(rows: list[dict[str, Any]]) -> Parameters:
    vectors = (row["numel"] or 0 for row in rows if row["shape"] is not None and len(row["shape"]) <= 1)
    return Parameters(
        full=sum(row["full_bytes"] for row in rows),
        shard=sum(row["shard_bytes"] for row in rows),
        persistent=sum(row["full_bytes"] for row in rows if row["persistent"]),
        whole=sum(row["full_bytes"] for row in rows if row["shard_bytes"] >= row["full_bytes"]),
        largest_vector=max(vectors, default=0),
    )


def _world(run: Run, rank: int) -> int | None:
    sizes = run.arrow("ranks", rank, ["world_size"])["world_size"].to_pylist()
    found = run.manifest.get("world_size") or next((size_ for size_ in sizes if size_), None)
    return found if isinstance(found, int) else None


def _alone_at_init(run: Run, blank: Finding, sums: Parameters, world: int) -> Finding:
    less = sums.full - -(-sums.full // world)
    mark = next((m for m in read_story(run, blank.rank).marks if m["mark"] == "init"), None)
    now = mark["allocated_bytes"] if mark else None
    return replace(
        blank,
        verdict=sure(blank),
        bytes=less,
        cause=ALONE_AT_INIT,
        headline=f"Each of the {world} ranks holds all {size(sums.full)} of the parameters as its own partition: they "
        f"were partitioned when the world had one rank. {size(less)} of it belong to others.",
        advice="Call deepspeed.init_distributed() (or torch.distributed.init_process_group) before "
        f"deepspeed.zero.Init builds the model: expect {size(less)} less after init; the weights in use are then "
        "gathered on top of that.",
        expected=[] if now is None else [Expected("init", -1, now, now - less)],
        evidence=[_param_evidence(blank.rank, sums)],
        allocated_bytes=now,
    )


def _persistent(run: Run, blank: Finding, sums: Parameters) -> Finding:
    threshold = setting.knob(run, blank.rank, "param_persistence_threshold")
    key = setting.config_key(run, "param_persistence_threshold")
    of = f" of {threshold:,} elements" if threshold is not None else ""
    return replace(
        blank,
        verdict=sure(blank),
        bytes=sums.persistent,
        cause=PERSISTENT,
        knob=key,
        value=sums.largest_vector,
        headline=f"{_share(sums.persistent, sums)} of the parameters lie below {key.split('.')[1]}{of} and stay "
        "gathered at all times: nothing is partitioned in use.",
        advice=f"Set {key} to {sums.largest_vector} (elements of the largest vector: norms and biases stay gathered) "
        f"to see what partitioning does: up to {size(sums.persistent - sums.shard)} less. For figures of a larger "
        "model, scale the knobs with the model.",
        evidence=[_param_evidence(blank.rank, sums)],
        allocated_bytes=_peak_bytes(run, blank.rank),
    )


def _reused(run: Run, blank: Finding, sums: Parameters) -> Finding:
    """By what the forward of a pass with a recorded order lets go of."""
    if unsaid := unseen(run, blank, ("free",), "Releases"):
        return unsaid
    passes = [one for one in read_passes(run, blank.rank) if one.whole]
    settled = next((one for one in passes[1:] if one.prefetches), passes[2] if len(passes) > 2 else None)
    if settled is None:
        return unknown(
            blank,
            f"Of {size(sums.full)} of parameters {size(sums.persistent)} are persistent; whether the rest stays "
            "gathered for reuse shows from the second step on, which the capture does not hold.",
            mend(run) or "Capture three steps.",
        )
    freed = _freed_bytes(run, blank.rank, settled)
    kept = max(sums.full - sums.persistent - freed, 0)
    evidence = [_param_evidence(blank.rank, sums), _free_evidence(blank.rank, settled, freed)]
    if sums.persistent + kept < NEARLY_ALL * sums.full:
        return ruled_out(
            blank,
            f"The forward of {settled.name} lets go of {size(freed)} of {size(sums.full)} of parameters; "
            f"{size(sums.persistent)} are persistent.",
            sums.persistent + kept,
            evidence,
        )
    key = setting.config_key(run, "max_reuse_distance")
    distance = setting.knob(run, blank.rank, "max_reuse_distance")
    of = f" ({distance:,} elements)" if distance is not None else ""
    expected = _without_reuse(run, blank.rank, settled)
    saved = f": expect {_less(expected)} after the forward" if expected else ""
    return replace(
        blank,
        verdict=sure(blank),
        bytes=sums.persistent + kept,
        step=settled.step,
        cause=REUSED,
        knob=key,
        value=0,
        headline=f"The forward of {settled.name} lets go of {size(freed)} of {size(sums.full)} of parameters: all "
        f"others are used again within {key.split('.')[1]}{of}, or persistent ({size(sums.persistent)}). So at its end "
        "every rank holds the whole model.",
        advice=f"Set {key} to 0{saved}. For figures of a larger model, scale the knobs with the model instead.",
        expected=expected,
        evidence=evidence,
        allocated_bytes=_peak_bytes(run, blank.rank),
    )


def _freed_bytes(run: Run, rank: int, one: Pass) -> int:
    """Full bytes of the parameters that the forward of a pass lets go of, each once."""
    events = run.arrow("zero_events", rank, ["event_id", "kind", "step", "micro_step", "phase"])
    chosen = pc.and_(pc.equal(events["kind"], "free"), pc.equal(events["phase"], "forward"))
    chosen = pc.and_(chosen, pc.equal(events["step"], one.step))
    chosen = pc.and_(chosen, pc.equal(pc.fill_null(events["micro_step"], 0), one.micro_step))
    ids = events.filter(chosen)["event_id"]
    moved = run.arrow("zero_event_params", rank, ["event_id", "param_id"])
    params = pc.unique(moved.filter(pc.is_in(moved["event_id"], value_set=ids.combine_chunks()))["param_id"])
    listed = run.arrow("params", rank, ["param_id", "full_bytes", "persistent"])
    mine = pc.and_(
        pc.is_in(listed["param_id"], value_set=pa.array(params)), pc.invert(pc.fill_null(listed["persistent"], False))
    )
    return int(ints(listed.filter(mine), "full_bytes", 0).sum())


def _without_reuse(run: Run, rank: int, one: Pass) -> list[Expected]:
    """The mark after the forward without what is kept for reuse; nothing where released weights stay alive anyway."""
    marks = [m for m in read_story(run, rank).marks if m["mark"] == "forward"]
    if any(m["released_alive_bytes"] is None or m["released_alive_bytes"] for m in marks):
        return []
    here = next((m for m in marks if (m["step"], m["micro_step"] or 0) == (one.step, one.micro_step)), None)
    if here is None or here["allocated_bytes"] is None:
        return []
    rows = run.arrow("mark_composition", rank, ["ts_ns", "category", "size_bytes"]).to_pylist()
    kept = sum(r["size_bytes"] for r in rows if r["ts_ns"] == here["ts_ns"] and r["category"] == "kept_for_reuse")
    now = here["allocated_bytes"]
    return [Expected("forward", one.step, now, now - kept)] if kept else []


def _less(expected: list[Expected]) -> str:
    one = expected[0]
    return f"{size(one.now_bytes - one.then_bytes)} less ({size(one.now_bytes)} to {size(one.then_bytes)})"


def _share(part: int, sums: Parameters) -> str:
    return f"{size(part)} ({percent(part, sums.full)}) of {size(sums.full)}"


def _peak_bytes(run: Run, rank: int) -> int | None:
    peak = read_story(run, rank).peak
    return peak.highest_bytes if peak else None


def _param_evidence(rank: int, sums: Parameters) -> Evidence:
    row = {
        "rank": rank,
        "full_bytes": sums.full,
        "shard_bytes": sums.shard,
        "persistent_bytes": sums.persistent,
        "unpartitioned_bytes": sums.whole,
    }
    return Evidence("params", {"rank": rank}, [row], "sums over all parameters")


def _free_evidence(rank: int, one: Pass, freed: int) -> Evidence:
    where = {"rank": rank, "kind": "free", "phase": "forward", "step": one.step, "micro_step": one.micro_step}
    return Evidence("zero_events", where, [{"rank": rank, "freed_bytes": freed}], "parameters let go of, each once")
