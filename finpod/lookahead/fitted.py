"""Models that a strategy brings along, of which nothing shows on which days they were fitted."""

from __future__ import annotations

from typing import Any

import torch

from finpod.lookahead.reach import reachable
from finpod.strategy import Strategy


def undated(strategy: Strategy, homes: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Kind and path of each fitted estimator or network that a strategy without `trained_until` can get at.

    A model that was fitted on the very days it is judged on decides alike on whatever rows follow: no comparison shows it.
    """
    if strategy.trained_until is not None:
        return ()
    found: dict[str, str] = {}
    for path, value in reachable(strategy, homes):
        attribute = path.partition("[")[0]
        if not any(attribute == other or attribute.startswith(f"{other}.") for other in found) and (
            what := _model(value)
        ):
            found[attribute] = f"{what} ({path})"
    return tuple(found.values())


def _model(value: Any) -> str | None:
    """What model a thing is; None for one that is not fitted."""
    kind = type(value).__name__
    if isinstance(value, torch.nn.Module):
        return f"a network, {kind}" if next(value.parameters(), None) is not None else None
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return None
    methods = all(callable(getattr(type(value), name, None)) for name in ("get_params", "fit"))
    acts = any(hasattr(type(value), name) for name in ("predict", "transform"))
    fitted = any(name.endswith("_") and not name.startswith("__") for name in vars(value)) or "_Booster" in vars(value)
    return f"a fitted {kind}" if methods and acts and fitted else None
