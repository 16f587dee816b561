"""`finpod data fetch | import | check | show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finpod.cli import console, options
from finpod.runs import plain_word, require_free

if TYPE_CHECKING:
    from finpod.market.data import MarketData

app = typer.Typer(rich_markup_mode=None)

Name = Annotated[
    str | None, typer.Option("--name", help="Name of the snapshot under data/; the source's own name if left out.")
]
Source = Annotated[str, typer.Argument(help="A parquet or CSV file, a snapshot in data/ by its name, or 'sample'.")]


@app.command()
def fetch(
    universe: Annotated[str, typer.Argument(help="'nasdaq100', or tickers separated by commas.")] = "nasdaq100",
    start: Annotated[str, typer.Option(help="First day, YYYY-MM-DD.")] = "2015-01-01",
    end: Annotated[str | None, typer.Option(help="Last day; today if left out.")] = None,
    benchmark: options.Benchmark = "QQQ",
    name: Name = None,
    allow_missing: options.AllowMissing = False,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Fetch daily bars from Yahoo Finance and keep them as a snapshot in data/."""
    import finpod

    target = _target(name or ("nasdaq100" if universe == "nasdaq100" else "yahoo"), overwrite)
    with console.progress(f"fetching {universe} from Yahoo Finance"):
        market = finpod.fetch_market(
            universe if universe == "nasdaq100" else options.words(universe),
            start,
            end,
            benchmark=benchmark,
            allow_missing=allow_missing,
        )
    _keep(market, target, overwrite, as_json)


@app.command("import")
def import_file(
    file: Annotated[str, typer.Argument(help="A tidy parquet or CSV file, one row a bar.")],
    members: options.Members = None,
    benchmark: options.Benchmark = "QQQ",
    name: Name = None,
    allow_missing: options.AllowMissing = False,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Check a file of bars and keep it as a snapshot in data/."""
    target = _target(name or Path(file).stem, overwrite)
    with console.progress(f"reading {file}"):
        market = options.load(file, members, benchmark, allow_missing=allow_missing)
    _keep(market, target, overwrite, as_json)


@app.command()
def check(
    market: Source = "sample",
    members: options.Members = None,
    benchmark: options.Benchmark = "QQQ",
    as_json: options.AsJson = False,
) -> None:
    """Load a market and print its provenance: coverage, repairs, names without prices, warnings."""
    loaded = options.load(market, members, benchmark)
    facts = {**_summary(loaded), **loaded.manifest}
    if as_json:
        console.show_json(facts)
    else:
        console.show_facts({name: _lines(fact) for name, fact in facts.items()})


@app.command()
def show(
    market: Source = "sample",
    members: options.Members = None,
    benchmark: options.Benchmark = "QQQ",
    tickers: Annotated[str | None, typer.Option(help="Only these names, separated by commas.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Print what a market holds: sessions, columns, and each name's bars and days as a member."""
    loaded = options.load(market, members, benchmark)
    if tickers is not None:
        loaded = loaded.select(options.words(tickers))
    rows = _rows(loaded)
    if as_json:
        console.show_json({**_summary(loaded), "rows": rows})
        return
    console.show_facts(_summary(loaded))
    print()
    console.show_table(rows)


def _target(name: str, overwrite: bool) -> Path:
    """Where the snapshot goes, refused before any work if it may not."""
    target = options.DATA / plain_word(name)
    require_free(target, overwrite)
    return target


def _keep(market: MarketData, target: Path, overwrite: bool, as_json: bool) -> None:
    """Save a snapshot and say what it holds and where it lies."""
    from finpod.market.store import save_snapshot

    save_snapshot(market, target, overwrite=overwrite)
    facts = {**_summary(market), "missing": list(market.manifest.get("missing", ())), "path": str(target)}
    console.show_json(facts) if as_json else console.show_facts({k: _lines(v) for k, v in facts.items()})


def _summary(market: MarketData) -> dict[str, Any]:
    fields = ("open", "high", "low", "close", "volume", "factor")
    return {
        "title": market.title,
        "sessions": market.shape[0],
        "first": f"{market.dates[0]!s:.10}",
        "last": f"{market.dates[-1]!s:.10}",
        "names": market.shape[1],
        "fields": ", ".join(field for field in fields if getattr(market, field) is not None),
        "benchmark": market.benchmark,
        "hash": market.content_hash,
    }


def _rows(market: MarketData) -> list[dict[str, Any]]:
    """One row a name: its first and last bar, and its counts of bars and of days as a member."""
    has_bar = market.has_bar
    return [
        {
            "ticker": ticker,
            "first bar": f"{market.dates[bars.argmax()]!s:.10}" if bars.any() else "none",
            "last bar": f"{market.last_bar[column]!s:.10}" if bars.any() else "none",
            "bars": int(bars.sum()),
            "member days": int(market.member[:, column].sum()),
        }
        for column, ticker in enumerate(market.tickers)
        for bars in (has_bar[:, column],)
    ]


def _lines(fact: Any) -> Any:
    """A fact of a manifest as text: numbers by name and lists of names as one line, other tables one line an entry."""
    if isinstance(fact, dict):
        entries = [f"{key}: {value}" for key, value in fact.items()]
        return ", ".join(entries) if all(isinstance(value, (int, float)) for value in fact.values()) else entries
    if isinstance(fact, (list, tuple)) and all(isinstance(item, str) and " " not in item for item in fact):
        return ", ".join(fact)
    return fact
