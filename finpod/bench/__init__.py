"""Benchmarks: speed of this machine next to other packages, quality of learning, and error rates of verdicts."""
