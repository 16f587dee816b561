"""Walk-forward: train on what was known, trade the next window, move on; one account all the way."""
