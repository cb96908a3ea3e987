"""Predicting a run: one rank of it on fake tensors and a fake process group, with no GPU and no weights."""
