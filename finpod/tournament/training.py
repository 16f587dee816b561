"""`train`: a tournament of agents in rounds, in this process.

Every agent trains a slice, is validated and submitted; then the weaker half is replaced by varied copies of the stronger,
at equal experience. The best few, chosen on validation days alone, become the ensemble.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch

import finpod
from finpod.atomic import require_free
from finpod.devices import pick_device
from finpod.envs.market import TradingConfig
from finpod.errors import InputError
from finpod.market.data import DateLike, MarketData
from finpod.market.features import Features
from finpod.market.ledger import Costs
from finpod.rl.ppo import BOUNDS, PPOConfig
from finpod.rl.snapshot import Snapshot
from finpod.tournament.ensemble import MANIFEST, Ensemble
from finpod.tournament.leaderboard import Entry, Leaderboard
from finpod.tournament.pod import Arena, Settings, train_slice, validate, without_accounts

STEPS = 600_000
"""Environment steps an agent trains for, if not told otherwise."""
PERTURB = (0.8, 1.25)
"""Factors by which a setting of a varied copy moves."""

Progress = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Size of a tournament."""

    agents: int = 4
    """Agents trained side by side."""
    rounds: int = 2
    """Slices of training, each followed by a validation."""
    keep: int = 3
    """Agents kept in the ensemble."""
    steps: int = STEPS
    """Environment steps of an agent over all rounds, its ancestors' included."""
    seed: int = 0
    """The one seed that all randomness comes from."""

    def __post_init__(self) -> None:
        for name in ("agents", "rounds", "keep", "steps"):
            _require_count(name, getattr(self, name))
        if self.seed < 0:
            raise InputError(f"seed is {self.seed}; it must be 0 or more")


@dataclass(frozen=True, kw_only=True)
class _Contender:
    """An agent between two slices."""

    settings: Settings
    parent_id: str | None = None
    snapshot: Snapshot | None = None


def train(
    task: str = "stocks",
    *,
    market: MarketData,
    train: tuple[DateLike, DateLike],
    validation: tuple[DateLike, DateLike],
    out: str | Path,
    learner: str = "ppo",
    features: Features = None,
    costs: Costs | None = None,
    agents: int = 4,
    steps: int | None = None,
    seed: int = 0,
    seeds: int = 1,
    rounds: int = 2,
    keep: int = 3,
    hold: int = 5,
    action: str = "tilt",
    fill: str | None = None,
    device: str = "auto",
    threads: int = 1,
    overwrite: bool = False,
    progress: Progress | None = None,
    config: PPOConfig | None = None,
    **settings: Any,
) -> Ensemble:
    """Train agents on the days of `train`, choose the best on those of `validation`, and save them as an ensemble.

    `steps` are environment steps an agent, one step being a decision held for `hold` sessions; they are rounded to whole
    rollouts, at least one a round. With `seeds` > 1 the whole
    tournament is run that many times, from seed, seed + 1, ...; the ensemble holds the chosen of all, and a backtest
    shows each run beside it. `config` sets the learner of the first agent, further keywords the fields of
    `TradingConfig`. No row after the validation window is read. Raises InputError for windows that overlap or lie
    outside the data, unknown settings, or an `out` that exists (unless `overwrite`). `progress` is called with what is
    being done and the share that is done.
    """
    _require_count("seeds", seeds)
    _require_count("threads", threads)
    steps = STEPS if steps is None else steps
    plans = [Plan(agents=agents, rounds=rounds, keep=keep, steps=steps, seed=seed + s) for s in range(seeds)]
    if task != "stocks":
        raise InputError(f"unknown task {task!r}; train knows stocks")
    if learner != "ppo":
        raise InputError(f"unknown learner {learner!r}; train knows ppo")
    require_free(Path(out), overwrite, MANIFEST)
    trading = trading_of(hold=hold, action=action, costs=costs or Costs(), **settings)
    arena = make_arena(market, train, validation, trading, fill, features, str(pick_device(device)), threads)
    say = progress or (lambda doing, share: None)
    runs = []
    for s, plan in enumerate(plans):
        board = tournament(arena, plan, config or PPOConfig(), _part(say, plan, s, seeds))
        runs.append((plan, board, board.best(plan.keep)))
    ensemble = Ensemble(
        [entry.snapshot for _, _, chosen in runs for entry in chosen],
        runs=[plan.seed for plan, _, chosen in runs for _ in chosen],
        name=Path(out).resolve().name,
        trials=sum(len(board.log) for _, board, _ in runs),
        provenance=_provenance(arena, runs),
        log=[entry.summary() | {"returns": entry.returns.tolist()} for _, board, _ in runs for entry in board.log],
        own_features=[f for f in _listed(features) if callable(f)],
    )
    ensemble.save(Path(out), overwrite=overwrite)
    return ensemble


