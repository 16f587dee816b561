"""Tournaments: many agents are trained and ranked on validation, and the best are kept."""
