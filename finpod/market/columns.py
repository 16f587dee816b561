"""Column names of price files as vendors spell them: dates, tickers, fields, and columns that are not read."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from finpod.errors import DataError
from finpod.market.dates import holds_dates
from finpod.market.parsing import BLANK

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
"""Words for columns of dates, of symbols and identifiers, of company names, and for those that are not read; the preferred word
is first. A column of dates must also hold dates. Company names are read if there is no symbol."""

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
"""Field -> words for it, the preferred word first. If several columns fit a field, the first in this order is read."""
ANY_PRICE = frozenset(_CLOSES["last"].split())
"""Words for a close that may also mean something else."""
_FIELDS = {word: field for field, words in SPELLINGS.items() for word in words}

_LETTERS = {"o": "open", "h": "high", "l": "low", "c": "close", "v": "volume", "vw": "vwap", "n": "trades", "t": "time"}
"""Column names of JSON interfaces."""
_KNOWN = frozenset((*_OTHERS, *_FIELDS))
_NUMBER = re.compile(
    r"[-+(]?\s*[$€£¥₹₩₽₺₪]?\s*[-+]?([.,]\d|\d)([\d.,'’\s]*\d)?[.,]?([eE][-+]?\d+|(?<=\d)[KMBTkmbt])?\s*[%$€£¥₹₩₽₺₪]?\)?|[-+]?inf"
)
_LISTED = 12
"""Most columns that a message lists."""
_UNNAMED = re.compile(r"(unnamed\d*(level\d+)?|index|level\d+|indexlevel\d+)?(\.\d+)?")


def word(label: Any) -> str:
    """Return the label in small letters without accents and punctuation: adjustedclose for "5. Adjusted Close*"."""
    text = unicodedata.normalize("NFKD", str(label).replace("\ufeff", "").strip().lower())
    text = "".join(character for character in text if not unicodedata.combining(character))
    return re.sub(r"^\d+[.)]\s+|\.(?=[\s_]|$)|[\s_/*<>\"'%#:()-]+", "", text)


def field_of(label: Any) -> str | None:
    """Return the field of a label: adj_close for "Adj Close". It is None for the label of no field."""
    return _FIELDS.get(word(label))


def fields_of(labels: Iterable[Any]) -> dict[str, str]:
    """Return word -> field for the labels that are read. Of several words for a field, only the preferred one is read."""
    words = {word(label) for label in labels}
    read = {field: next((known for known in SPELLINGS[field] if known in words), None) for field in NUMBERS}
    return {spelled: field for field, spelled in read.items() if spelled is not None}


def ambiguous(name: str, one: str, other: str, way_out: str) -> DataError:
    """Return the error for a table that can be read in two ways."""
    return DataError(f"{name} can be read as {one}, and as {other}; {way_out}")


def spelled_out(labels: Sequence[str]) -> list[str]:
    """Return the labels, with single letters (o, h, l, c, v, t) spelled out if all other labels are known words."""
    bars = {"o", "h", "l", "c"} <= set(labels) and all(
        label in _LETTERS or is_word(label, DATES, TICKERS, DESCRIPTIONS, _OTHERS) for label in labels
    )
    return [_LETTERS.get(label, label) for label in labels] if bars else list(labels)


def is_word(label: Any, *words: Collection[str]) -> bool:
    """Return True if the label is among the words."""
    return any(word(label) in known for known in words)


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
        if self.values.dtype.kind == "f":  # whole numbers of which one is missing
            return self.is_whole and bool(self.values.isna().any()) and self.kind != "blank"
        return self.kind in ("text", "whole")


def listed(columns: Sequence[Column], one: str = "", several: str = "") -> str:
    """Return the labels of columns as text for a message, after the word `one` for a single column or `several` for more."""
    more = f" and {len(columns) - _LISTED} more" if len(columns) > _LISTED else ""
    labels = ", ".join(column.label or "(no name)" for column in columns[:_LISTED])
    return f"{one if len(columns) == 1 else several} {labels}{more}".strip()
