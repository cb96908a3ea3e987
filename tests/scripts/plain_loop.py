"""A training loop as DeepSpeed's documentation shows it: what `zeropeak predict stage3 --lora none` trains, by hand."""

import argparse
import json
from pathlib import Path

import deepspeed
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM


class Tokens(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, place):
        return torch.arange(place, place + 64) % 1000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=0)
    parser.add_argument("--config", required=True)
    args = parser.parse_args()
    config = json.loads(Path(args.config).read_text())
    deepspeed.init_distributed("nccl")
    torch.cuda.set_device(args.local_rank)
    device = torch.device("cuda", args.local_rank)
    shape = GPTNeoXConfig(
        hidden_size=256, num_hidden_layers=8, num_attention_heads=8, intermediate_size=1024, vocab_size=1024,
        max_position_embeddings=2048, rotary_pct=0.25,
    )  # fmt: skip
    shape._attn_implementation = "eager"
    torch.set_default_dtype(torch.float16)
    with device, deepspeed.zero.Init(config_dict_or_path=config, dtype=torch.float16):
        model = GPTNeoXForCausalLM(shape)
    torch.set_default_dtype(torch.float32)
    trained = [param for param in model.parameters() if param.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.train()
    total = 0.0
    for epoch in range(2):
        for number, ids in enumerate(DataLoader(Tokens(), batch_size=1, num_workers=2, pin_memory=True, shuffle=True)):
            ids = ids.to(device)
            output = engine(input_ids=ids, labels=ids, use_cache=False)
            engine.backward(output.loss)
            engine.step()
            total += output.loss.item()
            if torch.distributed.get_rank() == 0:
                print(f"epoch {epoch} step {number}: loss {output.loss:.3f}, {torch.cuda.memory_allocated()} bytes")
            del output, ids


if __name__ == "__main__":
    main()
