"""Locomotion: six tasks with the definitions of Gymnasium v5, on MuJoCo's thread pool or on a GPU."""

NAMES = ("hopper", "halfcheetah", "walker2d", "swimmer", "ant", "humanoid")
"""Names of the tasks."""
