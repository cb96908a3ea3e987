"""A script that cannot be predicted: how it goes on depends on a value."""

import deepspeed
import torch

CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
loss = engine(torch.randn(4, 8, device=engine.device).bfloat16()).float().mean()
if loss > 0.5:
    engine.backward(loss)
engine.step()
