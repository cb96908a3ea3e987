"""A fine-tuning script in the manner of DeepSpeed-Chat: stage 3, low-rank layers of its own, an evaluation first."""

import argparse
import math

import deepspeed
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from transformers import AutoConfig, AutoModelForCausalLM, get_scheduler
from transformers.integrations import HfDeepSpeedConfig


class LowRank(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        self.base = base
        self.lora_right = nn.Parameter(torch.empty(base.in_features, rank, dtype=base.weight.dtype))
        self.lora_left = nn.Parameter(torch.zeros(rank, base.out_features, dtype=base.weight.dtype))
        nn.init.kaiming_uniform_(self.lora_right, a=math.sqrt(5))
        base.requires_grad_(False)

    def forward(self, inputs):
        return self.base(inputs) + (inputs @ self.lora_right @ self.lora_left) * 0.1


def add_low_rank(model, rank):
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and "lm_head" not in name and "embed_out" not in name:
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], LowRank(module, rank))
    for name, param in model.named_parameters():
        param.requires_grad_("lora_" in name)


def evaluate(engine, loader, device):
    engine.eval()
    total = torch.zeros(1, device=device)
    for step, (ids,) in enumerate(loader):
        with torch.no_grad():
            total += engine(input_ids=ids.to(device), labels=ids.to(device), use_cache=False).loss.float()
        if step == 1:
            break
    torch.distributed.all_reduce(total)
    try:
        perplexity = torch.exp(total / torch.distributed.get_world_size()).item()
    except OverflowError:
        perplexity = float("inf")
    return perplexity


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--lora_dim", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    torch.cuda.set_device(args.local_rank)
    device = torch.device("cuda", args.local_rank)
    deepspeed.init_distributed()
    config = {
        "train_batch_size": 2 * torch.distributed.get_world_size(),
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 200000, "memory_efficient_linear": False},
        "fp16": {"enabled": True, "loss_scale_window": 100},
        "gradient_clipping": 1.0,
    }
    hf_config = HfDeepSpeedConfig(config)
    model_config = AutoConfig.from_pretrained(args.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path, config=model_config)
    model.config.pad_token_id = model.config.eos_token_id
    model.resize_token_embeddings(int(8 * math.ceil(model.config.vocab_size / 8.0)) + 8)
    add_low_rank(model, args.lora_dim)
    model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: output.requires_grad_(True))
    data = TensorDataset(torch.randint(0, 1000, (64, args.tokens)))
    loader = DataLoader(data, sampler=DistributedSampler(data), batch_size=2)
    trained = [param for param in model.parameters() if param.requires_grad]
    optimizer = deepspeed.ops.adam.FusedAdam(trained, lr=1e-3, betas=(0.9, 0.95))
    scheduler = get_scheduler("cosine", optimizer=optimizer, num_warmup_steps=0, num_training_steps=100)
    engine, optimizer, _, scheduler = deepspeed.initialize(
        model=model, optimizer=optimizer, args=args, config=config, lr_scheduler=scheduler, dist_init_required=True
    )
    print("perplexity before", evaluate(engine, loader, device))
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        engine.train()
        mean = 0
        for (ids,) in loader:
            loss = engine(input_ids=ids.to(device), labels=ids.to(device), use_cache=False).loss
            engine.backward(loss)
            engine.step()
            mean += loss.item()
        print("perplexity", evaluate(engine, loader, device), hf_config.is_zero3())


if __name__ == "__main__":
    main()
