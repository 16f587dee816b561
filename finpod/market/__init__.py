"""Market data: reading, cleaning and adjusting prices, and the members of indexes."""
