"""Benchmarks: speed of finpod on this machine, and of vectorbt and Gymnasium if they are installed."""
