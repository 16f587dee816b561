"""Listings that changed their symbol: the bundled table and a user's own."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from finpod.errors import DataError, InputError
from finpod.market.data import as_date
from finpod.market.parsing import check_tickers, normal_ticker
from finpod.market.readers import read_text_table

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


class Rename(NamedTuple):
    """One change of a symbol."""

    old: str
    new: str
    day: np.datetime64 | None = None
    """First day under the new symbol; None where it is not known, or makes no difference."""
    bundled: bool = False
    """Whether it is of the bundled table and not of the user."""


def families() -> list[tuple[str, ...]]:
    """The symbols of each renamed listing of the bundled table, oldest first."""
    later = {old: new for old, new, _ in RENAMED}
    chains = [[old] for old in later if old not in later.values()]
    for chain in chains:
        while chain[-1] in later:
            chain.append(later[chain[-1]])
    return [tuple(chain) for chain in chains]


def last_days() -> dict[str, np.datetime64]:
    """Old symbol of the bundled table -> first day on which it no longer is that of the listing."""
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
