"""Features of a market, which agents and strategies observe."""
