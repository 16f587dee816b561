"""Features: what agents and strategies observe of a market."""
