"""Joins the bars of renamed listings under their newest symbol. Renames are bundled, or given by the user."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError
from finpod.market.long_bars import RepairLog
from finpod.market.parsing import parse_stamps, parse_tickers
from finpod.market.readers import read_columns

Renames = Mapping[str, str] | str | PathLike[str] | None

GRACE = np.timedelta64(10, "D")
"""A vendor may change the symbol up to this long before or after the day of the rename. Bars of the old symbol that
resume after this day, following a longer pause, belong to another company."""
ALIKE = 0.005
"""Closes of both symbols on the same day count as equal if their relative difference is at most this."""
LEVEL = np.log(1.5)
"""A join is logged as suspicious if the absolute log return from the last old to the first new close is above this."""


class Rename(NamedTuple):
    """One change of the symbol of a listing."""

    old: str
    new: str
    day: np.datetime64 | None = None
    """First day under the new symbol; None if unknown."""
    bundled: bool = False
    """True for a rename of the bundled table."""


@cache
def bundled_renames() -> tuple[Rename, ...]:
    """Return the well-known renames of renames.csv: those with a date in order of date, then those without one.

    A rename without a date applies to the symbols of members, but not to prices. Prices under its new symbol may belong
    to another company.
    """
    return tuple(rename._replace(bundled=True) for rename in read_renames(Path(__file__).with_name("renames.csv")))


def read_renames(renames: Mapping[str, str] | str | PathLike[str], day_first: bool | None = None) -> list[Rename]:
    """Return the renames of a mapping {old: new}, or of a file with columns old, new and optionally date.

    The date is the first day under the new symbol. `day_first` says whether 03/04/2024 is in April. Raises InputError
    for a missing file and for a value that is neither a mapping nor a path, DataError for an invalid file or symbol.
    """
    if isinstance(renames, Mapping):
        name, table = "renames", pd.DataFrame({"old": list(renames), "new": list(renames.values())})
    elif isinstance(renames, (str, PathLike)):
        name = Path(renames).name
        table = read_columns(Path(renames), ("old", "new"), "file of renames", argument="renames")
    else:
        text = f"renames is {renames!r:.60}; give a mapping such as {{'FB': 'META'}} or a CSV with columns old and new"
        raise InputError(text, argument="renames")
    old, new = (pd.Series(parse_tickers(table[column], name)[0], dtype=object) for column in ("old", "new"))
    if (twice := old.duplicated()).any():
        raise DataError(f"{name} has two entries for {old[twice].iloc[0]}; keep one")
    days = parse_stamps(table["date"], name, day_first).clock if "date" in table else [pd.NaT] * len(table)
    return [Rename(one, other, None if pd.isna(day) else day) for one, other, day in zip(old, new, days, strict=True)]


def join_renamed(
    bars: pd.DataFrame, renames: Renames, name: str, log: RepairLog, day_first: bool | None = None
) -> tuple[pd.DataFrame, list[Rename]]:
    """Join the bars of each renamed listing under its newest symbol. Return the tidy bars and the applied renames.

    `renames` (see `read_renames`) take precedence over the bundled table. A symbol renamed to itself keeps its bars. A
    bundled rename applies if the market has both symbols, unless another company used the new symbol before.

    If the old symbol's bars pause for longer than `GRACE` and resume after the rename, the later bars belong to another
    company and keep the old symbol. The returned rename has a day only in this case. On a day with bars of both
    symbols, the new symbol's bar is kept.

    Raises DataError if closes of both symbols differ on a day. Raises InputError for circular renames, and for a
    mapping that has none of the tickers of the bars.
    """
    rules = _rules(renames, set(bars["ticker"].cat.categories), name, day_first)
    if not rules:
        return bars, []
    affected = bars["ticker"].isin([symbol for rule in rules for symbol in rule[:2]])
    series = {str(symbol): part.set_index("date") for symbol, part in bars[affected].groupby("ticker", observed=True)}
    joins = [join for rule in rules if (join := _join(series, rule, log, name)) is not None]
    tables = [part.assign(ticker=symbol).reset_index() for symbol, part in series.items()]
    joined = pd.concat([bars[~affected].astype({"ticker": object}), *tables], ignore_index=True)[bars.columns]
    return joined.sort_values(["date", "ticker"], ignore_index=True).astype({"ticker": "category"}), joins


def _rules(renames: Renames, present: set[str], name: str, day_first: bool | None) -> list[Rename]:
    """Return the bundled and the user's renames that apply to the symbols `present`; in a chain, earlier ones first."""
    users = {rule.old: rule for rule in read_renames({} if renames is None else renames, day_first)}
    if isinstance(renames, Mapping) and users and present.isdisjoint(s for rule in users.values() for s in rule[:2]):
        text = f"renames: {name} has none of the tickers {', '.join(users)}; choose from its {len(present)} tickers"
        raise InputError(f"{text}, such as {', '.join(sorted(present)[:3])}", argument="renames")
    bundled = [rule for rule in bundled_renames() if rule.day is not None]
    later = {rule.old: rule.new for rule in bundled}
    rules: dict[str, Rename] = {}
    for rule in bundled:
        new = rule.new
        while new not in present and new in later:
            new = later[new]
        if new not in users or users[new].new != rule.old:  # unless the user renames in the other direction
            rules[rule.old] = rule._replace(new=new)
    rules = {old: rule for old, rule in (rules | users).items() if old != rule.new}
    order: TopologicalSorter[str] = TopologicalSorter()
    for rule in rules.values():
        order.add(rule.new, rule.old)
    try:
        ordered = [rules[symbol] for symbol in order.static_order() if symbol in rules]
    except CycleError as error:
        text = f"the renames of {', '.join(error.args[1][1:])} are circular; remove one of them"
        raise InputError(text, argument="renames") from error
    applied, present = [], set(present)
    for rule in ordered:
        if rule.old in present and (rule.new in present or not rule.bundled):
            applied.append(rule)
            present.add(rule.new)
    return applied


