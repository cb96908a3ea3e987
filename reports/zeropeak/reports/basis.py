"""Whether a run was measured or predicted, and what is said about a predicted one: everywhere, and about its GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from zeropeak.profile.labels import Basis
from zeropeak.reports.story import read_story
from zeropeak.reports.units import percent, size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zeropeak.reports.findings import Finding
    from zeropeak.reports.run import Run

PREDICTED: Final = "Predicted: "
"""Begins every title over figures that nobody measured."""

_TURN: Final = {
    "activations": "gradient checkpointing (--gradient-checkpointing), or a shorter --seq",
    "replicated_parameters": "zero_optimization.stage 3, which partitions the parameters",
    "full_gradients": "zero_optimization.stage 2 or 3, which partition the gradients",
    "parameter_shards": "more ranks, or zero_optimization.offload_param.device cpu",
    "optimizer_states": "zero_optimization.offload_optimizer.device cpu, or more ranks",
    "fp32_masters": "zero_optimization.offload_optimizer.device cpu, or more ranks",
    "gradient_shards": "more ranks",
    "gradient_buckets": "zero_optimization.reduce_bucket_size",
    "gather_buffers": "zero_optimization.stage3_prefetch_bucket_size",
    "kept_for_reuse": "zero_optimization.stage3_max_reuse_distance",
    "prefetched_ahead": "zero_optimization.stage3_prefetch_bucket_size",
    "persistent_parameters": "zero_optimization.stage3_param_persistence_threshold",
    "released_but_alive": "zero_optimization.memory_efficient_linear true",
}
"""What makes each category smaller, for a run that does not fit."""


def simulated(run: Run) -> bool:
    """Whether the run's figures are predicted."""
    return run.basis is Basis.SIMULATED


def what_it_is(run: Run) -> str:
    """What a prediction is, in two sentences."""
    world = run.manifest.get("world_size")
    return (
        f"Nothing here was measured: rank 0 of {world} ran on tensors without data, and every figure is predicted. "
        "Its time is the order of what happened, counted in ticks, not seconds."
    )


def limits(run: Run) -> list[str]:
    """What a prediction assumes and leaves out, a sentence each."""
    about: dict[str, Any] = run.manifest.get("simulation") or {}
    said = [str(text) for text in about.get("assumptions") or []]
    for inside, what in (
        (True, "Counted as workspace by measured constants"),
        (False, "Outside PyTorch's allocator and in no figure here, by measured constants"),
    ):
        parts = [f"{one['name']} {size(one['size_bytes'])} ({one.get('measured')})" for one in _constants(run, inside)]
        if parts:
            said.append(f"{what}: {'; '.join(parts)}.")
    left_out = [one for one in about.get("constants") or [] if isinstance(one, dict) and one.get("size_bytes") is None]
    if left_out:  # by a zeropeak that had not measured them
        said.append(f"Not counted, since not measured: {', '.join(str(one.get('name')) for one in left_out)}.")
    return said


def _constants(run: Run, inside: bool) -> list[dict[str, Any]]:
    """Constants with a size that are part of PyTorch's memory, or that are not."""
    about: dict[str, Any] = run.manifest.get("simulation") or {}
    return [
        one
        for one in about.get("constants") or []
        if isinstance(one, dict) and isinstance(one.get("size_bytes"), int) and bool(one.get("inside")) is inside
    ]


def fits(run: Run, worst: int, findings: Iterable[Finding]) -> str | None:
    """Whether the predicted peak fits the GPU that the user named, by how much, and what to turn first."""
    memory = run.manifest.get("gpu_memory_bytes")
    story = read_story(run, worst)
    if not isinstance(memory, int) or story.peak is None:
        return None
    peak = story.peak.highest_bytes
    marks = [mark["reserved_bytes"] for mark in story.marks if mark["reserved_bytes"] is not None]
    reserved = max([peak, *marks, story.peak.reserved_bytes or 0])
    outside = _constants(run, False)
    beside = sum(one["size_bytes"] for one in outside)
    names = " and ".join(f"{size(one['size_bytes'])} {one['name']}" for one in outside)
    rest = f", with {names} (as on an H200)," if outside else ", before the CUDA context and NCCL,"
    what = f"the predicted peak of {size(peak)} allocated, {size(reserved)} reserved{rest}"
    turn = _first_turn(run, worst, findings, memory - beside)
    if peak + beside > memory:
        return f"Does not fit {size(memory)}: {what} is {size(peak + beside - memory)} too much. Turn first: {turn}"
    if reserved + beside > memory:
        return (
            f"May fit {size(memory)}: {what} is {size(reserved + beside - memory)} too much where all that is reserved "
            "is kept; the allocator then frees its cache and retries, and fragments may leave no room. "
            f"Turn first: {_against_fragments(run)}{turn}"
        )
    left = memory - reserved - beside
    return f"Fits {size(memory)}: {what} leaves {size(left)} ({percent(left, memory)}). To use less: {turn}"


def _against_fragments(run: Run) -> str:
    if (run.manifest.get("simulation") or {}).get("expandable_segments"):
        return ""
    return "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, also here, to see what is reserved then; and "


def _first_turn(run: Run, worst: int, findings: Iterable[Finding], memory: int) -> str:
    """The finding's knob that makes the peak fit ``memory``, else the one that saves most; else the largest part's."""
    turns: list[tuple[bool, int, str]] = []
    for finding in findings:
        for point in finding.expected:
            if finding.knob and point.at == "peak" and finding.rank == worst:
                value = "" if finding.value is None else f" {str(finding.value).lower()}"
                text = f"{finding.knob}{value}: expect a peak of {size(point.then_bytes)}."
                turns.append((point.then_bytes <= memory, point.now_bytes - point.then_bytes, text))
    if turns:
        return max(turns)[2]
    for part in read_story(run, worst).composition:
        if part.category in _TURN:
            what = f"{size(part.size_bytes)} {part.category.replace('_', ' ')} at the peak"
            turns.append((False, part.size_bytes, f"{_TURN[part.category]} ({what})."))
    return max(turns, default=(False, 0, "not known."))[2]
