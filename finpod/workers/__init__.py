"""Executors run pieces of work, such as the training of an agent, in this process or on Ray."""
