"""`finpod data fetch | import | check | show`: stores and shows market data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from finpod.cli import console, options
from finpod.cli.outputs import plain_word
from finpod.errors import InputError
from finpod.files import SNAPSHOT, require_free

if TYPE_CHECKING:
    from finpod.market.data import MarketData

app = typer.Typer(rich_markup_mode=None)

Name = Annotated[str | None, Option("--name", help="Name of the snapshot under data/; by default the source's name.")]
AllowMissing = Annotated[bool, Option("--allow-missing", help="Do not fail if Yahoo has no prices for some tickers.")]
Source = Annotated[
    str, Argument(help="A parquet or CSV file, a folder of them, a snapshot in data/ by its name, or 'sample'.")
]
READING = {option: field for option, field in options.MARKET.items() if option != "market"}
"""Options of the market for commands that take the path of the market as an argument, not as --market."""


@app.command()
@options.with_options(options.only(options.MARKET, "benchmark", "calendar"))
def fetch(
    universe: Annotated[str, Option(help="Index such as sp500, CSV of members, or tickers such as A,B.")] = "nasdaq100",
    start: Annotated[str, Option(help="First day, YYYY-MM-DD.")] = "2015-01-01",
    end: Annotated[str | None, Option(help="Last day; by default today.")] = None,
    name: Name = None,
    allow_missing: AllowMissing = False,
    overwrite: options.Overwrite = False,
    deadline: Annotated[float, Option(help="Seconds after which the download stops.")] = 1800.0,
    as_json: options.AsJson = False,
    **values: Any,
) -> None:
    """Fetch daily bars from Yahoo Finance and save them as a snapshot in data/.

    An interrupted fetch keeps its downloads; the same command continues from there.
    """
    import finpod
    from finpod.market.universe import index_named, is_universe
    from finpod.market.yahoo import discard

    file = universe if universe.lower().endswith(".csv") else None
    index = index_named(universe).name if file is None and is_universe(universe) else None
    target = _target(name or index or (Path(file).stem if file else "yahoo"), overwrite)
    partial = target.with_name(f".{target.name}.partial")
    with console.progress(f"fetching {universe} from Yahoo Finance") as report:
        market = finpod.fetch_market(
            file or index or options.words(universe),
            start,
            end,
            benchmark=options.none_or(values["benchmark"]),
            calendar=options.none_or(values["calendar"]),  # type: ignore[arg-type]  # None is refused
            allow_missing=allow_missing,
            partial=partial,
            deadline=deadline,
            report=report,
        )
    fetched, failed = market.manifest.get("fetch", {}), market.manifest.get("failed", {})
    if failed:
        console.remark(f"{fetched['fetched']} of {fetched['asked']} tickers; missing: {', '.join(failed)}")
    _keep(market, target, overwrite, as_json, **fetched, failed=failed)
    discard(partial)


@app.command("import")
@options.with_options(READING)
def import_file(
    source: Annotated[str, Argument(metavar="PATH", help="A parquet or CSV file, or a folder of them.")],
    name: Name = None,
    allow_missing: AllowMissing = False,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    **values: Any,
) -> None:
    """Import a file of bars as a snapshot in data/, and print the repairs.

    Reads long tables (one row per bar), wide tables (one column of closes per ticker), tables whose header has fields
    and tickers, and folders with one file per ticker.
    """
    target = _target(name or Path(source).stem, overwrite)
    with console.progress(f"reading {source}"):
        market = options.load(values, source, allow_missing=allow_missing)
    _keep(market, target, overwrite, as_json)


@app.command()
@options.with_options(READING)
def check(market: Source = "sample", as_json: options.AsJson = False, **values: Any) -> None:
    """Load a market and print its source, its repairs and its unchanged anomalies. --json lists more repairs."""
    from finpod.market.long_bars import check_lines

    loaded = options.load(values, options.market_path(market))
    facts = {**_summary(loaded), **loaded.manifest}
    if as_json:
        console.show_json(facts)
        return
    told = ("repairs", "suspicions", "suspicion_counts")
    console.show_facts({name: _lines(fact) for name, fact in facts.items() if name not in told})
    for title, lines in zip(("repairs", "anomalies, left unchanged"), check_lines(loaded.manifest), strict=True):
        print(f"\n{title}: {'' if lines else 'none'}".rstrip())
        print("".join(f"  {line}\n" for line in lines), end="")


@app.command()
@options.with_options(READING)
def show(market: Source = "sample", as_json: options.AsJson = False, **values: Any) -> None:
    """Print the sessions and columns of a market. For each asset, print its first and last bar, its number of bars,
    and the number of rows (one per day, or per bar if intraday) at which it is a member."""
    loaded = options.load(values, options.market_path(market))
    if as_json:
        console.show_json({**_summary(loaded), "rows": _rows(loaded)})
        return
    console.show_facts(_summary(loaded))
    print()
    console.show_table(_rows(loaded))


def _target(name: str, overwrite: bool) -> Path:
    """Return the folder of a snapshot. Raises InputError, before any work, if it cannot be written."""
    if name == "sample":  # a snapshot of this name could not be loaded by its name
        raise InputError("'sample' is the name of the bundled prices; choose another name", argument="name")
    target = options.DATA / plain_word(name)
    require_free(target, overwrite, SNAPSHOT)
    return target


def _keep(market: MarketData, target: Path, overwrite: bool, as_json: bool, **more: Any) -> None:
    """Save a snapshot. Print its content, the facts `more`, the number of repairs and the path of the snapshot."""
    from finpod.market.load import save_snapshot

    save_snapshot(market, target, overwrite=overwrite)
    facts = {
        **_summary(market),
        **more,
        "missing": list(market.manifest.get("missing", ())),
        "repairs": {entry["kind"]: entry["count"] for entry in market.manifest.get("repairs") or ()},
        "suspicions" if as_json else "anomalies": market.manifest.get("suspicion_counts", {}),
        "path": str(target),
    }
    console.show_json(facts) if as_json else console.show_facts({k: _lines(v) for k, v in facts.items()})


def _summary(market: MarketData) -> dict[str, Any]:
    from finpod.market.coverage import listed_during

    listed = listed_during(market.manifest, market.dates[0], market.dates[-1])
    fields = ("open", "high", "low", "close", "volume", "factor")
    content = {
        "title": market.title,
        "sessions": len(set(market.sessions.tolist())),
        "bars per session": f"{market.bars_per_session:g}" if market.bars_per_session > 1 else None,
        "bars per year": market.periods_per_year,
        "periods_note": market.manifest.get("periods_note"),
        "first": f"{market.dates[0]!s:.10}",
        "last": f"{market.dates[-1]!s:.10}",
        "assets": market.shape[1],
        "members listed": listed and f"{listed.members} of {listed.size} members of the {listed.title} on {listed.day}",
        "fields": ", ".join(field for field in fields if getattr(market, field) is not None),
        "extra columns": ", ".join(market.extra.names) or None,
        "benchmark": market.benchmark,
        "hash": market.content_hash,
    }
    return {key: fact for key, fact in content.items() if fact is not None}


def _rows(market: MarketData) -> list[dict[str, Any]]:
    """Return one row per asset: its first and last bar, its number of bars, and the number of rows as a member."""
    rows = []
    for column, ticker in enumerate(market.tickers):
        days = market.dates[market.has_bar[:, column]]
        first, last = (f"{days[place]!s:.10}" if len(days) else "none" for place in (0, -1))
        member = int(market.member[:, column].sum())
        rows.append({"ticker": ticker, "first bar": first, "last bar": last, "bars": len(days), "member rows": member})
    return rows


def _lines(fact: Any) -> Any:
    """Return an entry of a manifest for printing. A dict of numbers or a list of words becomes one line of text."""
    if isinstance(fact, dict):
        entries = [f"{key}: {_spells(value)}" for key, value in fact.items()]
        return ", ".join(entries) if all(isinstance(value, (int, float)) for value in fact.values()) else entries
    if isinstance(fact, (list, tuple)) and all(isinstance(item, str) and " " not in item for item in fact):
        return ", ".join(fact)
    return fact


def _spells(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(pair, list) for pair in value):
        return ", ".join(" .. ".join(pair) for pair in value)
    return value
