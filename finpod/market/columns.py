"""Recognises the columns of tables: dates, tickers, and fields in the spellings of many vendors."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
import pyarrow as pa

from finpod.errors import DataError, InputError
from finpod.market.parsing import BLANK, holds_dates, is_date

Pairs = Sequence[tuple[str, str, pd.Series]]
"""Columns with two labels, as (label, label, values): the two levels of a header, or a field and a ticker."""

_WORDS = {
    "dates": """date datetime timestamp dates day tradedate tradingdate tradingday session sessiondate datadate caldt
    dlycaldt exchangedate observationdate pricedate quotedate asofdate businessdate dtyyyymmdd windowstart opentime
    beginsat starttime closetime time localtime gmttime formatteddate unix unixtimestamp t ts dt datum fecha data 日期 交易日期""",
    "tickers": """ticker symbol tickers symbols tic sym tickersymbol stocksymbol actsymbol tscode stockcode seccode
    securitycode code instrument instrumentid instrumentcode security securityid asset assetid underlying
    underlyingsymbol underlyingticker stock stockid contract pair currencypair coin scrip scripcode ric permno sid secid
    gvkey isin figi cusip ncusip sedol wkn 代码 股票代码 证券代码""",
    "descriptions": """name names company companyname comnam conm issuer stockname securityname assetname shortname
    longname brandname 名称 股票名称""",
    "others": """adjopen adjhigh adjlow adjvolume unadjustedvolume vwap average avg mid bid ask spread trades tradecount
    count numberoftrades transactions totaltrades turnover amount tottrdval change changepercent changeovertime
    pctchange pctchg chg ret retx return returns logreturn openinterest openint oi marketcap mktcap shrout
    sharesoutstanding prevclose preclose previousclose currency exchange mic market country sector industry industrytag
    per period interval frequency timeframe time label note notes comment series source variation var + capitalgains
    tickvol factor member benchmarkclose benchmarkopen year month devise 成交额 振幅 涨跌幅 涨跌额 换手率""",
    "any price": """last lastprice price pxlast prc dlyprc prccd settle settlement settleprice value zuletzt dernier
    ultimo""",
}
DATES, TICKERS, DESCRIPTIONS, _OTHERS, ANY_PRICE = (tuple(words.split()) for words in _WORDS.values())
"""Known labels, in the form that `word` returns: of dates, of symbols and identifiers, of company names, of ignored
columns, and of prices that may be closes. In each tuple, the preferred label is first. A column under a label for
dates must contain dates, unless the label is "date". Company names are taken as tickers if no column has symbols."""

_SPELLINGS = {
    "open": """open openprice priceopen openingprice pxopen openprc dlyopen prcod eroffnung eroffnungskurs eroffn erster
    ouv ouverture apertura abertura otwarcie 开盘 开盘价""",
    "high": """high highprice pricehigh pxhigh askhi dlyhigh prchd hoch hochst plushaut maximo massimo maxima najwyzszy
    最高 最高价""",
    "low": "low lowprice pricelow pxlow bidlo dlylow prcld tief tiefst plusbas minimo minima najnizszy 最低 最低价",
    "close": f"""close closeprice priceclose closingprice closelast cierre cloture chiusura fechamento schluss schlusskurs
    zamkniecie 收盘 收盘价 {" ".join(ANY_PRICE)}""",
    "adj_close": """adjclose adjustedclose closeadj closeadjusted adjcloseprice adjustedcloseprice adjprice
    adjustedprice adjusted adj""",
    "volume": """volume vol totalvolume tradedvolume tradingvolume pxvolume dlyvol cshtrd tottrdqty stucke
    stuecke volumen volumes wolumen 成交量""",
    "dividend": "dividend dividends dividendamount exdividend divcash cashdividend div",
    "split": "split splits stocksplits splitcoefficient splitfactor splitratio",
}
NUMBERS = tuple(_SPELLINGS)
"""Names of the fields that a bar may have; only `close` is required."""
_FIELDS = {word: field for field, words in _SPELLINGS.items() for word in words.split()}
"""Label, in the form that `word` returns -> its field. Of the labels for one field, the preferred one is first."""
_LETTERS = {"o": "open", "h": "high", "l": "low", "c": "close", "v": "volume", "vw": "vwap", "n": "trades", "t": "time"}
"""Short labels in JSON data -> full labels. They are replaced only if a table has o, h, l and c, and all its further
labels are keys of this dict, or known labels of dates, tickers, company names or ignored columns."""
_NUMBER = re.compile(
    r"[-+(]?\s*[$€£¥₹₩₽₺₪]?\s*[-+]?([.,]\d|\d)([\d.,'’\s]*\d)?[.,]?"
    r"([eE][-+]?\d+|(?<=\d)[KMBTkmbt])?\s*[%$€£¥₹₩₽₺₪]?\)?|[-+]?inf"
)
_UNNAMED = re.compile(r"(unnamed\d*(level\d+)?|index|level\d+|indexlevel\d+)?(\.\d+)?")


def word(label: Any) -> str:
    """Return a label in lower case without accents, spaces, most signs and numbering: adjclose for "5. Adj Close*"."""
    text = unicodedata.normalize("NFKD", str(label).replace("\ufeff", "").strip().lower())
    text = "".join(character for character in text if not unicodedata.combining(character))
    return re.sub(r"^\d+[.)]\s+|\.(?=[\s_]|$)|[\s_/*<>\"'%#:()-]+", "", text)


def field_of(label: Any) -> str | None:
    """Return the field that a label means, such as adj_close for "Adj Close"; None if it means no field."""
    return _FIELDS.get(word(label))


def fields_of(labels: Iterable[Any]) -> dict[str, str]:
    """Return normalised label (see `word`) -> field. Of several labels for one field, the preferred one is kept."""
    words = set(map(word, labels))
    read = {field: known for known, field in reversed(_FIELDS.items()) if known in words}
    return {known: field for field, known in reversed(read.items())}


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
        """Normalised label of the column (see the function `word`)."""
        return word(self.label)

    @property
    def unnamed(self) -> bool:
        return is_unnamed(self.label)

    @property
    def known(self) -> bool:
        """True for a known label. Under a label for dates, tickers or company names, the values must fit as well."""
        if self.word in TICKERS or self.word in DESCRIPTIONS:
            return self.identifies
        return self.word in (*_FIELDS, *_OTHERS) or (self.word in DATES and holds_dates(self.values, digits=True))

    @cached_property
    def texts(self) -> list[str]:
        """Distinct values as text, without missing values such as "nan"."""
        texts = (str(value).strip() for value in pd.unique(self.values.dropna()))
        return [text for text in texts if text.lower() not in BLANK]

    @cached_property
    def kind(self) -> str:
        """Kind of the values: "dates", "whole" (integers), "whole floats", "number" (others), "text" or "blank"."""
        if self.values.dtype.kind in "iub":
            return "number" if self.values.dtype.kind == "b" else "whole"
        if self.values.dtype.kind == "f":
            whole = self.values.dropna() % 1 == 0
            return "blank" if whole.empty else "whole floats" if whole.all() else "number"
        if holds_dates(self.values):
            return "dates"
        if not self.texts:
            return "blank"
        if all(text.isdecimal() for text in self.texts):
            return "whole"
        if all(_NUMBER.fullmatch(text) for text in self.texts):
            return "number"
        return "dates" if is_date(self.texts[0]) else "text"

    @property
    def identifies(self) -> bool:
        """True if the values can be tickers: text, whole numbers, or anything under the label ticker or symbol."""
        if self.word in ("ticker", "symbol") or self.kind in ("text", "whole"):
            return True
        return self.kind == "whole floats" and self.values.hasnans  # a missing value turns whole numbers into floats


def listed(columns: Sequence[Column]) -> str:
    """Return the first 12 labels of the columns as text for a message."""
    more = f" and {len(columns) - 12} more" if len(columns) > 12 else ""
    return ", ".join(column.label or "(no name)" for column in columns[:12]) + more


def columns_of(frame: pd.DataFrame, name: str) -> tuple[list[Column], Pairs]:
    """Return (columns, pairs): the columns of a frame with one label, and those with two.

    Levels of the row index, unless it only counts rows, are columns with one label. Empty unnamed columns are left out.
    """
    if frame.columns.nlevels > 2:
        raise DataError(f"{name} has a header of {frame.columns.nlevels} levels; keep two, field and ticker")
    columns, pairs = [], []
    if not isinstance(frame.index, pd.RangeIndex):
        for number, label in enumerate(frame.index.names):
            columns.append(Column(_text(label), _plain(pd.Series(frame.index.get_level_values(number))), level=True))
    header = [[_text(label) for label in frame.columns.get_level_values(i)] for i in range(frame.columns.nlevels)]
    others = (*DATES, *TICKERS, *DESCRIPTIONS, *_OTHERS)
    letters = len(header) == 1 and {*"ohlc"} <= set(header[0])
    if letters and all(label in _LETTERS or word(label) in others for label in header[0]):
        header[0] = [_LETTERS.get(label, label) for label in header[0]]
    body = frame.reset_index(drop=True)
    for position, labels in enumerate(zip(*header, strict=True)):
        values = _plain(body.iloc[:, position])
        named = [label for label in labels if not is_unnamed(label)]
        if len(named) == 2:
            pairs.append((named[0], named[1], values))
        else:
            columns.append(Column((named or labels)[0], values))
    return [c for c in columns if not (c.unnamed and c.values.dropna().astype(str).eq("").all())], pairs


def _text(label: object) -> str:
    return "" if label is None or label != label else str(label).replace("\ufeff", "").strip()


def _plain(column: pd.Series) -> pd.Series:
    """Return the column with Arrow dtypes converted to dtypes of numpy or pandas."""
    if not isinstance(column.dtype, pd.ArrowDtype):
        return column
    values = pa.array(column)
    values = values.cast(pa.float64()) if pa.types.is_decimal(values.type) else values
    return values.to_pandas(date_as_object=False)


def find_dates(columns: Sequence[Column], name: str) -> Column:
    """Return the column of dates. Raises DataError if there is none, or if two columns fit equally well and differ."""
    named = [c for c in columns if c.word == DATES[0] or (c.word in DATES and holds_dates(c.values, digits=True))]
    unnamed = [c for c in columns if c not in named and (c.level or c.unnamed) and c.kind == "dates"]
    found = named + unnamed or [c for c in columns if not c.known and c.kind == "dates"]
    if not found:
        if sum(is_date(column.label) for column in columns) > 1:
            raise DataError(f"{name} has dates in its header; transpose the table (frame.T) to have a row per date")
        raise DataError(f"{name} has no column 'date' and no other dates; add one (it has {listed(columns) or 'none'})")
    best = min(named, key=lambda column: DATES.index(column.word), default=found[0])
    for other in found:
        rival = other.level or not named or (other in named and other.word == best.word)
        if rival and other is not best and not other.values.equals(best.values):
            raise DataError(f"{name} has two columns of dates that differ, {listed([best, other])}; keep one")
    return best


def find_tickers(columns: list[Column], dates: Column, name: str, ticker_column: str | None = None) -> Column | None:
    """Return the column of tickers, if any. Raises DataError if several fit, InputError for a wrong `ticker_column`."""
    if ticker_column is not None:
        for column in columns:
            if ticker_column == column.label or word(ticker_column) == column.word:
                return column
        raise InputError(f"{name} has no column {ticker_column!r}; choose from {listed(columns)}", "ticker_column")
    order = (*TICKERS, *DESCRIPTIONS)
    named = [c for c in columns if c.word in order and c.identifies]
    named.sort(key=lambda c: (c.kind == "blank", order.index(c.word)))
    if not named:
        unnamed = [c for c in columns if c.kind == "text" and (c.unnamed or (c.level and dates.level and not c.known))]
        if len(unnamed) > 1:
            raise DataError(f"{name} has {len(unnamed)} unnamed columns of text; name the column of tickers 'ticker'")
        return unnamed[0] if unnamed else None
    if len(named) > 1 and named[1].word == named[0].word:
        raise DataError(f"{name} has two columns for {named[0].label}; keep one")
    best, *others = [c for c in named if c.word in TICKERS and c.kind != "blank"] or named[:1]
    for other in others:  # one ticker with two values of another identifier may be two securities
        both = pd.DataFrame({"ticker": best.values, "other": other.values}).drop_duplicates().dropna()
        if (again := both["ticker"].duplicated()).any():
            text = f"in {name}, {best.label} {both['ticker'][again].iloc[0]} has several values of {other.label}"
            way_out = f"remove the column {other.label} or {best.label}, or (for prices) pass ticker_column="
            raise DataError(f"{text}; {way_out}", argument="ticker_column")
    return named[0]
