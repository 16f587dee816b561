"""Executors: run pieces of work in this process or on Ray, through one interface."""
