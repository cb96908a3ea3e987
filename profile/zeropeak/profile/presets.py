"""GPT-NeoX at Pythia's shapes, and local Hugging Face models, by their sizes alone.

Shapes are those of the published Pythia configs (EleutherAI, arXiv 2304.01373, table 1); ``tiny`` is ours.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from zeropeak.profile.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Shape:
    """Sizes of a causal language model.

    Attributes:
        source: the preset's name or the folder.
        intermediate: inner size of a layer's MLP; None where the model's config leaves it to its class.
    """

    source: str
    layers: int
    hidden: int
    heads: int
    vocab: int
    intermediate: int | None = None

    @property
    def parameters(self) -> int:
        """Parameters of GPT-NeoX at this shape: 12 h^2 + 13 h a layer, two embeddings, a final norm."""
        h = self.hidden
        return self.layers * (12 * h * h + 13 * h) + 2 * self.vocab * h + 2 * h

    def bytes_needed(self, seq: int, micro_batch: int) -> int:
        """Rough bytes of one rank in half precision with everything gathered, for choosing a preset.

        Weights once, a third on top for shards, states and buckets, and the activations that a transformer keeps for
        backward with eager attention, s b h L (34 + 5 a s / h) (Korthikanti et al., arXiv 2205.05198, eq. 2). A quarter
        on top for what the caching allocator holds besides: 36.1 GiB for the seed's case, 35.4 measured on an H200.
        """
        per_token = 34 + 5 * self.heads * seq / self.hidden
        activations = seq * micro_batch * self.hidden * self.layers * per_token
        return int(1.25 * (2 * self.parameters * 1.33 + activations))

    def describe(self) -> dict[str, object]:
        """For the manifest."""
        return {**asdict(self), "parameters": self.parameters}


PRESETS: Final = {
    shape.source: shape
    for shape in (
        Shape("tiny", layers=8, hidden=256, heads=8, vocab=1024, intermediate=1024),
        Shape("70m", layers=6, hidden=512, heads=8, vocab=50304, intermediate=2048),
        Shape("410m", layers=24, hidden=1024, heads=16, vocab=50304, intermediate=4096),
        Shape("1.4b", layers=24, hidden=2048, heads=16, vocab=50304, intermediate=8192),
        Shape("6.9b", layers=32, hidden=4096, heads=32, vocab=50432, intermediate=16384),
    )
}
SEED: Final = PRESETS["6.9b"]
"""The model of the shipped configs' knobs."""


def read_shape(model: str) -> Shape:
    """Shape of a preset's name, a Hugging Face folder or a config.json.

    Raises:
        UsageError: no such preset or file, or the config does not say its sizes.
    """
    if model in PRESETS:
        return PRESETS[model]
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise UsageError(f"--model {model}: neither one of {', '.join(PRESETS)} nor a folder with a config.json")
    try:
        config = json.loads(path.read_text())
    except json.JSONDecodeError as problem:
        raise UsageError(f"{path}:{problem.lineno}:{problem.colno}: not JSON: {problem.msg}") from None
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"{path}: no usable JSON: {problem}") from None
    if not isinstance(config, dict):
        raise UsageError(f"{path}: a model's config is a JSON object, this is a {type(config).__name__}")
    shape = shape_of(config)
    for name, spellings in _SIZES.items():
        if name not in shape and name != "intermediate":
            raise UsageError(f"{path}: says none of {', '.join(spellings)}; is it a causal language model's config?")
    return Shape(model, **shape)


_SIZES: Final = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "intermediate": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff"),
}
"""What model configs call the sizes."""


def shape_of(config: Mapping[str, Any]) -> dict[str, int]:
    """Sizes that a Hugging Face config says, by our names; those that it does not say are left out."""
    # A model of several parts (text and images, say) describes its language model in a section.
    inner = config.get("text_config")
    sections = [config, *([inner] if isinstance(inner, dict) else [])]
    found = {
        name: next((one[key] for one in sections for key in spellings if isinstance(one.get(key), int)), None)
        for name, spellings in _SIZES.items()
    }
    return {name: value for name, value in found.items() if value is not None}


def choose(free_bytes: int, ranks_per_gpu: int, seq: int, micro_batch: int) -> Shape:
    """Largest preset that fits ``ranks_per_gpu`` ranks into ``free_bytes`` of one GPU with a tenth to spare."""
    fitting = [
        shape for shape in PRESETS.values() if shape.bytes_needed(seq, micro_batch) * ranks_per_gpu < 0.9 * free_bytes
    ]
    return fitting[-1] if fitting else PRESETS["tiny"]