def _join(series: dict[str, pd.DataFrame], rule: Rename, log: RepairLog, name: str) -> Rename | None:
    """Move bars in `series` (symbol -> bars by date) from the old symbol to the new one, and return the rename.

    Its day is None if all bars were moved. If the rename does not apply, nothing is moved and None is returned. Rows
    without a price are kept, because they may list a split or a dividend.
    """
    if rule.old not in series:  # all its bars were moved to another symbol
        return None
    tables = series[rule.old], series.get(rule.new, series[rule.old].iloc[:0])
    old, new = (table[table["close"] > 0] for table in tables)
    moved = old
    if rule.day is not None and len(old):  # bars after a pause that ends after the rename belong to another company
        pause = np.diff(old.index, prepend=rule.day - GRACE) > GRACE
        moved = old[np.logical_and.accumulate(~pause | (old.index < rule.day))]
    both = moved.index.intersection(new.index)
    differs = (moved.loc[both, "close"] / new.loc[both, "close"] - 1).abs().to_numpy() > ALIKE
    if moved.empty or (rule.bundled and not _is_certain(rule, moved.index, new.index, both, differs.any(), log)):
        return None
    if differs.any():
        day = both[differs][0]
        raise DataError(
            f"{name}: {rule.old} became {rule.new}, but closes on {day:%Y-%m-%d} differ: {old.loc[day, 'close']:g} and "
            f"{new.loc[day, 'close']:g}; drop one series, or undo the rename with renames={{'{rule.old}':'{rule.old}'}}"
        )
    after = new[new.index > moved.index[-1]]
    seam = (after if len(after) else moved).index[:1].to_numpy()
    log.repair("renamed tickers joined", [rule.new], seam, "ticker", rule.old, rule.new)
    if len(after) and abs(np.log((first := after["close"].iloc[0]) / (last := moved["close"].iloc[-1]))) > LEVEL:
        sentence = f"{rule.old} ends at {last:g}, {rule.new} continues at {first:g}"
        log.suspect("renamed tickers that join at different prices", [rule.new], seam, [sentence])
    rest = series.pop(rule.old).drop(moved.index)
    if is_split_up := len(moved) < len(old):
        series[rule.old], rest = rest, rest.iloc[:0]
    joined = pd.concat([tables[1].drop(new.index), rest, *_on_one_scale(moved, new, both)])
    for name in joined.columns.intersection(["split", "dividend"]):  # on a common day, only one may list the event
        event = joined[name].where((joined[name] > 0) & ~(joined[name].eq(1) & (name == "split")))
        joined[name] = event.groupby(level=0).transform("last").fillna(joined[name])
    series[rule.new] = joined[~joined.index.duplicated(keep="last")].sort_index()
    return rule._replace(day=rule.day if is_split_up else None)


def _is_certain(rule: Rename, old: pd.Index, new: pd.Index, both: pd.Index, differs: bool, log: RepairLog) -> bool:
    """Return True if a bundled rename applies, False otherwise. Doubtful renames are not applied but logged.

    `old`, `new` and `both` are the days on which the old symbol, the new symbol, and both have bars. `differs` is True
    if their closes differ on one of the days `both`.
    """
    if len(both) and not differs:
        return True
    if rule.day is not None and (new < rule.day - GRACE).all():  # all bars of the new symbol are another company's
        return False
    if differs or new[0] >= old[0]:
        return True
    sentence = (
        f"{rule.old} became {rule.new}, but {rule.new} has earlier bars, perhaps of another company, so the two were "
        f"not joined; to join them, give renames={{'{rule.old}': '{rule.new}'}}"
    )
    log.suspect("renames that were not applied", [rule.new], new[:1], [sentence])
    return False


def _on_one_scale(moved: pd.DataFrame, new: pd.DataFrame, both: pd.Index) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the bars of both symbols, with the old symbol's adj_close scaled to fit the new symbol's.

    Vendors adjust each series to its own last day. The scale makes adj_close / close of both symbols equal on their
    last common day. Without a common day, it makes the ratio on the old symbol's last day equal to the ratio on the new
    symbol's first later day.
    """
    if "adj_close" not in new or not (moved["adj_close"].notna().any() or new["adj_close"].notna().any()):
        return moved, new
    moved, new = (
        part if part["adj_close"].notna().any() else part.assign(adj_close=part["close"]) for part in (moved, new)
    )
    day = both[-1] if len(both) else moved.index[-1]
    before, after = moved.loc[day], new[new.index >= day]
    if len(after):
        with np.errstate(invalid="ignore", divide="ignore"):
            scale = (after["adj_close"].iloc[0] / after["close"].iloc[0]) / (before["adj_close"] / before["close"])
        moved = moved.assign(adj_close=moved["adj_close"] * (scale if 0 < scale < np.inf else 1.0))
    return moved, new