def _part(progress: Progress, plan: Plan, s: int, seeds: int) -> Progress:
    """The progress of one of several tournaments as a part of the whole."""
    prefix = f"seed {plan.seed}, " if seeds > 1 else ""
    return lambda doing, share: progress(prefix + doing, (s + share) / seeds)


def trading_of(**settings: Any) -> TradingConfig:
    """The task with finpod's defaults for training. Raises InputError for an unknown setting."""
    unknown = [name for name in settings if name not in TradingConfig.__dataclass_fields__]
    if unknown:
        raise InputError(
            f"unknown setting {unknown[0]!r}; the task has {', '.join(TradingConfig.__dataclass_fields__)}"
        )
    envs = settings.get("num_envs", 512)
    cash = settings.get("cash", TradingConfig.cash) if settings.get("reward") == "value" else 1.0
    defaults: dict[str, Any] = {
        "num_envs": envs,
        "start_groups": math.gcd(envs, 32) if isinstance(envs, Integral) else None,
        "reward_scale": 100.0 / cash if cash > 0 else 1.0,  # rewards in percent, whichever way they are counted
    }
    return TradingConfig(**{**defaults, **settings})


def make_arena(
    market: MarketData,
    train: tuple[DateLike, DateLike],
    validation: tuple[DateLike, DateLike],
    trading: TradingConfig,
    fill: str | None,
    features: Features,
    device: str,
    threads: int,
) -> Arena:
    """Windows as rows, data cut behind the validation window. Raises InputError for windows that overlap or are too short."""
    train_rows, validation_rows = market.window(*train), market.window(*validation)
    if validation_rows[0] <= train_rows[1]:
        raise InputError(
            f"validation starts on {market.dates[validation_rows[0]]!s:.10}, before training ends on "
            f"{market.dates[train_rows[1]]!s:.10}; let it start later"
        )
    for name, (first, last) in (("training", train_rows), ("validation", validation_rows)):
        if last - first < trading.hold:
            raise InputError(
                f"the {name} window has {last - first} sessions to trade, fewer than hold = {trading.hold}; take a longer "
                "window or a shorter hold"
            )
    known = market.rows(0, validation_rows[1] + 1)
    # which names leave the exchange later, and when, is not known yet, and must not change even the hash of the data
    known = replace(known, last_bar=np.minimum(known.last_bar, known.dates[-1]))
    seen = np.any(known.member & known.has_bar, axis=0)  # before training too: they are part of the market's return
    names = [known.tickers[column] for column in np.flatnonzero(seen)]
    if not names:
        raise InputError("no name is both a member and priced up to the end of validation")
    return Arena(
        market=known.select(names),
        trading=trading,
        fill=fill,
        features=features,
        train=train_rows,
        validation=validation_rows,
        device=device,
        threads=threads,
    )


def tournament(arena: Arena, plan: Plan, config: PPOConfig, progress: Progress) -> Leaderboard:
    """Rounds of slices, validations and replacements; the same seed gives the same board."""
    random = np.random.default_rng(plan.seed)
    board, made = Leaderboard(), 0

    def settings_of(config: PPOConfig) -> Settings:
        nonlocal made
        made += 1
        seed = int(np.random.SeedSequence([plan.seed, made]).generate_state(1)[0])
        return Settings(agent_id=f"{plan.seed}-{made - 1}", seed=seed, config=config)

    field = [_Contender(settings=settings_of(config if i == 0 else vary(config, random))) for i in range(plan.agents)]
    progress("features", 0.0)
    _ = arena.panel
    update = arena.trading.num_envs * config.num_steps
    updates = max(round(plan.steps / update), plan.rounds)  # every slice learns, or its trial would be a copy
    total = updates * update
    for generation in range(plan.rounds):
        until = math.ceil(updates * (generation + 1) / plan.rounds) * update
        for i, contender in enumerate(field):
            done = (generation * plan.agents + i) / (plan.rounds * plan.agents)
            progress(f"round {generation + 1} of {plan.rounds}, agent {i + 1} of {plan.agents}", done)
            snapshot = train_slice(arena, contender.settings, contender.snapshot, until, total)
            field[i] = replace(contender, snapshot=snapshot)
            board.submit(_entry(arena, field[i], generation, len(board.log)))
        if generation < plan.rounds - 1:
            field = succession(field, board.log[-plan.agents :], board, random, settings_of)
    progress("choosing", 1.0)
    return board


