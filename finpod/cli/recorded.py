"""Options of `finpod train` that the log of an unfinished run decides, for --resume and --fork."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finpod.cli import options
from finpod.errors import InputError

if TYPE_CHECKING:
    from finpod.tournament.recorded import Recorded

OF_PLAN = ("agents", "rounds", "keep", "steps", "seed", "mode", "choice", "alike", "checkpoint_steps")
"""Options that are fields of the plan."""
OF_COSTS = ("fee_bps", "slippage_bps", "impact")
"""Options that are fields of the costs."""
OF_TRADING = ("hold", "action", "anchor", "max_weight", "max_turnover")
"""Options that are fields of the trading terms."""
OF_MARKET = ("path", "members", "benchmark", "calendar", "periods_per_year", "ticker_column", "renames", "extra")
"""Arguments of `load_market` that have an option of their own."""
OF_PLACE = ("out", "storage", "tensorboard")
"""Options that a fork does not take over, because it lies elsewhere."""


def recorded_options(recorded: Recorded, typed: Collection[str], *, fork: bool) -> dict[str, Any]:
    """Values of all options that the run has recorded and that are not among those `typed`.

    Raises InputError for what a log cannot hold and nobody has typed: a market from memory, feature functions, files that
    no longer exist.
    """
    if recorded.functions and "features" not in typed:
        raise InputError(
            f"{recorded.where} uses the feature function {recorded.functions[0]}, which a log cannot hold; go on from Python "
            "with finpod.train(..., features=[...], resume=True)"
        )
    plan, stop = recorded.plan, recorded.plan.stop
    values = {
        **_of_task(recorded),
        "learner": recorded.learner,
        "envs": recorded.num_envs,
        **{name: getattr(plan, name) for name in OF_PLAN},
        "seeds": recorded.seeds,
        "fresh": plan.search.fresh,
        **{f"stop_{rule}": getattr(stop, rule) for rule in ("trials", "steps", "score")},
        "stop_minutes": None if stop.seconds is None else stop.seconds / 60,
        "patience": stop.patience,
        "out": None if recorded.out is None else Path(recorded.out),
        "storage": recorded.storage,
        "tensorboard": Path(text) if (text := recorded.asked.get("tensorboard")) else None,
    }
    kept = {name: value for name, value in values.items() if name not in typed and not (fork and name in OF_PLACE)}
    return kept | (_market(recorded, typed) if "trading" in recorded.task else {})


def _of_task(recorded: Recorded) -> dict[str, Any]:
    """Options of the task. Raises InputError for a task that was an object in memory."""
    task, features = recorded.task, recorded.features
    if "variant" in task:
        return {name: task[name] for name in ("task", "variant")}
    if "trading" not in task:
        if "task" not in recorded.asked:
            raise InputError(
                f"{recorded.where} trains the task {task.get('task')}, an object that a log cannot hold; go on from Python "
                "with finpod.train(task, ..., resume=True)"
            )
        return {"task": recorded.asked["task"]}
    return {
        "train": ":".join(task["windows"]["train"]),
        "validation": ":".join(task["windows"]["validation"]),
        "features": "default" if features is None else features if isinstance(features, str) else ",".join(features),
        **{name: task["trading"]["costs"][name] for name in OF_COSTS},
        **{name: task["trading"][name] for name in OF_TRADING},
        "fill": task["fill"],
    }


def _market(recorded: Recorded, typed: Collection[str]) -> dict[str, Any]:
    """The options of the market, and `load` with what `load_market` was given besides."""
    market = dict(recorded.market)
    if not market and "market" not in typed:
        raise InputError(
            f"{recorded.where} was begun with a market from memory ({recorded.data_title}); give it with --market"
        )
    known: dict[str, Any] = {"market": market.get("path"), "members": market.get("members")}
    for name in ("benchmark", "calendar"):
        if name in market:
            known[name] = "none" if market[name] is None else market[name]
    known |= {name: market.get(name) for name in ("renames", "periods_per_year", "ticker_column")}
    extra = market.get("extra")
    known["extra"] = [extra] if isinstance(extra, str) else extra
    kept = {name: value for name, value in known.items() if name not in typed and value is not None}
    _require_there(kept)
    return kept | {"load": {name: value for name, value in market.items() if name not in OF_MARKET}}


def _require_there(kept: dict[str, Any]) -> None:
    """Raise InputError if a file that the run was begun with has gone."""
    market, members = kept.get("market", "sample"), kept.get("members")
    if market != "sample" and not (path := Path(options.market_path(market))).exists():
        raise InputError(f"the market {path} that the run was begun with does not exist; give it with --market")
    if isinstance(members, str) and ("." in members or Path(members).is_absolute()) and not Path(members).exists():
        raise InputError(f"the members {members} that the run was begun with do not exist; give them with --members")
    if isinstance(renames := kept.get("renames"), str) and not Path(renames).exists():
        raise InputError(f"the renames {renames} that the run was begun with do not exist; give them with --renames")
    for table in kept.get("extra", ()):
        if not Path(table).exists():
            raise InputError(
                f"the extra table {table} that the run was begun with does not exist; give it with --extra"
            )
