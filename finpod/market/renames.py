"""Renamed listings: the bundled table, the user's renames, and series joined under the newest symbol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError
from finpod.market.data import as_date
from finpod.market.long_bars import RepairLog
from finpod.market.parsing import check_tickers, normal_ticker
from finpod.market.readers import read_text_table
from finpod.measures import Array

Renames = Mapping[str, str] | str | PathLike[str] | None

RENAMED = (
    ("UAUA", "UAL", "2010-10-01"),
    ("QQQQ", "QQQ", "2011-03-23"),
    ("HANS", "MNST", "2012-01-09"),
    ("KFT", "MDLZ", "2012-10-02"),
    ("RIMM", "BBRY", "2013-02-04"),
    ("WLP", "ANTM", "2014-12-03"),
    ("WAG", "WBA", "2014-12-31"),
    ("TSO", "ANDV", "2017-08-01"),
    ("BBRY", "BB", "2017-10-16"),
    ("COH", "TPR", "2017-10-31"),
    ("PCLN", "BKNG", "2018-02-27"),
    ("HCN", "WELL", "2018-02-28"),
    ("LUK", "JEF", "2018-05-24"),
    ("DPS", "KDP", "2018-07-10"),
    ("VRX", "BHC", "2018-07-16"),
    ("KORS", "CPRI", "2019-01-02"),
    ("HRS", "LHX", "2019-07-01"),
    ("TMK", "GL", "2019-08-09"),
    ("CTRP", "TCOM", "2019-11-05"),
    ("HCP", "PEAK", "2019-11-05"),
    ("SYMC", "NLOK", "2019-11-05"),
    ("CBS", "VIAC", "2019-12-05"),
    ("BBT", "TFC", "2019-12-09"),
    ("JEC", "J", "2019-12-10"),
    ("UTX", "RTX", "2020-04-03"),
    ("CTL", "LUMN", "2020-09-18"),
    ("LB", "BBWI", "2021-08-03"),
    ("COG", "CTRA", "2021-10-04"),
    ("WLTW", "WTW", "2022-01-10"),
    ("VIAC", "PARA", "2022-02-17"),
    ("DISCA", "WBD", "2022-04-11"),
    ("BLL", "BALL", "2022-05-10"),
    ("FB", "META", "2022-06-09"),
    ("ANTM", "ELV", "2022-06-28"),
    ("NLOK", "GEN", "2022-11-08"),
    ("FBHS", "FBIN", "2022-12-15"),
    ("PKI", "RVTY", "2023-05-16"),
    ("RE", "EG", "2023-07-10"),
    ("ABC", "COR", "2023-08-30"),
    ("CDAY", "DAY", "2024-02-01"),
    ("FLT", "CPAY", "2024-03-25"),
    ("SQ", "XYZ", "2025-01-21"),
)
"""(old symbol, new symbol, first day under the new one) of one listing, by date."""
GRACE = np.timedelta64(10, "D")
"""Time around the day of a rename within which a vendor may change the symbol, and pause after which another company has it."""
ALIKE = 0.005
"""Relative difference up to which two closes of one day are the same price."""
LEVEL = np.log(1.5)
"""Log return between the last bar of the old symbol and the first of the new one from which the join is a suspicion."""


class Rename(NamedTuple):
    """One change of symbol."""

    old: str
    new: str
    day: np.datetime64 | None = None
    """First day under the new symbol; None if unknown."""
    bundled: bool = False
    """Whether it comes from the bundled table."""


def families() -> list[tuple[str, ...]]:
    """The symbols of each renamed listing of the bundled table, oldest first."""
    later = {old: new for old, new, _ in RENAMED}
    chains = [[old] for old in later if old not in later.values()]
    for chain in chains:
        while chain[-1] in later:
            chain.append(later[chain[-1]])
    return [tuple(chain) for chain in chains]


def last_days() -> dict[str, np.datetime64]:
    """Old symbol of the bundled table -> first day under the new one."""
    return {old: np.datetime64(day, "ns") for old, _, day in RENAMED}


def read_renames(renames: Renames) -> list[Rename]:
    """The renames of a mapping {old: new}, or of a CSV with the columns old, new and perhaps date (YYYY-MM-DD).

    The date is the first day under the new symbol. Raises InputError for a missing file and for anything else than a
    mapping or a path, DataError for a file or symbols that cannot be used.
    """
    if renames is None:
        return []
    if isinstance(renames, Mapping):
        name, rules = "renames", [Rename(str(old), str(new)) for old, new in renames.items()]
    elif isinstance(renames, (str, PathLike)):
        name, table = (
            Path(renames).name,
            read_text_table(Path(renames), ("old", "new"), "file of renames", "rename", argument="renames"),
        )
        days = [_day(text, name) for text in table["date"]] if "date" in table else [None] * len(table)
        rules = [Rename(*row) for row in zip(table["old"], table["new"], days, strict=True)]
    else:
        raise InputError(
            f"renames is {renames!r:.60}; give a mapping such as {{'FB': 'META'}}, or a CSV with the columns old and new",
            argument="renames",
        )
    rules = [rule._replace(old=normal_ticker(rule.old), new=normal_ticker(rule.new)) for rule in rules]
    check_tickers([symbol for rule in rules for symbol in rule[:2]], name)
    symbols = [rule.old for rule in rules]
    if twice := [symbol for symbol in symbols if symbols.count(symbol) > 1]:
        raise DataError(f"{name} renames {twice[0]} twice; keep one of the two")
    return rules


def _day(text: str, name: str) -> np.datetime64 | None:
    if not text:
        return None
    try:
        return as_date(text)
    except InputError as error:
        raise DataError(f"{name}: the date {error}") from error


def join_renamed(bars: pd.DataFrame, renames: Renames, name: str, log: RepairLog) -> tuple[pd.DataFrame, list[Rename]]:
    """Tidy bars with the series of each renamed listing joined under its newest symbol, and the renames applied.

    `renames` (see `read_renames`) take precedence over the bundled table. A symbol renamed to itself keeps its bars. A
    bundled rename applies if the market has both symbols, unless the new one belonged to another company before. Bars of the
    old symbol after the rename and a pause belong to another company and stay; the returned rename then has its day.
    Days on which both symbols have the same price count once. Raises DataError for days on which their prices differ, and
    InputError for circular renames and for a mapping without any ticker of the market.
    """
    rules = _rules(renames, set(bars["ticker"].cat.categories), name)
    if not rules:
        return bars, []
    affected = bars["ticker"].isin([symbol for rule in rules for symbol in rule[:2]])
    series = {str(symbol): part.set_index("date") for symbol, part in bars[affected].groupby("ticker", observed=True)}
    joins = [join for rule in rules if (join := _join(series, rule, log, name)) is not None]
    tables = [part.assign(ticker=symbol).reset_index() for symbol, part in series.items()]
    joined = pd.concat([bars[~affected].astype({"ticker": object}), *tables], ignore_index=True)[bars.columns]
    return joined.sort_values(["date", "ticker"], ignore_index=True).astype({"ticker": "category"}), joins


def newest_symbol(symbol: str, joins: Sequence[Rename]) -> str:
    """The symbol of an asset after the joins."""
    for rename in joins:
        symbol = rename.new if symbol == rename.old else symbol
    return symbol


def _rules(renames: Renames, present: set[str], name: str) -> list[Rename]:
    """The renames that apply to the symbols `present`, in the order in which chains must be joined."""
    user_rules = {rule.old: rule for rule in read_renames(renames)}
    if (
        isinstance(renames, Mapping)
        and user_rules
        and not present & {symbol for rule in user_rules.values() for symbol in rule[:2]}
    ):
        raise InputError(
            f"renames: {name} has none of the names {', '.join(user_rules)}; its {len(present)} names are such as "
            f"{', '.join(sorted(present)[:3])}",
            argument="renames",
        )
    later = {old: new for old, new, _ in RENAMED}
    rules: dict[str, Rename] = {}
    for old, new, day in RENAMED:
        while new not in present and new in later:
            new = later[new]
        if new not in user_rules or user_rules[new].new != old:  # a user may turn a rename round
            rules[old] = Rename(old, new, np.datetime64(day, "ns"), bundled=True)
    rules = {old: rule for old, rule in (rules | user_rules).items() if old != rule.new}
    graph = {old: {other for other, rule in rules.items() if rule.new == old} for old in rules}
    try:
        order = [rules[old] for old in TopologicalSorter(graph).static_order()]
    except CycleError as error:
        raise InputError(
            f"renames go in a circle: {', '.join(error.args[1][1:])}; leave one of them out", argument="renames"
        ) from error
    applied, present = [], set(present)
    for rule in order:
        if rule.old in present and (rule.new in present or not rule.bundled):
            applied.append(rule)
            present.add(rule.new)
    return applied


def _join(series: dict[str, pd.DataFrame], rule: Rename, log: RepairLog, name: str) -> Rename | None:
    """Move the listing's bars in `series` (symbol -> bars by date) from the old symbol to the new; None if it does not apply.

    Rows without a price are not bars: a wide table has one for each symbol and day.
    """
    if rule.old not in series:  # all its bars are another listing's by now
        return None
    tables = [series[rule.old], series.get(rule.new, series[rule.old].iloc[:0])]
    old, new = (part[part["close"] > 0] for part in tables)
    carried = _carried_forward(old["close"], new["close"])
    old, dropped = old[~carried], old[carried]
    both = old.index.intersection(new.index)
    off = np.abs(old.loc[both, "close"].to_numpy() / new.loc[both, "close"].to_numpy() - 1)
    moved = old[_of_the_listing(old.index, rule)] if len(old) else old
    same, wrong = (both[which].intersection(moved.index) for which in (off <= ALIKE, off > ALIKE))
    if not len(moved) or (rule.bundled and not _is_certain(moved.index, new.index, rule, same, wrong, log)):
        return None
    if len(wrong):
        prices = [f"{part.loc[wrong[0], 'close']:g}" for part in (old, new)]
        raise DataError(
            f"{name}: {rule.old} was renamed {rule.new}, but their closes on {wrong[0]:%Y-%m-%d} are {prices[0]} and "
            f"{prices[1]}; remove one of the two series, or keep both with renames={{'{rule.old}': '{rule.old}'}}"
        )
    stays = len(moved) < len(old)
    if stays:
        series[rule.old] = tables.pop(0).drop(moved.index)
    else:
        del series[rule.old]
    joined = _joined(moved, new, same)
    bare = pd.concat(tables)  # an action may be listed on a day without a price
    bare = bare[~(bare["close"] > 0) & ~bare.index.isin(joined.index)]
    series[rule.new] = pd.concat([joined, bare[~bare.index.duplicated()]]).sort_index() if len(bare) else joined
    _note(moved, new, dropped, rule, log)
    return rule._replace(day=rule.day if stays else None)


def _carried_forward(old: pd.Series, new: pd.Series) -> pd.Series:
    """[n] bool: final closes of the old symbol that repeat the one before while the new symbol trades at other prices."""
    repeats = old.eq(old.shift())[::-1].cummin()[::-1] & old.index.isin(new.index)
    away = (old[repeats] / new.reindex(old.index[repeats]) - 1).abs() > ALIKE
    return repeats & bool(away.any())


def _of_the_listing(days: pd.Index, rule: Rename) -> Array:
    """[n] bool: bars of the old symbol that belong to the listing. Those after a pause that ends after the rename do not."""
    if rule.day is None:
        return np.ones(len(days), dtype=bool)
    pause = np.diff(days, prepend=rule.day - GRACE) > GRACE
    return np.logical_and.accumulate(np.asarray(~pause | (days < rule.day)))


def _is_certain(
    old: pd.Index, new: pd.Index, rule: Rename, same: pd.Index, different: pd.Index, log: RepairLog
) -> bool:
    """Whether a bundled rename applies to two symbols with bars on these days; doubts are logged.

    `same` and `different` are the common days on which their closes agree and differ.
    """
    if len(same) and not len(different):
        return True
    if rule.day is not None and (new < rule.day - GRACE).all():  # the new symbol is that of another company
        return False
    if new[0] < old[0] and not len(different):
        sentence = (
            f"{rule.old} became {rule.new}, but {rule.new} has earlier bars, perhaps of another company; not joined, "
            f"join them with renames={{'{rule.old}': '{rule.new}'}}"
        )
        log.suspect("renames that were not applied", [rule.new], new[:1], [sentence])
        return False
    return True


def _joined(moved: pd.DataFrame, new: pd.DataFrame, same: pd.Index) -> pd.DataFrame:
    """The bars of both symbols, those of the new one where both have one, with adjusted closes on one scale.

    Vendors adjust each series to its own end. adj_close / close of the old symbol is scaled to that of the new one on a
    common day, or from the last day of the old to the first day of the new.
    """
    if "adj_close" in new and (moved["adj_close"].notna().any() or new["adj_close"].notna().any()):
        moved, new = (
            part if part["adj_close"].notna().any() else part.assign(adj_close=part["close"]) for part in (moved, new)
        )
        after = new.index[new.index > moved.index[-1]]
        if len(same) or len(after):
            day, last = (same[-1], same[-1]) if len(same) else (after[0], moved.index[-1])
            with np.errstate(invalid="ignore", divide="ignore"):
                scale = np.divide(
                    *(part.loc[at, "adj_close"] / part.loc[at, "close"] for part, at in ((new, day), (moved, last)))
                )
            moved = moved.assign(adj_close=moved["adj_close"] * (scale if np.isfinite(scale) and scale > 0 else 1.0))
    parts = [moved.drop(new.index.intersection(moved.index)), new]
    return pd.concat([part for part in parts if len(part)]).sort_index()


def _note(moved: pd.DataFrame, new: pd.DataFrame, dropped: pd.DataFrame, rule: Rename, log: RepairLog) -> None:
    """Note the join and the bars that were dropped as repairs, and a price that changes much at the join as a suspicion."""
    after = new[new.index > moved.index[-1]]
    seam = (after if len(after) else moved).index[:1].to_numpy()
    log.repair("names joined, renamed", [rule.new], seam, "ticker", rule.old, rule.new)
    kind = "bars dropped, the last price of a renamed symbol carried forward"
    log.repair(
        kind, [rule.old] * len(dropped), dropped.index.to_numpy(), "close", dropped["close"].to_numpy(), "dropped"
    )
    prices = [float(part["close"].iloc[at]) for part, at in ((moved, -1), (after, 0)) if len(part)]
    if len(prices) == 2 and min(prices) > 0 and abs(np.log(prices[1] / prices[0])) > LEVEL:
        sentence = f"{rule.old} ends at {prices[0]:g}, {rule.new} goes on at {prices[1]:g}"
        log.suspect("renamed names that join at different prices", [rule.new], seam, [sentence])
