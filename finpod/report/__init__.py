"""HTML pages about backtests, comparisons and trainings, without scripts or network. Every figure is also text."""
