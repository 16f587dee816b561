"""Options that several commands share, and how their text becomes values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from finpod.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from finpod.market.data import MarketData
    from finpod.measures import Array

DATA = Path("data")
"""Where snapshots are kept, relative to the current folder."""

Market = Annotated[str, typer.Option(help="A parquet or CSV file, a snapshot in data/ by its name, or 'sample'.")]
Members = Annotated[
    str | None,
    typer.Option(
        help="Members: a CSV, or an index (nasdaq100, sp500, dow30, csi300, csi500); every name for all time if left out."
    ),
]
Benchmark = Annotated[
    str,
    typer.Option(
        help="Ticker of the benchmark: the fund of the index (QQQ without an index), or a snapshot's own, if 'auto'; "
        "'none' to go without."
    ),
]
Calendar = Annotated[
    str,
    typer.Option(
        help="Exchange whose sessions count, as exchange_calendars names it: that of the index, XNYS without one, if 'auto'; "
        "'none' for every date."
    ),
]
TickerColumn = Annotated[
    str | None, typer.Option(metavar="NAME", help="Column that holds the tickers, where its own name does not tell.")
]
PeriodsPerYear = Annotated[
    float | None, typer.Option(help="Bars a year, for yearly figures; measured from the dates if left out.")
]
Extra = Annotated[
    list[str] | None,
    typer.Option(
        "--extra", metavar="FILE", help="A table of your own columns, parquet or CSV; may be given several times."
    ),
]
Renames = Annotated[
    str | None,
    typer.Option(
        "--renames", metavar="FILE", help="Changed symbols: a CSV with the columns old, new and perhaps date."
    ),
]
Fee = Annotated[float, typer.Option(help="Commission a side, in basis points of the traded notional.")]
Slippage = Annotated[float, typer.Option(help="Slippage a side, in basis points of the traded notional.")]
Impact = Annotated[
    float, typer.Option(help="Market impact: this many daily volatilities times the root of the share of volume.")
]
Anchor = Annotated[
    str,
    typer.Option(
        help="What a tilt is taken around and agents have to beat: equal-weight, dollar-volume or extra:COLUMN."
    ),
]
MaxWeight = Annotated[
    float | None, typer.Option(help="Largest weight of a name; no cap, or an agent's own, if left out.")
]
MaxTurnover = Annotated[
    float | None, typer.Option(help="Most that one decision trades, both sides, of the account; likewise.")
]
FillPrice = Annotated[
    Literal["open", "close"] | None, typer.Option("--fill", help="Price of the fills; open where the data have opens.")
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute; auto takes a GPU if there is one.")
]
AllowMissing = Annotated[bool, typer.Option("--allow-missing", help="Go on without names that have no prices.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace outputs that exist.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def load(
    market: str,
    members: str | None,
    benchmark: str,
    calendar: str,
    periods_per_year: float | None,
    extra: Sequence[str] | None,
    renames: str | None = None,
    ticker_column: str | None = None,
    **further: Any,
) -> MarketData:
    """The market that the options `--market`, `--members` and so on name; `further` arguments are `load_market`'s."""
    import finpod

    return finpod.load_market(
        market_path(market),
        members=members,
        benchmark=none_or(benchmark),
        calendar=none_or(calendar),
        periods_per_year=periods_per_year,
        extra=extra,
        renames=renames,
        ticker_column=ticker_column,
        **further,
    )


def none_or(word: str) -> str | None:
    """The word; None for 'none', in capitals or not."""
    return None if word.lower() == "none" else word


def market_path(market: str) -> str:
    """`--market` as a path: a bare word that is not a file means the snapshot of that name in data/."""
    path = Path(market)
    if market == "sample" or path.is_file() or path.name != market or path.suffix.lower() in (".parquet", ".csv"):
        return market
    return market if path.is_dir() and not (DATA / market).exists() else str(DATA / market)


def window(text: str, option: str) -> tuple[str, str]:
    """`FIRST:LAST` as two dates. Raises InputError naming the option for anything else."""
    first, colon, last = text.partition(":")
    if not (first and colon and last) or ":" in last:
        raise InputError(f"{option} is {text!r}; write it as FIRST:LAST, such as 2009-01-02:2018-12-31")
    return first, last


def words(text: str) -> list[str]:
    """A list written with commas."""
    return [word for word in (part.strip() for part in text.split(",")) if word]


def check_dates(start: str | None, end: str | None) -> None:
    """Raise InputError for what is no date, or an end before the start: known before any data are read."""
    from finpod.market.data import as_date

    first, last = (None if text is None else as_date(text, name) for text, name in ((start, "start"), (end, "end")))
    if first is not None and last is not None and last < first:
        raise InputError(f"the window ends on {end}, before it starts on {start}; swap them", argument="end")


def check_account(cash: float, start: str | None, end: str | None, risk_free: float = 0.0, **caps: Any) -> None:
    """Raise InputError for cash, dates, a rate or caps with which no account can run."""
    from finpod.measures import check_rates
    from finpod.trading.simulate import Terms

    check_dates(start, end)
    check_rates(risk_free)
    Terms(cash=cash, **caps)


def check_market(
    market: str, members: str | None, renames: str | None = None, extra: Sequence[str] | None = None
) -> None:
    """Raise InputError for files that do not exist, before any of them is read."""
    path = Path(market_path(market))
    if market != "sample" and not path.exists():
        raise InputError(
            f"there is no market {path}; give a parquet or CSV file, a snapshot folder or 'sample'", argument="market"
        )
    if members is not None and not Path(members).exists():
        from finpod.market.universe import index_named

        if "." in members:
            raise InputError(
                f"there is no list of members {members}; give a CSV, or an index such as nasdaq100", argument="members"
            )
        index_named(members)
    if renames is not None and not Path(renames).is_file():
        raise InputError(
            f"there is no file of renames {renames}; give a CSV with the columns old, new", argument="renames"
        )
    for table in extra or ():
        if not Path(table).is_file():
            raise InputError(f"there is no extra table {table}; give a parquet or CSV file", argument="extra")


def features(strategy: str, file: Path | None) -> list[Callable[[MarketData], Array]]:
    """The feature functions of `--features-from`, which goes with a trained folder only."""
    from finpod.loading import load_features

    if file is None:
        return []
    if not Path(strategy).is_dir():
        raise InputError(f"--features-from is for a trained folder, and {strategy} is none; leave it out")
    return load_features(file)
