"""The capture side: workload, hooks, event log, Nsight Systems."""
