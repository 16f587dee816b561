"""`Recorded`: what the logs of an unfinished run say of its settings, so that its name is enough to go on with it.

The first line of a log holds a header, which decides whether agents compare, and beside it the entry `run`: what else the
next driver needs. Runs of earlier versions have a file `asked.json` in place of that entry, or nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finpod.files import to_json_line
from finpod.rl import LEARNERS
from finpod.storage import Store
from finpod.tournament.log import NAME, parse_log
from finpod.tournament.setup import Plan, completed

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
    learner: str
    """Name of the learner."""
    config: Any
    """Settings of the learner of the first agent."""
    task: Mapping[str, Any]
    """What the task says of itself in the header, as plain values."""
    threads: int
    """CPU threads of a slice."""
    num_envs: int | None
    """Environments of each agent, if they are not as many as the task has by itself."""
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
    record: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the entry `run` of a log: fields of `Recorded`, and the device that the driver computes on.

    `record` may hold features, functions, device, market and asked; a task without a market has no features and no
    market. Paths are absolute, so that they hold in every folder.
    """
    features = record.get("features")
    return {
        "out": str(out.absolute()),
        "storage": storage if storage is None or "://" in storage else str(Path(storage).absolute()),
        "seeds": list(seeds),
        "features": features if features is None or isinstance(features, str) else list(features),
        "functions": list(record.get("functions", ())),
        "device": record.get("device"),
        "market": dict(record.get("market", {})),
        "asked": dict(record.get("asked", {})),
    }


def read_recorded(place: Store, logs: Sequence[str]) -> Recorded | None:
    """The settings of the run whose tournaments lie in the folders `logs` of a place; None if no log has a header yet.

    Raises CheckpointError for a log that is damaged.
    """
    seeds = sorted(int(log.removeprefix("seed-")) for log in logs)
    entries = [entry for seed in seeds for entry in begin_entries(place, f"seed-{seed}/{NAME}")[-1:]]
    if not entries:
        return None
    header, run = completed(entries[0]["header"]), entries[0].get("run") or _side_file(place) or {}
    task = header["task"]
    seeds = run.get("seeds") or seeds
    return Recorded(
        where=place.where,
        plan=Plan.from_dict(header["plan"] | {"seed": seeds[0]}),
        seeds=len(seeds),
        learner=header["learner"],
        config=LEARNERS[header["learner"]].Config(**header["config"]),
        task=task,
        threads=task["threads"],
        num_envs=header["num_envs"],
        features=run["features"] if "features" in run else task.get("features"),
        functions=tuple(run.get("functions", ())),
        market=run.get("market", {}),
        data_title=header.get("data_title", ""),
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
