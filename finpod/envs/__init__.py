"""Environments: thousands of accounts in one market, stepped together."""
