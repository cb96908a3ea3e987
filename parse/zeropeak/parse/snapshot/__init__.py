"""Reader of torch.cuda.memory snapshots: one module a step, from the pickle to lifetimes and curve."""
