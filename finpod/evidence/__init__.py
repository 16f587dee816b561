"""Evidence for and against a result: significance, baselines, random portfolios, costs, attribution."""
