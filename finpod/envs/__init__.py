"""Environments: accounts in a market, or worlds of a locomotion task. Thousands are stepped together."""
