"""``from_pretrained`` without weights: transformers' models are built from their config alone."""

from __future__ import annotations

import copy
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from zeropeak.profile.errors import ZeropeakError
from zeropeak.profile.simulate.answers import where_own
from zeropeak.profile.simulate.device import TYPE
from zeropeak.profile.simulate.patches import Patch

if TYPE_CHECKING:
    from zeropeak.profile.simulate.readings import Readings

_FOR_THE_CONFIG: Final = (
    "cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder", "trust_remote_code",
    "use_auth_token", "resume_download", "proxies", "code_revision", "_from_auto", "_commit_hash", "adapter_kwargs",
)  # fmt: skip
"""Arguments that say where a config is; the model itself takes none of them."""

_ABOUT_WEIGHTS: Final = (
    "state_dict", "from_tf", "from_flax", "ignore_mismatched_sizes", "output_loading_info", "low_cpu_mem_usage",
    "offload_folder", "offload_state_dict", "offload_buffers", "max_memory", "use_safetensors", "weights_only",
    "variant", "gguf_file", "tp_plan", "tp_size", "key_mapping", "generation_config", "_fast_init",
)  # fmt: skip
"""Arguments that say how weights are read; none are."""

_RESIZED: Final = (
    "_init_added_embeddings_weights_with_mean",
    "_init_added_lm_head_weights_with_mean",
    "_init_added_lm_head_bias_with_mean",
)


def pretrained_patches(readings: Readings) -> list[Patch]:
    """Patches of transformers; none where it is not installed."""
    if find_spec("transformers") is None:
        return []
    owner: Any = import_module("transformers.modeling_utils").PreTrainedModel

    def from_pretrained(cls: type[Any], name: Any, /, *args: Any, config: Any = None, **kwargs: Any) -> Any:
        readings.tell(where_own(), "loads a model: no weights are read, and memory while they are is not predicted")
        return _build(cls, name, args, config, kwargs)

    return [
        Patch(owner, "from_pretrained", classmethod(from_pretrained), "a prediction reads no weights, only the config"),
        *(
            Patch(owner, method, lambda *_, **__: None, "new rows of an embedding get values, of which there are none")
            for method in _RESIZED
            if hasattr(owner, method)
        ),
    ]


def _build(cls: Any, name: Any, args: tuple[Any, ...], config: Any, kwargs: dict[str, Any]) -> Any:
    from transformers import PretrainedConfig
    from transformers import __version__ as version

    if isinstance(config, PretrainedConfig):
        config = copy.deepcopy(config)
    else:
        places = {key: kwargs[key] for key in _FOR_THE_CONFIG if key in kwargs}
        others = {key: value for key, value in kwargs.items() if key not in _FOR_THE_CONFIG and key not in _NOT_CONFIG}
        config, unused = cls.config_class.from_pretrained(
            name if config is None else config, return_unused_kwargs=True, **places, **others
        )
        kwargs = {**{key: kwargs[key] for key in _NOT_CONFIG if key in kwargs}, **unused}
    for key in (*_FOR_THE_CONFIG, *_ABOUT_WEIGHTS):
        kwargs.pop(key, None)
    if kwargs.pop("quantization_config", None) is not None or getattr(config, "quantization_config", None) is not None:
        raise ZeropeakError(
            f"{where_own()}: quantized weights are made by kernels that need data; predict without them"
        )
    placed = kwargs.pop("device_map", None)
    dtype = kwargs.pop("dtype", None) or kwargs.pop("torch_dtype", None)
    kwargs.pop("torch_dtype", None)
    if dtype is None:
        # transformers 5 takes what the config says; before, single precision.
        dtype = "auto" if int(version.partition(".")[0]) >= 5 else "float32"
    if dtype == "auto":
        dtype = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or "float32"
    model = cls._from_config(config, *args, torch_dtype=_dtype(dtype), **kwargs)
    if placed is not None:
        model.to(TYPE)
    model.eval()
    return model


_NOT_CONFIG: Final = (
    "dtype", "torch_dtype", "device_map", "quantization_config", "attn_implementation", "experts_implementation",
    *_ABOUT_WEIGHTS,
)  # fmt: skip


def _dtype(dtype: Any) -> Any:
    import torch

    return getattr(torch, dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype
