"""`Recorded`: what the logs of an unfinished run say of its settings, so that its name is enough to go on with it.

The first line of a log holds a header, which decides whether agents compare, and beside it the entry `run`: what else the
next driver needs. Runs of earlier versions have a file `asked.json` in place of that entry, or nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finpod.files import to_json_line
from finpod.rl.ppo import PPOConfig
from finpod.storage import Store
from finpod.tournament.journal import NAME, parse_log
from finpod.tournament.setup import Plan

if TYPE_CHECKING:
    from finpod.storage import Place

ASKED = "asked.json"
"""The options of a run that an earlier version began on the command line."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Settings of an unfinished run, as its last driver had them."""

    where: str
    """Folder or URL of its logs."""
    plan: Plan
    """Of its first tournament."""
    seeds: int
    """Tournaments, of the plan's seed and those that follow it."""
    config: PPOConfig
    """Learner of the first agent."""
    trading: Mapping[str, Any]
    """Settings of the task as plain values."""
    fill: str
    """'open' or 'close'."""
    train: tuple[str, str]
    """First and last training day."""
    validation: tuple[str, str]
    """First and last validation day."""
    threads: int
    """CPU threads of a slice."""
    features: str | list[str] | None
    """Features that were asked for by name; None for the default ones."""
    functions: tuple[str, ...]
    """Names of the features that are functions, which no log can hold."""
    market: Mapping[str, Any]
    """Arguments with which the market was loaded; empty for a market from memory."""
    data_title: str
    """One line that says what the prices are."""
    out: str | None = None
    """Folder of the ensemble."""
    storage: str | None = None
    """Folder or URL for log and checkpoints, if it is not beside `out`."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Further values that a driver has left for the next."""


def run_entry(
    out: Path,
    storage: str | None,
    seeds: Sequence[int],
    *,
    features: str | Sequence[str] | None,
    functions: Sequence[str],
    device: str,
    market: Mapping[str, Any],
    asked: Mapping[str, Any],
) -> dict[str, Any]:
    """The entry `run` of a log: fields of `Recorded`, and the device that the driver computes on.

    Paths are absolute, so that they hold in every folder.
    """
    return {
        "out": str(out.absolute()),
        "storage": storage if storage is None or "://" in storage else str(Path(storage).absolute()),
        "seeds": list(seeds),
        "features": features if features is None or isinstance(features, str) else list(features),
        "functions": list(functions),
        "device": device,
        "market": dict(market),
        "asked": dict(asked),
    }


def read_recorded(place: Place, logs: Sequence[str]) -> Recorded | None:
    """The settings of the run whose tournaments lie in the folders `logs` of a place; None if no log has a header yet.

    Raises CheckpointError for a log that is damaged.
    """
    seeds = sorted(int(log.removeprefix("seed-")) for log in logs)
    entries = [entry for seed in seeds for entry in begin_entries(place, f"seed-{seed}/{NAME}")[-1:]]
    if not entries:
        return None
    header, run = entries[0]["header"], entries[0].get("run") or _side_file(place) or {}
    task = header["task"]
    seeds = run.get("seeds") or seeds
    return Recorded(
        where=place.where,
        plan=Plan.from_dict(header["plan"] | {"seed": seeds[0]}),
        seeds=len(seeds),
        config=PPOConfig(**header["config"]),
        trading=task["trading"],
        fill=task["fill"],
        train=tuple(task["windows"]["train"]),
        validation=tuple(task["windows"]["validation"]),
        threads=task["threads"],
        features=run["features"] if "features" in run else task["features"],
        functions=tuple(run.get("functions", ())),
        market=run.get("market", {}),
        data_title=header["data_title"],
        out=run.get("out"),
        storage=run.get("storage"),
        asked=run.get("asked", {}),
    )


def begin_entries(store: Store, name: str = NAME) -> list[dict[str, Any]]:
    """The entries of a log with which its drivers began, in order."""
    records, _ = parse_log(store.read(name), f"{store.where}/{name}")
    return [record for record in records if record["kind"] == "begin"]


def plain(value: Any) -> Any:
    """The value as it comes back from a log."""
    return json.loads(to_json_line(value))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(name, old value, new value) of each setting that differs between two headers, by name; names of parts have dots."""
    before, after = _flat(old), _flat(new)
    names = sorted({*before, *after})
    return [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    parts: dict[str, Any] = {}
    for name, item in value.items():
        parts |= _flat(item, f"{prefix}.{name}" if prefix else str(name))
    return parts


def _side_file(place: Store) -> dict[str, Any]:
    """The entry `run` that the options in `asked.json` stand for; empty without that file."""
    try:
        asked = dict(json.loads(place.read(ASKED)))
    except (FileNotFoundError, ValueError):
        return {}
    market = {"path": asked["market"], "members": asked["members"]}
    if asked["members"] is not None or asked["benchmark"] != "QQQ":  # else the default of those versions
        market["benchmark"] = None if asked["benchmark"] == "none" else asked["benchmark"]
    if asked.get("extra"):
        market["extra"] = asked["extra"]
    words = [word.strip() for word in str(asked["features"]).split(",") if word.strip()]
    return {
        "out": asked["out"],
        "storage": asked["storage"],
        "seeds": list(range(asked["seed"], asked["seed"] + asked["seeds"])),
        "features": None if words == ["default"] else words,
        "market": market,
        "asked": {"tensorboard": asked.get("tensorboard")},
    }
