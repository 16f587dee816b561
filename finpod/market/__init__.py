"""Prices: where they come from, what they mean, and what a trade does with them."""
