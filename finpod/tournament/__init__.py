"""Many agents, ranked on validation, kept as an ensemble."""
