"""How fast this machine is, beside other packages where they are installed."""
