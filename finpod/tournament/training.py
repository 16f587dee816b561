"""`train`: a tournament of agents, the best of which, chosen on validation days alone, become an ensemble.

Every agent trains a slice, is validated and submitted to the board; the weaker give way to varied copies of the stronger,
at equal experience. Where the slices run, in this process or on Ray, changes nothing in what comes out.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from finpod.decisions import decisions_of
from finpod.devices import pick_device
from finpod.ensemble import MANIFEST, Ensemble
from finpod.errors import FinpodError, InputError
from finpod.files import require_free
from finpod.market.data import DateLike, MarketData
from finpod.market.features import Features, Panel, name_of
from finpod.market.ledger import Costs
from finpod.market.tape import build_tape
from finpod.measures import Array, metrics
from finpod.rl.ppo import PPOConfig
from finpod.simulation import Terms, Window, simulate
from finpod.storage import Store, open_store
from finpod.tasks import Arena, from_share, make_arena, share, trading_of
from finpod.tournament.driver import Status, Tournament, Watch
from finpod.tournament.journal import Journal
from finpod.tournament.leaderboard import Entry, Leaderboard
from finpod.tournament.pod import run_slice
from finpod.tournament.provenance import provenance
from finpod.tournament.recorded import run_entry
from finpod.tournament.resume import header, held, open_journal, require_place, unfinished
from finpod.tournament.search import Generator, Search
from finpod.tournament.setup import STEPS, Plan, Stop, require_count
from finpod.workers.engine import Engine, InlineEngine

Progress = Callable[[str, float], None]
SPARSE = 0.25
"""Share of training rows without a value from which a feature is named."""


@dataclass(frozen=True, kw_only=True)
class Pods:
    """Where pods run."""

    ray: bool = False
    """On Ray; otherwise one after the other in this process."""
    count: int | str = "auto"
    """Pods at a time; 'auto' follows the cluster as it grows and shrinks."""
    cpus: float = 1.0
    """CPUs of a pod."""
    gpus: float = 0.0
    """GPUs of a pod, on Ray alone; a fraction puts several on one."""
    timeout: float = 3600.0
    """Seconds after which a slice counts as lost."""
    address: str | None = None
    """Of a running Ray cluster; None starts one on this machine."""

    def __post_init__(self) -> None:
        if self.gpus and not self.ray:
            raise InputError(
                f"pods.gpus is {self.gpus:g}, and pods with GPUs need Ray; pass ray=True, or leave it out",
                argument="pods.gpus",
            )


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
    plan: Plan | None = None,
    pods: Pods | None = None,
    resume: bool = False,
    fork: str | Path | None = None,
    storage: str | None = None,
    watch: Watch | None = None,
    asked: Mapping[str, Any] = MappingProxyType({}),
    **settings: Any,
) -> Ensemble:
    """Train agents on the days of `train`, choose the best on those of `validation`, and save them as an ensemble.

    `steps` are environment steps an agent, one step being a decision held for `hold` sessions; they are rounded to whole
    rollouts, at least one a round. With `seeds` > 1 the whole
    tournament is run that many times, from seed, seed + 1, ...; the ensemble holds the chosen of all, and a backtest
    shows each run beside it. `config` sets the learner of the first agent, further keywords the fields of
    `TradingConfig`; a `plan` gives what else there is to say of the tournament (its mode, how it searches, when it stops),
    and `pods` where it runs. No row after the validation window is read.

    While it runs, its log and checkpoints lie in `OUT.unfinished`, or at the URL `storage`. `resume` continues from there
    under the same settings, and `fork` from a copy of another unfinished run under changed ones. The log records all
    settings, the arguments of `load_market` and the plain values `asked`, so that the next driver needs the name alone.
    `progress` is called with what is being done and the share that is done, `watch` with the whole state.

    Raises InputError for windows that overlap or lie outside the data, unknown settings, an `out` that exists (unless
    `overwrite`), and a run that is unfinished, is being driven by another process or was begun with other settings.
    """
    require_count("seeds", seeds)
    require_count("threads", threads)
    steps = STEPS if steps is None else steps
    first = replace(plan or Plan(), agents=agents, rounds=rounds, keep=keep, steps=steps, seed=seed)
    if task != "stocks":
        raise InputError(f"unknown task {task!r}; train knows stocks")
    if learner != "ppo":
        raise InputError(f"unknown learner {learner!r}; train knows ppo")
    target = Path(out)
    require_free(target, overwrite, MANIFEST)
    trading = trading_of(hold=hold, action=action, costs=costs or Costs(), **settings)
    where = pods or Pods()
    here = "cpu" if where.gpus else str(pick_device(device))  # a driver without a GPU may have pods with one
    arena = make_arena(market, train, validation, trading, fill, features, here, threads)
    say = progress or (lambda doing, share: None)
    plans = [replace(first, seed=seed + s) for s in range(seeds)]
    every, device = [plan.seed for plan in plans], "cuda" if where.gpus else here
    require_place(target, storage, resume=resume, fork=fork, overwrite=overwrite)
    say("features", 0.0)
    remarks = feature_remarks(arena.panel)
    if arena.panel.dropped and progress is None and watch is None:
        warnings.warn(remarks[0], stacklevel=2)
    with (
        closing(open_engine(arena, where)) as engine,  # whatever can fail has, before an earlier run is cleared away
        unfinished(target, storage, resume=resume, fork=fork, overwrite=overwrite, seeds=every) as place,
    ):
        run = run_entry(target, storage, every, device=device, market=market.origin, asked=asked, **_by_name(features))
        runs = _run_all(arena, plans, config or PPOConfig(), engine, place, say, watch, fork is not None, remarks, run)
        ensemble = _ensemble(arena, runs, target, features, device)
        ensemble.provenance = {
            **ensemble.provenance,
            "validation_scores": validation_scores(arena, runs, ensemble),
        }
        logs = {f"log-{plan.seed}.jsonl": held(place, plan.seed) for plan, _, _ in runs}
        ensemble.save(target, overwrite=overwrite, beside=logs)
    return ensemble


Run = tuple[Plan, Leaderboard, list[Entry]]


def _run_all(
    arena: Arena,
    plans: list[Plan],
    config: PPOConfig,
    engine: Engine,
    place: Store,
    say: Progress,
    watch: Watch | None,
    forked: bool,
    said_first: Sequence[str],
    run: Mapping[str, Any],
) -> list[Run]:
    """One tournament a seed, one after the other on the same engine; watchers of the first are told `said_first`."""
    base, runs = equal_weight_returns(arena), []
    for s, plan in enumerate(plans):
        store = open_store(f"{place.where}/seed-{plan.seed}")
        told = _part(say, plan, s, len(plans))
        remarks = [] if s else [*said_first]
        journal = open_journal(store, header(arena, plan, config), remarks.append, forked, run)
        driver = tournament(arena, plan, config, told, store, journal, engine, watch, remarks)
        runs.append((plan, driver.board, driver.choose(base)))
    engine.close()  # nothing more runs on it, and a Ray that ends takes its driver along
    return runs


def tournament(
    arena: Arena,
    plan: Plan,
    config: PPOConfig,
    progress: Progress,
    store: Store,
    journal: Journal,
    engine: Engine,
    watch: Watch | None = None,
    remarks: Sequence[str] = (),
) -> Tournament:
    """One tournament, from where its log stands to its end; the same seed gives the same board.

    `remarks` are what was found amiss in the log, for those who watch. Raises FinpodError if no agent came to its end.
    """
    generator = Generator(seed=plan.seed, config=config, features=arena.panel.names, search=plan.search)
    update = arena.trading.num_envs * config.num_steps

    def look(status: Status) -> None:
        done = len(status.board.log)
        if status.remark and watch is None:
            progress(status.remark, done / plan.most_trials)
        if status.running:
            job, _ = next(iter(status.running.values()))
            progress(_doing(job.generation, job.trial, plan), min(done / plan.most_trials, 1.0))
        if watch is not None:
            watch(status)

    driver = Tournament(plan, generator, store, journal, engine, update=update, watch=look)
    driver.status.remark = "; ".join(filter(None, [*remarks, driver.status.remark]))
    board = driver.run()
    if board.log and all(entry.stored is None for entry in board.log):
        raise FinpodError(f"every agent failed, the last of them thus: {journal.last_failure}")
    if not board.log:
        raise InputError(
            f"no trial began: the rule to stop after {driver.stopped(0)} came before the first; "
            "raise stop.seconds, or leave it out",
            argument="stop.seconds",
        )
    progress("choosing", 1.0)
    return driver


def _by_name(features: Features) -> dict[str, Any]:
    """`features` by name, and those of them that are functions."""
    if features is None or isinstance(features, str):
        return {"features": features, "functions": []}
    many = [features] if callable(features) else list(features)
    return {"features": [name_of(one) for one in many], "functions": [name_of(one) for one in many if callable(one)]}


def feature_remarks(panel: Panel) -> list[str]:
    """Return a sentence that names the features dropped, and one that names those undefined on more than a quarter of the
    training rows; none if there are no such features."""
    remarks = []
    if panel.dropped:
        remarks.append(f"features dropped, undefined on most training rows: {_shares(panel.dropped)}")
    if sparse := {name: share for name, share in panel.undefined.items() if share > SPARSE}:
        remarks.append(f"features undefined on many training rows, where they count as average: {_shares(sparse)}")
    return remarks


def _shares(undefined: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.1%}" for name, share in undefined.items())


def _doing(generation: int, trial: int, plan: Plan) -> str:
    if plan.mode == "async":
        return f"trial {trial + 1} of {plan.most_trials}, level {generation + 1}"
    return f"round {generation + 1} of {plan.rounds}, agent {trial % plan.agents + 1} of {plan.agents}"


def open_engine(arena: Arena, pods: Pods) -> Engine:
    """This process, or Ray. Raises InputError where there is no Ray, or no room for a pod."""
    if not pods.ray:
        return InlineEngine(run_slice, arena)
    from finpod.workers.ray_engine import RayEngine

    return RayEngine(
        run_slice,
        share(arena),
        pods=pods.count,
        cpus=pods.cpus,
        gpus=pods.gpus,
        timeout=pods.timeout,
        address=pods.address,
        restore=partial(from_share, device="cuda" if pods.gpus else arena.device),
    )


def equal_weight_returns(arena: Arena) -> Array:
    """[n] validation returns of the equal weight, at the task's costs: what active returns are measured against."""
    from finpod.backtester import equal_weight_equity

    trading, (first, last) = arena.trading, arena.validation
    terms = Terms(costs=trading.costs, fill=arena.fill, cash=trading.cash, delisting_return=trading.delisting_return)
    equity = equal_weight_equity(arena.market, arena.market.dates[first], arena.market.dates[last], terms).to_numpy()
    return equity[1:] / equity[:-1] - 1


