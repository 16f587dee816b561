"""Backtests: from a strategy to a result, its text and its files."""
