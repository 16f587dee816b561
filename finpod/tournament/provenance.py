"""What an ensemble says of how it was made; no clock times, so that two runs are identical."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import torch

import finpod
from finpod.rl.ppo import BOUNDS
from finpod.tasks import Arena
from finpod.tournament.leaderboard import Entry, Leaderboard
from finpod.tournament.setup import Plan

TASK = ("features", "left_out", "dropped", "undefined", "trading", "fill", "training_data_hash")
"""Entries of the task that an ensemble shows."""


def provenance(arena: Arena, runs: list[tuple[Plan, Leaderboard, list[Entry]]], device: str) -> dict[str, Any]:
    """Task, plan, members and the whole board of each run as plain values; `device` is that of the pods."""
    task, plan = arena.task_spec(), runs[0][0]
    return {
        "task": "stocks",
        "learner": "ppo",
        "device": device,
        "threads": arena.threads,
        "seeds": [plan.seed for plan, _, _ in runs],
        "plan": {
            name: getattr(plan, name) for name in ("agents", "rounds", "keep", "steps", "mode", "choice", "alike")
        },
        "score": "Sharpe ratio on the validation window, net of costs",
        **{name: task[name] for name in TASK},
        "members": [_line(entry) for _, _, chosen in runs for entry in chosen],
        "board": [_line(entry) for _, board, _ in runs for entry in board.ranked()],
        "failed": sum(
            entry.stored is None and entry.trial not in board.unread for _, board, _ in runs for entry in board.log
        ),
        "unread": [
            {"agent": entry.agent_id, "generation": entry.generation, "reason": board.unread[entry.trial]}
            for _, board, _ in runs
            for entry in board.log
            if entry.trial in board.unread
        ],
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of what the figures depend on."""
    return {
        "finpod": finpod.__version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _line(entry: Entry) -> dict[str, Any]:
    own = entry.settings
    return {
        "agent": entry.agent_id,
        "parent": entry.parent_id or "-",
        "generation": entry.generation,
        "score": entry.score,
        "steps": entry.steps,
        "seed": own.seed,
        **{name: getattr(own.config, name) for name in BOUNDS},
        "hidden": own.hidden,
        "inputs": "all" if own.features is None else len(own.features),
        "reward": own.reward or "as asked",
        "cost_factor": own.cost_factor,
    }
