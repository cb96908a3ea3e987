"""What a byte of allocated memory can be."""

from __future__ import annotations

from typing import Final

CATEGORIES: Final = {
    "parameter_shards": "this rank's partitions of the parameters (stage 3)",
    "replicated_parameters": "whole parameters that every rank holds (stages 0 to 2)",
    "persistent_parameters": "small parameters that stay gathered (param_persistence_threshold)",
    "gathered_in_use": "full parameters whose module is running or about to run",
    "prefetched_ahead": "full parameters gathered ahead of use and not yet waited for",
    "kept_for_reuse": "full parameters that were used and neither released nor in use (max_reuse_distance)",
    "released_but_alive": "full parameters that ZeRO released but whose storage something else still holds",
    "gather_buffers": "flat buffers that all-gathers write into",
    "gradient_buckets": "buckets in which gradients are collected for reduction",
    "full_gradients": "unpartitioned gradients",
    "gradient_shards": "this rank's partitions of the gradients",
    "optimizer_states": "optimizer state",
    "fp32_masters": "single-precision copies of this rank's parameters",
    "module_buffers": "buffers of the model",
    "inputs": "the batch",
    "activations": "made by a forward pass and kept for its backward",
    "workspace": "temporaries of the running phase",
    "other": "owner known, but none of these; a parameter that zero.Init has made and not partitioned yet",
    "unattributed": "allocated bytes minus all of the above",
}
"""What a byte can be, for peak_composition and mark_composition, in the order in which reports stack them."""
