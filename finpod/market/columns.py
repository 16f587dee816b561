"""Recognises the columns of tables: dates, tickers, and fields in the spellings of many vendors."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from finpod.errors import DataError, InputError
from finpod.market.parsing import BLANK, holds_dates, plain

Pairs = Sequence[tuple[str, str, pd.Series]]
"""Columns of a header of two levels: upper label, lower label, values."""
NUMBERS = ("open", "high", "low", "close", "adj_close", "volume", "dividend", "split")
"""Names of the numbers that a bar may have; only `close` is required."""

_WORDS = {
    "dates": """date datetime timestamp dates day tradedate tradingdate tradingday session sessiondate datadate caldt
    dlycaldt exchangedate observationdate pricedate quotedate asofdate businessdate dtyyyymmdd windowstart opentime
    beginsat starttime closetime time localtime gmttime formatteddate unix unixtimestamp t ts dt datum fecha data""",
    "tickers": """ticker symbol tickers symbols tic sym tickersymbol stocksymbol actsymbol tscode stockcode seccode
    securitycode code instrument instrumentid instrumentcode security securityid asset assetid underlying
    underlyingsymbol underlyingticker stock stockid contract pair currencypair coin scrip scripcode ric permno sid secid
    gvkey isin figi cusip ncusip sedol wkn""",
    "descriptions": """name names company companyname comnam conm issuer stockname securityname assetname shortname
    longname brandname""",
    "others": """adjopen adjhigh adjlow adjvolume unadjustedvolume vwap average avg mid bid ask spread trades tradecount
    count numberoftrades transactions totaltrades turnover amount tottrdval change changepercent changeovertime pctchange
    pctchg chg ret retx return returns logreturn openinterest openint oi marketcap mktcap shrout sharesoutstanding
    prevclose preclose previousclose currency exchange mic market country sector industry industrytag per period interval
    frequency timeframe time label note notes comment series source variation var + capitalgains tickvol factor member
    benchmarkclose benchmarkopen year month""",
}
DATES, TICKERS, DESCRIPTIONS, _OTHERS = (tuple(words.split()) for words in _WORDS.values())
"""Words for columns of dates, of symbols and identifiers, of company names, and for columns that are ignored; the preferred word
is first. A column of dates must also contain dates. Company names serve as tickers if there is no symbol."""

_CLOSES = {
    "close": "close closeprice closingprice closelast cierre cloture chiusura fechamento schluss schlusskurs",
    "last": """last lastprice price pxlast prc dlyprc prccd settle settlement settleprice value zuletzt dernier
    ultimo""",
}
_SPELLINGS = {
    "open": """open openprice openingprice pxopen openprc dlyopen prcod eroffnung eroffnungskurs eroffn erster ouv
    ouverture apertura abertura""",
    "high": "high highprice pxhigh askhi dlyhigh prchd hoch hochst plushaut maximo massimo maxima",
    "low": "low lowprice pxlow bidlo dlylow prcld tief tiefst plusbas minimo minima",
    "close": f"{_CLOSES['close']} {_CLOSES['last']}",
    "adj_close": """adjclose adjustedclose closeadj closeadjusted adjcloseprice adjustedcloseprice adjprice
    adjustedprice adjusted adj""",
    "volume": """volume vol totalvolume tradedvolume tradingvolume pxvolume dlyvol cshtrd tottrdqty volumen volumes
    stucke""",
    "dividend": "dividend dividends dividendamount exdividend divcash cashdividend div",
    "split": "split splits stocksplits splitcoefficient splitfactor splitratio",
}
SPELLINGS = {field: tuple(words.split()) for field, words in _SPELLINGS.items()}
"""Field -> words for it, the preferred word first. If several columns match a field, the first in this order is read."""
ANY_PRICE = frozenset(_CLOSES["last"].split())
"""Words for a close that may also mean something else."""
_FIELDS = {word: field for field, words in SPELLINGS.items() for word in words}

_LETTERS = {"o": "open", "h": "high", "l": "low", "c": "close", "v": "volume", "vw": "vwap", "n": "trades", "t": "time"}
"""Single-letter column names, as in JSON interfaces -> fields."""
_KNOWN = frozenset((*_OTHERS, *_FIELDS))
_NUMBER = re.compile(
    r"[-+(]?\s*[$€£¥₹₩₽₺₪]?\s*[-+]?([.,]\d|\d)([\d.,'’\s]*\d)?[.,]?([eE][-+]?\d+|(?<=\d)[KMBTkmbt])?\s*[%$€£¥₹₩₽₺₪]?\)?|[-+]?inf"
)
_LISTED = 12
"""Largest number of columns that a message lists."""
_UNNAMED = re.compile(r"(unnamed\d*(level\d+)?|index|level\d+|indexlevel\d+)?(\.\d+)?")


def word(label: Any) -> str:
    """Return the label in lower case without accents, numbers and punctuation: adjustedclose for "5. Adjusted Close*"."""
    text = unicodedata.normalize("NFKD", str(label).replace("\ufeff", "").strip().lower())
    text = "".join(character for character in text if not unicodedata.combining(character))
    return re.sub(r"^\d+[.)]\s+|\.(?=[\s_]|$)|[\s_/*<>\"'%#:()-]+", "", text)


def field_of(label: Any) -> str | None:
    """Return the field that a label means, such as adj_close for "Adj Close"; None if it means no field."""
    return _FIELDS.get(word(label))


def fields_of(labels: Iterable[Any]) -> dict[str, str]:
    """Return word -> field for the labels to read. Of several words for a field, only the preferred one is read."""
    words = {word(label) for label in labels}
    read = {field: next((known for known in SPELLINGS[field] if known in words), None) for field in NUMBERS}
    return {spelled: field for field, spelled in read.items() if spelled is not None}


def _spelled_out(labels: Sequence[str]) -> list[str]:
    """Return the labels, with single letters (o, h, l, c, v, t) spelled out if all other labels are known words."""
    known = {*DATES, *TICKERS, *DESCRIPTIONS, *_OTHERS}
    bars = {"o", "h", "l", "c"} <= set(labels) and all(label in _LETTERS or word(label) in known for label in labels)
    return [_LETTERS.get(label, label) for label in labels] if bars else list(labels)


def is_unnamed(label: Any) -> bool:
    """Return True for an empty label, and for pandas' placeholder for a column or level without a name."""
    return _UNNAMED.fullmatch(word(label)) is not None


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a table, or a level of its row index."""

    label: str
    values: pd.Series
    """[rows] values, with a dtype of numpy or pandas."""
    level: bool = False
    """True for a level of the row index."""

    @cached_property
    def word(self) -> str:
        """Label of the column as a word (see `word`)."""
        return word(self.label)

    @property
    def unnamed(self) -> bool:
        """True for a column without a name."""
        return is_unnamed(self.label)

    @property
    def known(self) -> bool:
        """True if its name is a known word that fits its values."""
        if self.word in TICKERS or self.word in DESCRIPTIONS:
            return self.identifies
        return self.word in _KNOWN or (self.word in DATES and holds_dates(self.values, digits=True))

    @cached_property
    def texts(self) -> list[str]:
        """Distinct values as text, without words for missing values."""
        texts = (str(value).strip() for value in pd.unique(self.values.dropna()))
        return [text for text in texts if text.lower() not in BLANK]

    @cached_property
    def kind(self) -> str:
        """Kind of the values: "dates", "whole" numbers, "number", "text" or "blank"."""
        if self.values.dtype.kind in "iub":
            return "number" if self.values.dtype.kind == "b" else "whole"
        if self.values.dtype.kind == "f":
            return "number" if self.values.notna().any() else "blank"
        if holds_dates(self.values):
            return "dates"
        if not self.texts:
            return "blank"
        if all(text.isdecimal() for text in self.texts):
            return "whole"
        if all(_NUMBER.fullmatch(text) for text in self.texts):
            return "number"
        return "dates" if holds_dates(pd.Series(self.texts[:1], dtype=object)) else "text"

    @property
    def is_whole(self) -> bool:
        """True if the values are whole numbers, possibly as floats."""
        return self.kind == "whole" or (self.values.dtype.kind == "f" and bool((self.values.dropna() % 1 == 0).all()))

    @property
    def identifies(self) -> bool:
        """True if the values can be tickers: text, or whole numbers."""
        if self.word in ("ticker", "symbol"):
            return True
        if self.values.dtype.kind == "f":  # whole numbers, which a missing value turned into floats
            return self.is_whole and bool(self.values.isna().any()) and self.kind != "blank"
        return self.kind in ("text", "whole")


def listed(columns: Sequence[Column], one: str = "", several: str = "") -> str:
    """Return the labels of columns as text for a message, after the word `one` or, for more than one column, `several`."""
    more = f" and {len(columns) - _LISTED} more" if len(columns) > _LISTED else ""
    labels = ", ".join(column.label or "(no name)" for column in columns[:_LISTED])
    return f"{one if len(columns) == 1 else several} {labels}{more}".strip()


def columns_of(frame: pd.DataFrame, name: str) -> tuple[list[Column], Pairs]:
    """Return the columns, including the levels of the row index; and, for a header of two levels, its columns as `Pairs`."""
    if frame.columns.nlevels > 2:
        raise DataError(f"{name} has a header of {frame.columns.nlevels} levels; keep two, field and ticker")
    columns, pairs = [], []
    if not isinstance(frame.index, pd.RangeIndex):
        for number, label in enumerate(frame.index.names):
            columns.append(Column(_text(label), plain(pd.Series(frame.index.get_level_values(number))), level=True))
    body = frame.reset_index(drop=True)
    header = [[_text(label) for label in frame.columns.get_level_values(i)] for i in range(frame.columns.nlevels)]
    header = header if len(header) == 2 else [_spelled_out(header[0])]
    for position, labels in enumerate(zip(*header, strict=True)):
        values = plain(body.iloc[:, position])
        named = [label for label in labels if not is_unnamed(label)]
        if len(named) == 2:
            pairs.append((named[0], named[1], values))
        else:
            columns.append(Column((named or labels)[0], values))
    return [c for c in columns if not (c.unnamed and c.values.dropna().astype(str).eq("").all())], pairs


def _text(label: object) -> str:
    return "" if label is None or label != label else str(label).replace("\ufeff", "").strip()


def find_dates(columns: Sequence[Column], name: str) -> Column:
    """Return the column of dates. Raises DataError if there is none, or two that differ."""
    ranks: dict[int, list[Column]] = {}
    for column in columns:
        if column.word == DATES[0] or (column.word in DATES and holds_dates(column.values, digits=True)):
            ranks.setdefault(DATES.index(column.word), []).append(column)
        elif (column.level or column.unnamed) and column.kind == "dates":
            ranks.setdefault(len(DATES), []).append(column)
    if not ranks:
        ranks[0] = [column for column in columns if not column.known and column.kind == "dates"]
    if not ranks[min(ranks)]:
        if sum(holds_dates(pd.Series([column.label])) for column in columns) > 1:
            raise DataError(f"{name} has dates in its header; transpose it (frame.T), so that each date is a row")
        shown = listed(columns, "its column is", "its columns are") if columns else "it has no column"
        raise DataError(f"{name} has no column date, nor another column of dates; {shown}")
    best, *others = ranks[min(ranks)]
    others += [column for rank in ranks.values() for column in rank if column.level]
    for other in others:
        if not other.values.reset_index(drop=True).equals(best.values):
            one, two = best.label or "its index", other.label or "its index"
            raise DataError(f"{name} has two columns for date, {one} and {two}, which differ; keep one")
    return best


def find_tickers(
    columns: Sequence[Column], dates: Column, name: str, ticker_column: str | None = None
) -> Column | None:
    """Return the column of tickers, or None. Raises DataError if two identifiers contradict each other."""
    if ticker_column is not None:
        for column in columns:
            if ticker_column == column.label or word(ticker_column) == column.word:
                return column
        text = f"ticker_column is {ticker_column!r}, which {name} does not have; choose one of {listed(columns)}"
        raise InputError(text, argument="ticker_column")
    order = (*TICKERS, *DESCRIPTIONS)
    candidates = [c for c in columns if c.word in order and c.identifies]
    candidates.sort(key=lambda c: (c.kind == "blank", order.index(c.word)))
    if len(candidates) > 1 and candidates[1].word == candidates[0].word:
        raise DataError(f"{name} has two columns for {candidates[0].label}; keep one")
    if candidates:
        _check_identifiers([c for c in candidates if c.word in TICKERS and c.kind != "blank"], name)
        return candidates[0]
    unnamed = [c for c in columns if c.kind == "text" and (c.unnamed or (c.level and dates.level and not c.known))]
    if len(unnamed) > 1:
        raise DataError(f"{name} has {len(unnamed)} columns of text without a name; name one 'ticker'")
    return unnamed[0] if unnamed else None


def _check_identifiers(columns: Sequence[Column], name: str) -> None:
    """Raise DataError if one ticker has two values of another identifier, because two securities would be joined."""
    for other in columns[1:]:
        both = pd.DataFrame({"ticker": columns[0].values, "other": other.values}).drop_duplicates().dropna()
        twice = both[both["ticker"].duplicated(keep=False)]
        if len(twice):
            ticker = twice["ticker"].iloc[0]
            one, two = twice["other"][twice["ticker"] == ticker].iloc[:2]
            raise DataError(
                f"{name} has two columns that may identify the assets, {columns[0].label} and {other.label}: {ticker} appears "
                f"with {one} and with {two}; choose one of the two columns with ticker_column=",
                argument="ticker_column",
            )
