"""Accelerate with its DeepSpeed plugin: stage 2, accumulation, a scheduler, losses gathered over ranks, no train()."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, get_cosine_schedule_with_warmup


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, default=40)
    args = parser.parse_args()
    plugin = DeepSpeedPlugin(zero_stage=2, gradient_accumulation_steps=2)
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2, deepspeed_plugin=plugin)
    model = AutoModelForCausalLM.from_pretrained(args.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rows = []
    for _ in range(64):
        ids = torch.randint(0, 1000, (args.tokens,))
        rows.append({"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)})
    loader = DataLoader(rows, batch_size=2, shuffle=True)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 1, 10)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for number, batch in enumerate(loader):
        with accelerator.accumulate(model):
            output = model(**batch)
            accelerator.backward(output.loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        loss = accelerator.gather(output.loss.detach().repeat(2)).mean().item()
        accelerator.print(number, loss)


if __name__ == "__main__":
    main()
