"""`finpod data fetch | import | check | show`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finpod.cli import console, options
from finpod.cli.outputs import plain_word
from finpod.errors import InputError
from finpod.files import SNAPSHOT, require_free

if TYPE_CHECKING:
    from finpod.market.data import MarketData

app = typer.Typer(rich_markup_mode=None)

Name = Annotated[
    str | None, typer.Option("--name", help="Name of the snapshot under data/; the source's own name if left out.")
]
AllowMissing = Annotated[bool, typer.Option("--allow-missing", help="Go on without names that have no prices.")]
Source = Annotated[
    str, typer.Argument(help="A parquet or CSV file, a folder of them, a snapshot in data/ by its name, or 'sample'.")
]
READING = options.MARKET.only(
    "members", "ticker_column", "renames", "extra", "benchmark", "calendar", "periods_per_year"
)
"""Options that say how files are read, but for those of `Reading`."""


@dataclass(frozen=True)
class Reading:
    """How files are read."""

    ticker: str | None = None
    """Ticker of the bars of a file that has no tickers; the name of the file if left out."""
    day_first: bool | None = None
    """How to read 03/04/2024 where no date of a file tells."""
    decimal: str | None = None
    """The decimal mark, '.' or ',', where no number of a file tells."""


FILES = options.Settings("cli.data", "Reading", "ticker day_first decimal")


@app.command()
@options.with_options(options.MARKET.only("benchmark", "calendar"))
def fetch(
    tickers: Annotated[
        str | None, typer.Argument(help="What --universe takes, without the option.", show_default=False)
    ] = None,
    universe: Annotated[
        str | None,
        typer.Option(
            help="An index (nasdaq100, sp500, dow30, csi300, csi500) or a membership CSV, point in time; or tickers separated by "
            "commas.  [default: nasdaq100]"
        ),
    ] = None,
    start: Annotated[str, typer.Option(help="First day, YYYY-MM-DD.")] = "2015-01-01",
    end: Annotated[str | None, typer.Option(help="Last day; today if left out.")] = None,
    name: Name = None,
    allow_missing: AllowMissing = False,
    overwrite: options.Overwrite = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait after a rate limit; doubles while it goes on.")] = 5.0,
    deadline: Annotated[float, typer.Option(help="Seconds after which to give up.")] = 1800.0,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask this server, which speaks as Yahoo does, and no other.")
    ] = None,
    as_json: options.AsJson = False,
    **given: Any,
) -> None:
    """Fetch daily bars from Yahoo Finance and keep them as a snapshot in data/.

    An unfinished fetch leaves what has come in beside the snapshot; the same command goes on from there.
    """
    import finpod
    from finpod.market.universe import DEFAULT, index_named, is_universe
    from finpod.market.yahoo_fetch import RetryPolicy, discard

    if tickers is not None and universe is not None:
        raise InputError(f"both {tickers!r} and --universe {universe!r} are given; leave one of them out")
    asked = universe or tickers or DEFAULT
    file = asked if asked.lower().endswith(".csv") else None
    index = index_named(asked).name if file is None and is_universe(asked) else None
    target = _target(name or index or (Path(file).stem if file else "yahoo"), overwrite)
    partial = target.with_name(f".{target.name}.partial")
    with console.progress(f"fetching {asked} from Yahoo Finance", log=True) as report:
        market = finpod.fetch_market(
            file or index or options.words(asked),
            start,
            end,
            benchmark=options.none_or(given["benchmark"]),
            calendar=given["calendar"],
            allow_missing=allow_missing,
            partial=partial,
            base_url=base_url,
            patience=RetryPolicy(wait=wait, deadline=deadline),
            report=report,
        )
    if failed := market.manifest.get("failed"):
        console.remark(
            f"{market.manifest['fetch']['fetched']} of {market.manifest['fetch']['asked']} names; "
            f"missing {', '.join(failed)}"
        )
    _keep(market, target, overwrite, as_json, **_fetched(market))
    discard(partial)


@app.command("import")
@options.with_options(READING, FILES)
def import_file(
    source: Annotated[str, typer.Argument(metavar="PATH", help="A parquet or CSV file, or a folder of them.")],
    name: Name = None,
    allow_missing: AllowMissing = False,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    **given: Any,
) -> None:
    """Clean a file of bars, say what was repaired, and keep it as a snapshot in data/.

    Takes long tables (a row a bar), wide ones (a column of closes for each ticker), tables with a header of fields and
    tickers, and files of one name each, as most vendors and pandas write them.
    """
    target = _target(name or Path(source).stem, overwrite)
    with console.progress(f"reading {source}"):
        market = options.load(given, source, allow_missing=allow_missing, **FILES.values(given))
    _keep(market, target, overwrite, as_json)


@app.command()
@options.with_options(READING, FILES)
def check(
    market: Source = "sample",
    everything: Annotated[bool, typer.Option("--all", help="List every place that was recorded.")] = False,
    as_json: options.AsJson = False,
    **given: Any,
) -> None:
    """Load a market and print where it comes from, what was repaired and what looks wrong and was left alone."""
    from finpod.market.long_bars import PLACES, repair_lines, suspicion_lines

    loaded = options.load(given, options.market_path(market), **FILES.values(given))
    facts = {**_summary(loaded), **loaded.manifest}
    if as_json:
        console.show_json(facts)
        return
    told = ("repairs", "suspicions", "suspicion_counts")
    console.show_facts({name: _lines(fact) for name, fact in facts.items() if name not in told})
    repairs = repair_lines(loaded.manifest, places=PLACES if everything else 5)
    for title, lines in (("repairs", repairs), ("suspicions, left alone", suspicion_lines(loaded.manifest))):
        print(f"\n{title}: {'' if lines else 'none'}".rstrip())
        print("".join(f"  {line}\n" for line in lines), end="")


@app.command()
@options.with_options(options.MARKET.only("members", "renames", "benchmark", "calendar", "periods_per_year"))
def show(
    market: Source = "sample",
    tickers: Annotated[str | None, typer.Option(help="Only these names, separated by commas.")] = None,
    as_json: options.AsJson = False,
    **given: Any,
) -> None:
    """Print what a market holds: sessions, columns, and each name's bars and days as a member."""
    loaded = options.load(given, options.market_path(market))
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
    require_free(target, overwrite, SNAPSHOT)
    return target


