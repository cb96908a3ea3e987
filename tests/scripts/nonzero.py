"""A script that cannot be predicted: the batch's true length is read from the GPU."""

import deepspeed
import torch

CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
inputs = torch.randn(4, 8, device=engine.device)
kept = inputs[inputs.sum(1) > 0]
engine.backward(engine(kept.bfloat16()).float().mean())
engine.step()
