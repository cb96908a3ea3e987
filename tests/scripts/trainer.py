"""Hugging Face's Trainer with a DeepSpeed config, as most people train: a folder with a config, padded batches."""

import argparse

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


class Texts(torch.utils.data.Dataset):
    def __init__(self, tokens):
        self.tokens = tokens

    def __len__(self):
        return 32

    def __getitem__(self, place):
        ids = [(place * 7 + token) % 500 for token in range(self.tokens + place % 16)]
        return {"input_ids": ids, "labels": ids}


def collate(rows):
    length = max(len(row["input_ids"]) for row in rows)
    padded = [row["input_ids"] + [0] * (length - len(row["input_ids"])) for row in rows]
    masks = [[1] * len(row["input_ids"]) + [0] * (length - len(row["input_ids"])) for row in rows]
    ids, mask = torch.tensor(padded), torch.tensor(masks)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--deepspeed", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--tokens", type=int, default=48)
    args = parser.parse_args()
    settings = TrainingArguments(
        output_dir=args.out, deepspeed=args.deepspeed, bf16=True, per_device_train_batch_size=2,
        gradient_accumulation_steps=2, max_steps=20, logging_steps=1, report_to=[], gradient_checkpointing=True,
        dataloader_num_workers=1,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(args.model, attn_implementation="sdpa")
    Trainer(model=model, args=settings, train_dataset=Texts(args.tokens), data_collator=collate).train()


if __name__ == "__main__":
    main()
