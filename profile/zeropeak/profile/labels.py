"""The event vocabulary: the words that the capture, the readers and the reports share.

This module is the only thing (beside :mod:`zeropeak.profile.errors`) that later stages import from the
capture side; it imports nothing but the standard library, so reading a run needs no torch.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

RUN_SCHEMA: Final = 1
"""Version of ``run.json`` and of the raw streams; readers refuse a newer one."""

NVTX_DOMAIN: Final = "zeropeak"
"""NVTX domain of every range we push."""

RECORD_PREFIX: Final = "zeropeak::"
"""Prefix of our ``record_function`` names in a torch.profiler trace."""

RANK_SHIFT: Final = 40
"""``event_id = (rank << RANK_SHIFT) | sequence``: one id space over all ranks of a run."""


class Kind(StrEnum):
    """What an event is. The value is the first word of the range's name."""

    FETCH = "fetch"
    """All-gather launched because the running module needs the parameters now."""
    PREFETCH = "prefetch"
    """All-gather launched ahead of use, for modules that come later in the recorded trace."""
    WAIT = "wait"
    """The compute side waits for a launched gather; the full parameter is usable after it."""
    RELEASE = "release"
    """A module lets go of its parameters (``release_sub_module``)."""
    FREE = "free"
    """A parameter's full storage is dropped (``free_param``). A point in time, not a range."""
    GATHER = "gather"
    """``zero.GatheredParameters`` or an external parameter, outside the coordinator's schedule."""
    REDUCE = "reduce"
    """A gradient bucket is reduced (and, in stage 2 and 3, partitioned)."""
    ALL_GATHER = "all_gather"
    """Stages 1 and 2: updated parameters are gathered after the optimizer step."""
    STEP = "step"
    """The ZeRO optimizer's step at a gradient-accumulation boundary."""
    MODULE = "module"
    """A module's own forward or backward."""
    PHASE = "phase"
    """One of :class:`Phase`."""


class Phase(StrEnum):
    """What the training loop is doing; every moment of a run is in at most one."""

    INIT = "init"
    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"
    EVAL = "eval"
    SAVE = "save"


class Edge(StrEnum):
    """Which end of an event a row of the event log is."""

    BEGIN = "begin"
    END = "end"
    POINT = "point"


class Status(StrEnum):
    """``status`` in ``run.json``."""

    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    OUT_OF_MEMORY = "out_of_memory"


class Basis(StrEnum):
    """``basis`` in ``run.json``: what a run's figures rest on."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    TEXT = "text"


class Stored(StrEnum):
    """What a registered storage holds (column ``category`` of the ``storages`` stream)."""

    PARAM_SHARD = "param_shard"
    PARAM_FULL = "param_full"
    PARAM_PERSISTENT = "param_persistent"
    PARAM_REPLICATED = "param_replicated"
    GATHER_BUFFER = "gather_buffer"
    GRADIENT_BUCKET = "gradient_bucket"
    GRADIENT_FULL = "gradient_full"
    GRADIENT_SHARD = "gradient_shard"
    OPTIMIZER_STATE = "optimizer_state"
    FP32_MASTER = "fp32_master"
    MODULE_BUFFER = "module_buffer"
    INPUT = "input"
    WORKSPACE = "workspace"
    """What a library takes for itself (cuBLAS)."""


ALLOCATIONS_FILE: Final = "allocations.arrows"
"""Every allocation and free of a prediction, beside the streams of its rank."""

TICK_NS: Final = 1_000
"""Step of a prediction's clock, which counts happenings. Tables hold int64 nanoseconds; a thousand of them leave room
between two happenings."""

STREAMS: Final = ("events", "event_params", "params", "modules", "marks", "retained", "storages", "saved")
"""Arrow IPC streams of one rank, at ``raw/rank-<r>/<stream>.arrows``."""


_KINDS: Final = frozenset(kind.value for kind in Kind)


def event_id(rank: int, sequence: int) -> int:
    """Id of the ``sequence``-th event (from 1) of ``rank``; fits a positive int64.

    >>> event_id(3, 7) == (3 << 40) + 7
    True
    """
    if not 0 <= rank < 1 << 22 or not 0 < sequence < 1 << RANK_SHIFT:
        raise ValueError(f"rank {rank} or sequence {sequence} out of range")
    return (rank << RANK_SHIFT) | sequence


def rank_of(event: int) -> int:
    """Rank that recorded an event id.

    >>> rank_of(event_id(3, 7))
    3
    """
    return event >> RANK_SHIFT


def range_name(kind: Kind, target: str) -> str:
    """Stable, readable name of an event's range; never holds an id or a size.

    >>> range_name(Kind.PREFETCH, "layers.3.mlp.dense_h_to_4h")
    'prefetch layers.3.mlp.dense_h_to_4h'
    """
    return f"{kind.value} {target}" if target else kind.value


def parse_range_name(name: str) -> tuple[Kind, str] | None:
    """Inverse of :func:`range_name`; None when ``name`` is not one of ours.

    >>> parse_range_name("free embed_out.weight")
    (<Kind.FREE: 'free'>, 'embed_out.weight')
    >>> parse_range_name("cudaMalloc") is None
    True
    """
    word, _, target = name.partition(" ")
    return (Kind(word), target) if word in _KINDS else None