def _keep(market: MarketData, target: Path, overwrite: bool, as_json: bool, **more: Any) -> None:
    """Save a snapshot and say what it holds, what `more` there is to say, how much was repaired, and where it lies."""
    from finpod.market.snapshots import save_snapshot

    save_snapshot(market, target, overwrite=overwrite)
    said = market.manifest
    facts = {
        **_summary(market),
        **more,
        "missing": list(said.get("missing", ())),
        "repairs": {entry["kind"]: entry["count"] for entry in said.get("repairs") or ()},
        "suspicions": said.get("suspicion_counts", {}),
        "path": str(target),
    }
    console.show_json(facts) if as_json else console.show_facts({k: _lines(v) for k, v in facts.items()})


def _fetched(market: MarketData) -> dict[str, Any]:
    """What became of the names that were asked for."""
    return {**market.manifest.get("fetch", {}), "failed": market.manifest.get("failed", {})}


def _summary(market: MarketData) -> dict[str, Any]:
    from finpod.market.coverage import listed_during

    listed = listed_during(market.manifest, market.dates[0], market.dates[-1])
    fields = ("open", "high", "low", "close", "volume", "factor")
    return {
        "title": market.title,
        "sessions": len(set(market.sessions.tolist())),
        **({"bars a session": f"{market.bars_per_session:g}"} if market.bars_per_session > 1 else {}),
        "bars a year": market.periods_per_year,
        **{name: note for name, note in market.manifest.items() if name == "periods_note"},
        "first": f"{market.dates[0]!s:.10}",
        "last": f"{market.dates[-1]!s:.10}",
        "names": market.shape[1],
        **(
            {"members listed": f"{listed.members} of {listed.size} members of the {listed.title} on {listed.day}"}
            if listed
            else {}
        ),
        "fields": ", ".join(field for field in fields if getattr(market, field) is not None),
        **({"extra columns": ", ".join(market.extra.names)} if market.extra.names else {}),
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
        entries = [f"{key}: {_spells(value)}" for key, value in fact.items()]
        return ", ".join(entries) if all(isinstance(value, (int, float)) for value in fact.values()) else entries
    if isinstance(fact, (list, tuple)) and all(isinstance(item, str) and " " not in item for item in fact):
        return ", ".join(fact)
    return fact


def _spells(value: Any) -> Any:
    """Pairs of days as text; anything else as it is."""
    if isinstance(value, list) and all(isinstance(pair, list) for pair in value):
        return ", ".join(" .. ".join(pair) for pair in value)
    return value
