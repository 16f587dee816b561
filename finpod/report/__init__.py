"""Self-contained HTML reports of backtests, comparisons and trainings: no script, no network, every figure as text."""
