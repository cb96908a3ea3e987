"""A network of one's own, without transformers: ZeRO stage 2, a GPU by index, a scheduler, gradient accumulation."""

import sys

import deepspeed
import torch
from torch import nn

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
    "gradient_clipping": 1.0,
}


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(500, 128)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(128, 4, 256, batch_first=True) for _ in range(3))
        self.head = nn.Linear(128, 500)

    def forward(self, ids, mask=None):
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=mask)
        return self.head(hidden)


def main():
    torch.manual_seed(0)
    model = Network().cuda(0)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    steps = int(sys.argv[1])
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps * 2):
        lengths = torch.randint(5, 33, (4,), generator=generator)
        ids = torch.zeros(4, int(lengths.max()), dtype=torch.long)
        for row, length in enumerate(lengths.tolist()):
            ids[row, :length] = torch.randint(0, 500, (length,))
        mask = (ids == 0).to(engine.device)
        ids = ids.to(engine.device)
        loss = nn.functional.cross_entropy(engine(ids, mask).flatten(0, 1).float(), ids.flatten())
        if torch.isnan(loss):
            raise RuntimeError("the loss is not finite")
        engine.backward(loss)
        engine.step()
    torch.save(model.state_dict(), "never_written.pt")


if __name__ == "__main__":
    main()
