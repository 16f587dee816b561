"""HTML pages about backtests, comparisons and trainings, without scripts or network. Each chart has a description."""
