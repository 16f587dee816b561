"""Benchmarks: speed on this machine, quality of trained agents, and error rates of the verdict on skill."""
