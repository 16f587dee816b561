"""Locomotion: six tasks, defined as in Gymnasium's v5 environments, on MuJoCo's thread pool or on a GPU."""

NAMES = ("hopper", "halfcheetah", "walker2d", "swimmer", "ant", "humanoid")
"""Names of the tasks."""
