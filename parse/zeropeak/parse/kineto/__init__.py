"""Reader of torch.profiler traces: one module a step, from bytes to rows."""
