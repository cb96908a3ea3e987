"""PYTORCH_ALLOC_CONF: what torch takes is taken, what it refuses is refused, and nothing unknown passes."""

from __future__ import annotations

import pytest

from zeropeak.profile.allocator import Settings, read_conf, read_environment
from zeropeak.profile.errors import UsageError

MIB = 1 << 20


def test_nothing_set_is_torchs_default() -> None:
    assert read_conf("") == read_environment({}) == read_environment({"PYTORCH_ALLOC_CONF": ""}) == Settings()


def test_every_key_that_is_modelled() -> None:
    text = (
        "backend:native, expandable_segments:True, max_split_size_mb:200, max_non_split_rounding_mb:40,"
        "large_segment_size_mb:32, garbage_collection_threshold:0.8, per_process_memory_fraction:0.5,"
        "throw_on_cudamalloc_oom:True, roundup_power2_divisions:4"
    )
    assert read_conf(text) == Settings(
        expandable_segments=True,
        max_split_bytes=200 * MIB,
        divisions=(4,) * 16,
        large_segment_bytes=32 * MIB,
        max_non_split_rounding_bytes=40 * MIB,
        garbage_collection_threshold=0.8,
        memory_fraction=0.5,
        reject_early=True,
    )


def test_the_rounding_of_blocks_that_stay_whole_follows_the_segments() -> None:
    assert read_conf("large_segment_size_mb:64").max_non_split_rounding_bytes == 64 * MIB


def test_keys_about_host_memory_change_nothing() -> None:
    text = "pinned_use_background_threads:True,pinned_max_cached_size_mb:16,release_lock_on_cudamalloc:True"
    assert read_conf(text) == Settings()


@pytest.mark.parametrize(
    ("text", "divisions"),
    [
        ("[256:1,512:2,1024:4,>:8]", (*[1] * 9, 2, 4, *[8] * 5)),
        ("[4:8]", (*[8] * 3, *[0] * 13)),
        ("[64:8,128:2]", (*[8] * 7, 2, *[0] * 8)),
        ("[>:2]", (0, *[2] * 15)),
        ("[1:0]", ()),
        ("[131072:2]", (2,) * 16),
    ],
)
def test_divisions_by_interval(text: str, divisions: tuple[int, ...]) -> None:
    assert read_conf(f"roundup_power2_divisions:{text}").divisions == divisions


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_split_size:200", "unknown key max_split_size; known are backend"),
        ("expandable_segments_reserve:0.5", "unknown key expandable_segments_reserve"),
        ("expandable_segments:true", "expandable_segments must be True or False, not true"),
        ("max_split_size_mb:19", "max_split_size_mb must be a whole number of MiB from 20 on, not 19"),
        ("large_segment_size_mb:10", "large_segment_size_mb must be a whole number of MiB from 11 on, not 10"),
        ("large_segment_size_mb:64,max_split_size_mb:32", "from 64 on, not 32"),
        ("max_split_size_mb:1.5", "a whole number of MiB"),
        ("garbage_collection_threshold:1", "must lie between 0 and 1, not be 1"),
        ("garbage_collection_threshold:x", "must lie between 0 and 1, not be x"),
        ("per_process_memory_fraction:1.5", "must lie between 0 and 1, not be 1.5"),
        ("per_process_memory_fraction:nan", "must lie between 0 and 1, not be nan"),
        ("roundup_power2_divisions:3", "needs powers of two, not 3"),
        ("roundup_power2_divisions:[3:2]", "needs powers of two, not 3"),
        ("roundup_power2_divisions:[256]", "holds '256'; write"),
        ("roundup_power2_divisions:[256:1", "cannot read 'roundup_power2_divisions:[256:1'"),
        ("backend:cudaMallocAsync", "backend cudaMallocAsync has no model here"),
        ("max_split_size_mb", "cannot read 'max_split_size_mb'; write key:value"),
        ("expandable_segments:True max_split_size_mb:200", "cannot read 'expandable_segments:True"),
    ],
)
def test_what_is_refused_says_why(text: str, message: str) -> None:
    with pytest.raises(UsageError, match="PYTORCH_ALLOC_CONF: ") as caught:
        read_conf(text)
    assert message in str(caught.value)


def test_either_variable_counts_but_not_two_that_differ() -> None:
    old = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert read_environment(old).expandable_segments
    assert read_environment({**old, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}).expandable_segments
    with pytest.raises(UsageError, match="PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF are set and differ"):
        read_environment({**old, "PYTORCH_ALLOC_CONF": "max_split_size_mb:200"})
    with pytest.raises(UsageError, match="PYTORCH_CUDA_ALLOC_CONF: unknown key x"):
        read_environment({"PYTORCH_CUDA_ALLOC_CONF": "x:1"})
