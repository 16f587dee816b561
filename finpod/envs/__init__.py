"""Environments: accounts in a market or worlds of a locomotion task, thousands stepped together."""
