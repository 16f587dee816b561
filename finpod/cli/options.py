"""Builds command line options from the fields of settings dataclasses, and converts their values."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

import typer
from typer import Option

from finpod.errors import InputError

if TYPE_CHECKING:
    from finpod.market.data import MarketData
    from finpod.measures import Array

Command = TypeVar("Command", bound=Callable[..., None])

DATA = Path("data")
"""Folder of snapshots, relative to the current folder."""
PACKAGE = Path(__file__).parents[1]
LAST = ("no_report", "overwrite", "as_json")
"""Names of parameters that are listed last on a help page."""
SPELLINGS = {"day_first": "--day-first/--month-first"}
METAVARS = {
    **dict.fromkeys(("ticker_column", "resume", "fork", "secret", "pull_secret"), "NAME"),
    **dict.fromkeys(("renames", "extra"), "FILE"),
    **dict.fromkeys(("cpu_workers", "gpu_workers"), "LEAST:MOST"),
    "claim": "NAME:/MOUNT",
}

Device = Annotated[
    Literal["auto", "cpu", "cuda"], Option(help="Device to compute on; auto uses a GPU if there is one.")
]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace existing outputs.")]
NoReport = Annotated[bool, Option("--no-report", help="Write no HTML report.")]
AsJson = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]


class Field(NamedTuple):
    """A field of a dataclass that becomes an option, read from the source of the class."""

    name: str
    """Name of the field. The option may have another name."""
    kind: str
    """Source text of the type."""
    default: Any
    """Default value; `...` if there is none or it is not a literal."""
    help: str
    """Docstring of the field, used as the help text."""


Group = dict[str, Field]
"""Name of an option -> the field that it sets."""


def fields_of(module: str, name: str, options: str = "", **changed: Mapping[str, Any]) -> Group:
    """Return fields of the dataclass `name` as options. The source of `module` is parsed, as an import may be slow.

    `options` lists the fields, as FIELD, or as OPTION=FIELD if the option has another name; by default all fields.
    `changed` maps an option to new values for entries of its `Field`.
    """
    tree = ast.parse(PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    fields = {}
    for node, doc in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(doc, ast.Expr):
            key, value, default = ast.unparse(node.target), node.value, ...
            with suppress(ValueError):
                default = ast.literal_eval(value)  # type: ignore[arg-type]
            text = " ".join(ast.literal_eval(doc.value).split())
            fields[key] = Field(key, ast.unparse(node.annotation), default, text)
    pairs = [word.partition("=") for word in options.split() or fields]
    return {option: fields[key or option]._replace(**changed.get(option, {})) for option, _, key in pairs}


def only(group: Group, *options: str) -> Group:
    """Return some options of a group."""
    return {option: group[option] for option in options}


def values_of(group: Group, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return field -> value for the options of a group, given `values` by option."""
    return {field.name: values[option] for option, field in group.items() if option in values}


def options_of(group: Group, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return option -> value for the options of a group, given `values` by field. The inverse of `values_of`."""
    return {option: values[field.name] for option, field in group.items() if field.name in values}


def with_options(group: Group, first: Sequence[str] = ()) -> Callable[[Command], Command]:
    """Return a decorator that replaces the parameter `**values` of a command with the options of a group.

    With `first`, --help lists only these options of the group, in this order, and --help-advanced lists all.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        declared = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        names = [*(name for name in first if name in group), *(name for name in group if name not in first)]
        added = [_parameter(name, group[name], hidden=bool(first) and name not in first) for name in names]
        added += [_parameter("help_advanced", Field("", "bool", False, "Show all options and exit."))] if first else []
        ordered = sorted([*declared, *added], key=lambda one: one.name in LAST)
        every = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in ordered]
        command.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in every} | {"return": None}
        return command

    return decorate


def _parameter(name: str, field: Field, *, hidden: bool = False) -> inspect.Parameter:
    """Return the function parameter by which typer defines an option."""
    kind = eval(field.kind.replace("tuple[str, ...]", "list[str] | None"), {"Literal": Literal, "Path": Path})
    spelling, more = SPELLINGS.get(name, f"--{name.replace('_', '-')}"), dict[str, Any]()
    if name == "help_advanced":
        more = {"is_eager": True, "expose_value": False, "callback": _help_advanced}
    option = Option(spelling, help=field.help, metavar=METAVARS.get(name), hidden=hidden, **more)
    default = None if field.default == () else field.default
    default = inspect.Parameter.empty if default is ... else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def _help_advanced(context: typer.Context, wanted: bool) -> None:
    if wanted:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


