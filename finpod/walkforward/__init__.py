"""Walk-forward: train on past data, trade the next window with the same account, and repeat."""