def _ensemble(arena: Arena, runs: list[Run], out: Path, features: Features, device: str) -> Ensemble:
    """The chosen of all runs."""
    given: list[Any] = []
    if features is not None:
        given = [features] if isinstance(features, str) or callable(features) else list(features)
    return Ensemble(
        [entry.checkpoint for _, _, chosen in runs for entry in chosen],
        runs=[plan.seed for plan, _, chosen in runs for _ in chosen],
        name=out.resolve().name,
        trials=sum(len(board.log) for _, board, _ in runs),
        provenance=provenance(arena, runs, device),
        log=[entry.summary() | {"returns": entry.returns.tolist()} for _, board, _ in runs for entry in board.log],
        own_features=[feature for feature in given if callable(feature)],
        choice=runs[0][0].choice,
        scores=[entry.score for _, _, chosen in runs for entry in chosen],
    )


def validation_scores(arena: Arena, runs: list[Run], ensemble: Ensemble) -> dict[str, float]:
    """Sharpe ratios on the validation window: of the ensemble, of its best member, of the best of the first round."""
    trading, first = arena.trading, [e.score for _, board, _ in runs for e in board.log if e.generation == 0]
    begin, end = arena.validation
    window = Window(market=arena.market, tape=build_tape(arena.market, arena.fill), first=begin, last=end)
    terms = Terms(
        costs=trading.costs,
        fill=arena.fill,
        cash=trading.cash,
        whole_shares=trading.whole_shares,
        delisting_return=trading.delisting_return,
    )
    path = simulate(window.tape, begin, end, decisions_of(ensemble, ensemble.name, window), terms)
    found = metrics(path.equity.numpy(), periods_per_year=arena.market.periods_per_year)
    return {
        "ensemble": found.sharpe,
        "best member": max(entry.score for _, _, chosen in runs for entry in chosen),
        "best of the first round": max((score for score in first if not math.isnan(score)), default=math.nan),
    }


def _part(progress: Progress, plan: Plan, s: int, seeds: int) -> Progress:
    """The progress of one of several tournaments as a part of the whole."""
    prefix = f"seed {plan.seed}, " if seeds > 1 else ""
    return lambda doing, share: progress(prefix + doing, (s + share) / seeds)


__all__ = ["STEPS", "Plan", "Pods", "Search", "Stop", "make_arena", "tournament", "trading_of", "train"]