@dataclass(frozen=True)
class Market:
    """Options of the market and of fills."""

    market: str = "sample"
    """A parquet or CSV file, a snapshot in data/ by its name, or 'sample'."""
    members: str | None = None
    """Members on each date: CSV or index (nasdaq100, sp500, dow30, csi300, csi500); default: all. Not for snapshots."""
    ticker: str | None = None
    """Ticker for a file without tickers; by default the name of the file."""
    ticker_column: str | None = None
    """Name of the column of tickers, if finpod does not recognise it."""
    day_first: bool | None = None
    """How to read 03/04/2024 if no date in the file shows the order."""
    decimal: str | None = None
    """Decimal mark, '.' or ',', if no number in the file shows it."""
    renames: str | None = None
    """Renamed tickers: CSV with the columns old, new and, optionally, date."""
    extra: list[str] | None = None
    """Parquet or CSV table of your own columns; may be repeated."""
    benchmark: str = "auto"
    """Ticker of the benchmark. 'auto': that of the snapshot or index, else QQQ; 'none': no benchmark."""
    calendar: str = "auto"
    """Calendar in exchange_calendars. 'auto': that of the snapshot or index, else XNYS; 'none': keep all dates."""
    periods_per_year: float | None = None
    """Bars per year, to annualise figures; by default measured from the dates."""
    fill: Literal["open", "close"] | None = None
    """Price of the fills; by default open if the data have open prices, else close."""


MARKET = fields_of("cli.options", "Market")
FILL = {"fill": MARKET.pop("fill")}
COSTS = fields_of("trading.ledger", "Costs", "fee_bps slippage_bps impact")
TERMS = fields_of(
    "trading.simulate",
    "Terms",
    "cash whole_shares max_weight max_turnover",
    cash={"help": "Initial cash."},
    max_weight={"help": "Largest weight of an asset; by default no limit, or that of the trained agent."},
    max_turnover={
        "help": "Largest turnover (buys plus sells) of a decision, as a fraction of equity; default: see --max-weight."
    },
)


def load(values: Mapping[str, Any], path: str | None = None, **further: Any) -> MarketData:
    """Return the market at `path`, or at `--market`, loaded with the options of `MARKET` and `further` arguments."""
    import finpod

    arguments = values_of(MARKET, values) | further
    market = arguments.pop("market", "")
    for name in ("benchmark", "calendar"):
        arguments[name] = none_or(arguments[name])
    return finpod.load_market(path or market_path(market), **arguments)


def none_or(word: str) -> str | None:
    """Return the word, or None for 'none' in upper or lower case."""
    return None if word.lower() == "none" else word


def market_path(market: str) -> str:
    """Return the path of `--market`. NAME means data/NAME, but ./NAME if that is a file, or if only ./NAME exists."""
    path = Path(market)
    if not market:
        raise InputError("market is empty; give a file, a snapshot or 'sample'", argument="market")
    if market == "sample" or path.is_file() or path.name != market or path.suffix.lower() in (".parquet", ".csv"):
        return market
    return market if path.is_dir() and not (DATA / market).exists() else str(DATA / market)


def window(text: str, name: str) -> tuple[str, str]:
    """Return `FIRST:LAST` as two dates. Raises InputError for anything else."""
    first, colon, last = text.partition(":")
    if not (first and colon and last) or ":" in last:
        raise InputError(f"{name} is {text!r}; write it as FIRST:LAST, such as 2009-01-02:2018-12-31", argument=name)
    return first, last


def words(text: str) -> list[str]:
    """Return the entries of a list separated by commas."""
    return [word for word in (part.strip() for part in text.split(",")) if word]


def features(strategy: str, file: Path | None) -> list[Callable[[MarketData], Array]]:
    """Return the feature functions of `--features-from`, which is only for folders of ensembles."""
    from finpod.loading import load_features

    if file is not None and not Path(strategy).is_dir():
        raise InputError(f"{strategy} is not the folder of an ensemble; omit --features-from, which only ensembles use")
    return [] if file is None else load_features(file)