def succession(
    field: list[_Contender],
    latest: list[Entry],
    board: Leaderboard,
    random: np.random.Generator,
    settings_of: Callable[[PPOConfig], Settings],
) -> list[_Contender]:
    """The stronger half goes on; each of the weaker becomes a varied copy of one of the stronger (PBT, Jaderberg 2017)."""
    ranked = [next(c for c in field if c.settings.agent_id == entry.agent_id) for entry in board.ranked(latest)]
    strong = ranked[: math.ceil(len(ranked) / 2)]
    copies = []
    for parent, _ in zip(strong, ranked[len(strong) :], strict=False):
        child = replace(settings_of(vary(parent.settings.config, random)), hidden=parent.settings.hidden)
        assert parent.snapshot is not None
        copies.append(
            _Contender(settings=child, parent_id=parent.settings.agent_id, snapshot=without_accounts(parent.snapshot))
        )
    return strong + copies


def vary(config: PPOConfig, random: np.random.Generator) -> PPOConfig:
    """Every setting that has bounds, moved by one of the factors and kept within them; gamma by its horizon.

    A setting that the user put beyond a bound moves that bound.
    """
    changes: dict[str, Any] = {}
    for name, (low, high) in BOUNDS.items():
        value = getattr(config, name)
        factor = float(random.choice(PERTURB))
        moved = 1 - (1 - value) * factor if name in ("gamma", "gae_lambda") else value * factor
        changes[name] = min(max(moved, min(low, value)), max(high, value))
    return replace(config, **changes)


def _entry(arena: Arena, contender: _Contender, generation: int, trial: int) -> Entry:
    assert contender.snapshot is not None
    found, returns = validate(arena, contender.snapshot)
    return Entry(
        trial=trial,
        agent_id=contender.settings.agent_id,
        parent_id=contender.parent_id,
        generation=generation,
        seed=contender.settings.seed,
        score=float(found.sharpe),
        metrics=asdict(found),
        returns=returns,
        config=asdict(contender.settings.config),
        snapshot=without_accounts(contender.snapshot),
    )


def _provenance(arena: Arena, runs: list[tuple[Plan, Leaderboard, list[Entry]]]) -> dict[str, Any]:
    """What the ensemble says of itself; no clock times, so that two runs are identical."""
    task, plan = arena.task_spec(), runs[0][0]
    return {
        "task": "stocks",
        "learner": "ppo",
        "device": arena.device,
        "threads": arena.threads,
        "seeds": [plan.seed for plan, _, _ in runs],
        "plan": {name: getattr(plan, name) for name in ("agents", "rounds", "keep", "steps")},
        "score": "Sharpe ratio on the validation window, net of costs",
        **{name: task[name] for name in ("features", "left_out", "trading", "fill", "training_data_hash")},
        "members": [_line(entry) for _, _, chosen in runs for entry in chosen],
        "board": [_line(entry) for _, board, _ in runs for entry in board.ranked()],
        "versions": {
            "finpod": finpod.__version__,
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def _line(entry: Entry) -> dict[str, Any]:
    return {
        "agent": entry.agent_id,
        "parent": entry.parent_id or "-",
        "generation": entry.generation,
        "score": entry.score,
        "steps": entry.snapshot.steps,
        "seed": entry.seed,
        **{name: entry.config[name] for name in BOUNDS},
    }


def _listed(features: Features) -> list[Any]:
    return [] if features is None else [features] if isinstance(features, str) or callable(features) else list(features)


def _require_count(name: str, value: int) -> None:
    if not (isinstance(value, Integral) and value >= 1):
        raise InputError(f"{name} is {value!r}; it must be a whole number from 1 on")
