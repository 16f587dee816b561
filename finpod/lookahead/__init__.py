"""Audits of whether a strategy, or a feature, uses data that could not be known on the day."""
