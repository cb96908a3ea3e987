"""``PYTORCH_ALLOC_CONF`` as the allocator reads it.

Source: ``c10/core/AllocatorConfig.cpp`` and ``c10/cuda/CUDAAllocatorConfig.cpp`` of torch 2.13.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from zeropeak.profile.allocator.settings import (
    DIVISIONS_INTERVALS,
    LARGE_SEGMENT_BYTES,
    MIB,
    OWN_SEGMENT_BYTES,
    Settings,
)
from zeropeak.profile.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLES: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The variable's name, and its name before torch 2.9."""

ELSEWHERE: Final = frozenset(
    {
        "graph_capture_record_stream_reuse",
        "pinned_free_catch_all",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
    }
)
"""Keys of torch that change nothing on the device: pinned host memory, locks, CUDA graphs."""

MODELLED: Final = (
    "backend",
    "expandable_segments",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "per_process_memory_fraction",
    "roundup_power2_divisions",
    "throw_on_cudamalloc_oom",
)

_PAIR: Final = re.compile(r"([^,:\[\]]+):(\[[^\[\]]*\]|[^,:\[\]]+)(,|$)")


def read_environment(environment: Mapping[str, str]) -> Settings:
    """Settings from the environment of a training process.

    Raises:
        UsageError: a value that ``read_conf`` refuses, or both variables are set and differ: torch would take some keys
            from one and some from the other.
    """
    found = {name: environment[name] for name in VARIABLES if environment.get(name)}
    if len(set(found.values())) > 1:
        raise UsageError(f"{' and '.join(found)} are set and differ; unset one of them")
    return next((read_conf(text, name) for name, text in found.items()), Settings())


def read_conf(text: str, name: str = VARIABLES[0]) -> Settings:
    """Settings from the variable's text, ``key:value,key:value``.

    Args:
        text: as in the environment; empty gives the defaults.
        name: where it comes from, for messages.

    Raises:
        UsageError: a key that torch or this model does not know, by name; a value that torch refuses; a backend other
            than ``native``.

    >>> read_conf("max_split_size_mb:200,roundup_power2_divisions:[256:1,512:2,>:4]").divisions[8:11]
    (1, 2, 4)
    """
    pairs = _pairs("".join(text.split()), name)
    unknown = sorted(set(pairs) - set(MODELLED) - ELSEWHERE)
    if unknown:
        raise UsageError(f"{name}: unknown key {', '.join(unknown)}; known are {', '.join(MODELLED)}")
    if pairs.get("backend", "native") != "native":
        raise UsageError(f"{name}: backend {pairs['backend']} has no model here; only native has")
    large = _mebibytes(pairs, "large_segment_size_mb", OWN_SEGMENT_BYTES + MIB, name) or LARGE_SEGMENT_BYTES
    return Settings(
        expandable_segments=_flag(pairs, "expandable_segments", name),
        max_split_bytes=_mebibytes(pairs, "max_split_size_mb", large, name),
        divisions=_divisions(pairs.get("roundup_power2_divisions"), name),
        large_segment_bytes=large,
        max_non_split_rounding_bytes=_mebibytes(pairs, "max_non_split_rounding_mb", large, name) or large,
        garbage_collection_threshold=_share(pairs, "garbage_collection_threshold", 0.0, name),
        memory_fraction=_share(pairs, "per_process_memory_fraction", 1.0, name),
        reject_early=_flag(pairs, "throw_on_cudamalloc_oom", name),
    )


def _pairs(text: str, name: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    at = 0
    while at < len(text):
        found = _PAIR.match(text, at)
        if found is None:
            raise UsageError(f"{name}: cannot read {text[at:]!r}; write key:value,key:value")
        pairs[found[1]] = found[2]
        at = found.end()
    return pairs


def _flag(pairs: dict[str, str], key: str, name: str) -> bool:
    value = pairs.get(key, "False")
    if value not in ("True", "False"):
        raise UsageError(f"{name}: {key} must be True or False, not {value}")
    return value == "True"


def _mebibytes(pairs: dict[str, str], key: str, least_bytes: int, name: str) -> int | None:
    value = pairs.get(key)
    if value is None:
        return None
    if not value.isdecimal() or int(value) * MIB < least_bytes:
        raise UsageError(f"{name}: {key} must be a whole number of MiB from {least_bytes // MIB} on, not {value}")
    return int(value) * MIB


def _share(pairs: dict[str, str], key: str, default: float, name: str) -> float:
    value = pairs.get(key)
    if value is None:
        return default
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1 or (key == "garbage_collection_threshold" and share in (0, 1)):
        raise UsageError(f"{name}: {key} must lie between 0 and 1, not be {value}")
    return share


def _divisions(value: str | None, name: str) -> tuple[int, ...]:
    """One for each interval: a single number, or ``[MiB:number,...,>:number]``; the first also counts below it."""
    if value is None:
        return ()
    found = [0] * DIVISIONS_INTERVALS
    if not value.startswith("["):
        return (_power(value, name),) * DIVISIONS_INTERVALS
    last, first = 0, True
    for item in value[1:-1].split(","):
        start, colon, parts = item.partition(":")
        if not colon:
            raise UsageError(f"{name}: roundup_power2_divisions holds {item!r}; write [MiB:divisions,...]")
        number = 0 if parts == "0" else _power(parts, name)
        if start == ">":
            found[last + 1 :] = [number] * (DIVISIONS_INTERVALS - last - 1)
            continue
        last = min(_power(start, name).bit_length() - 1, DIVISIONS_INTERVALS - 1)
        if first:
            found[:last] = [number] * last
            first = False
        found[last] = number
    return tuple(found) if any(found) else ()


def _power(value: str, name: str) -> int:
    number = int(value) if value.isdecimal() else 0
    if number <= 0 or number & (number - 1):
        raise UsageError(f"{name}: roundup_power2_divisions needs powers of two, not {value}")
    return number
