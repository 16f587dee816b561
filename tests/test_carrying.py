"""What holds rows of the market from after the day is told from what only looks like it."""

import numpy as np
import pandas as pd
import pytest
import torch
from made_markets import NAN, make_market, random_market

from finpod.lookahead.carrying import Copies
from finpod.lookahead.matching import RUN
from finpod.strategy import FeatureTable, MarketView

ROW = 60


@pytest.fixture(scope="module")
def market():
    return random_market(days=100, names=6, gaps=0.05, volume=np.random.default_rng(5).lognormal(12, 1, (100, 6)))


@pytest.fixture(scope="module")
def late(market):
    """The same closes, that go far after the day."""
    far = np.exp(np.random.default_rng(1).normal(0, 3, (39, 6)))
    return make_market(np.vstack([market.close[: ROW + 1], market.close[ROW + 1 :] * far]))


class Holder:
    """Something with one attribute."""

    def __init__(self, held) -> None:
        self.held = held


def told(market, held, row=ROW, **options):
    """What is said of one held thing, without its path."""
    found = list(Copies(market, **options).held_by(Holder(held), row))
    assert all(copy.path.startswith("self.held") for copy in found)
    return [copy.what for copy in found]


# --- copies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["close", "open", "volume"])
@pytest.mark.parametrize("kind", [np.array, torch.tensor, pd.DataFrame, np.float32, lambda rows: rows.T[::-1].copy()])
def test_rows_after_the_day_are_told_and_those_before_are_not(market, table, kind):
    rows = getattr(market, table)
    (found,) = told(market, kind(rows[20 : ROW + 4].copy()))
    assert f"with the {table} of 2024-0" in found
    assert "44" in found  # its shape
    assert told(market, kind(rows[20 : ROW + 1].copy())) == []


@pytest.mark.parametrize("name", ["return", "logarithmic return", "benchmark", "benchmark's return"])
def test_returns_and_the_benchmark_are_told(market, name):
    index = market.benchmark_close
    held = {
        "return": (pd.DataFrame(market.close) / pd.DataFrame(market.close).shift() - 1).to_numpy()[5:],
        "logarithmic return": np.log(market.close[5:]) - np.log(market.close[4:-1]),
        "benchmark": list(index),
        "benchmark's return": pd.Series(index).pct_change(),
    }[name]
    (found,) = told(market, held)
    assert f"with the {name} of 2024-" in found
    assert told(market, held[: ROW - 5]) == []


def test_a_single_later_row_is_told(market):
    assert len(told(market, market.close[ROW + 1].copy())) == 1
    assert (
        len(told(market, {ticker: float(price) for ticker, price in zip("ABCDEF", market.open[90], strict=True)})) == 1
    )
    assert told(market, market.close[ROW].copy()) == []


def test_a_few_sessions_of_one_name_are_told(market):
    column = int(np.isfinite(market.close[70 : 70 + RUN]).all(axis=0).argmax())
    assert len(told(market, market.close[70 : 70 + RUN, column].tolist())) == 1
    assert told(market, market.close[70 : 70 + RUN - 1, column].tolist()) == []


def test_forward_filled_and_tidy_copies_are_told(market):
    assert len(told(market, pd.DataFrame(market.close[1:]).ffill())) == 1
    tidy = pd.DataFrame(market.close[:, :4]).melt().dropna()
    assert len(told(market, tidy)) == 1


@pytest.mark.parametrize(
    ("name", "statistic"),
    [
        ("mean", lambda table: np.nanmean(table, axis=0)),
        ("deviation (ddof 0)", lambda table: np.nanstd(table, axis=0)),
        ("deviation (ddof 1)", lambda table: pd.DataFrame(table).std()),
        ("variance (ddof 0)", lambda table: np.nanvar(table, axis=0)),
        ("largest", lambda table: np.nanmax(table, axis=0)),
        ("least", lambda table: np.nanmin(table, axis=0)),
        ("median", lambda table: np.nanmedian(table, axis=0)),
        ("median", lambda table: pd.DataFrame(table).median()),
        ("lower quartile", lambda table: np.nanpercentile(table, 25, axis=0)),
        ("90 % quantile", lambda table: pd.DataFrame(table).quantile(0.9)),
        ("1 % quantile", lambda table: np.nanquantile(table, 0.01, axis=0)),
        ("95 % quantile", lambda table: np.nanquantile(table, 0.95, axis=0)),
        ("interquartile range", lambda table: np.subtract(*np.nanpercentile(table, (75, 25), axis=0))),
    ],
)
def test_statistics_over_all_rows_are_told(late, name, statistic):
    (found,) = told(late, statistic(late.close))
    assert f"with the {name} of each name's close over all rows, up to 2024-05-17" in found
    assert told(late, statistic(late.close[: ROW + 1])) == []


@pytest.mark.parametrize("kind", [float, np.float32, lambda one: np.array([one]), lambda one: {"it": one, "k": 5}])
@pytest.mark.parametrize(
    ("name", "statistic"),
    [
        ("mean", np.nanmean),
        ("deviation (ddof 0)", np.nanstd),
        ("deviation (ddof 1)", lambda table: np.nanstd(table, ddof=1)),
        ("variance (ddof 0)", np.nanvar),
        ("largest", np.nanmax),
        ("least", np.nanmin),
        ("median", np.nanmedian),
        ("99.5 % quantile", lambda table: np.nanquantile(table, 0.995)),
        ("mean", lambda table: torch.tensor(table).float().nanmean().item()),
    ],
)
def test_statistics_over_all_names_and_rows_are_told(late, name, statistic, kind):
    (found,) = told(late, kind(statistic(late.close)))
    assert f"with the {name} of all names' close over all rows, up to 2024-05-17" in found
    assert told(late, kind(statistic(late.close[: ROW + 1]))) == []


def test_before_the_first_return_every_statistic_is_of_later_rows(market):
    returns = market.close[1:] / market.close[:-1] - 1
    for statistic in (np.nanmean, np.nanmedian):
        assert len(told(market, statistic(returns, axis=0), row=0)) == 1
        assert len(told(market, float(statistic(returns)), row=0)) == 1


def test_the_mean_of_the_benchmark_is_told(market):
    (found,) = told(market, float(market.benchmark_close.mean()))
    assert found == "float with the mean of benchmark over all rows, up to 2024-05-17"


def test_a_median_that_was_a_price_before_is_told():
    """With an odd number of sessions it is one of the prices, and may be one of the past."""
    close = np.random.default_rng(3).lognormal(3, 0.5, (101, 8)).round(2)
    close[ROW + 1 :] *= 1000
    market = make_market(close)
    (found,) = told(market, np.median(close, axis=0))
    assert "with the median of each name's close over all rows" in found
    assert told(market, close[: ROW + 1].copy()) == []


@pytest.mark.parametrize("held", [0.05, 0.125, 1e-4, 252.0, 1 / 3, 0.6180339887, float("inf"), NAN, 0.0, -2.5, 21])
def test_settings_are_no_statistics(market, held):
    assert told(market, held) == told(market, [held]) == []


def test_a_largest_price_of_few_digits_tells_nothing():
    close = np.random.default_rng(3).lognormal(3, 0.5, (100, 4))
    close[80, 2] = 250.0
    assert close.max() == 250
    assert told(make_market(close), 250.0) == []


def test_an_array_with_a_row_for_each_session_is_told_whatever_it_holds(market):
    signal = np.random.default_rng(0).normal(size=(100, 6, 2))
    assert told(market, signal) == ["ndarray [100, 6, 2] with a row for each session up to 2024-05-17"]
    assert len(told(market, signal.transpose(1, 2, 0))) == 1
    signal[ROW + 1 :] = 0
    assert told(market, signal) == []
    signal[ROW + 1 :] = NAN
    assert told(market, signal) == []


def test_a_frame_of_later_dates_and_the_markets_names_is_told(market):
    dates = pd.DatetimeIndex(market.dates[10:90], tz="America/New_York")
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(80, 2)), index=dates, columns=["A", "C"])
    assert told(market, frame) == ["DataFrame [80, 2] with rows of its names up to 2024-05-03"]
    assert told(market, frame[: ROW - 9]) == []
    assert told(market, frame.rename(columns={"A": "rate", "C": "spread"})) == []


def test_markets_views_and_tables_that_go_on_are_told(market):
    assert told(market, market) == ["a market [100, 6] up to 2024-05-17"]
    assert told(market, FeatureTable(market)) == ["a market [100, 6] up to 2024-05-17"]
    assert told(market, MarketView(market, ROW + 1)) == ["a view of 2024-03-26"]
    assert told(market, market.rows(0, ROW + 1)) == []
    assert told(market, MarketView(market, ROW)) == []  # it shows nothing later than its day


def test_of_each_attribute_the_first_copy_is_told(market):
    by_day = {f"{day!s:.10}": row.copy() for day, row in zip(market.dates, market.close, strict=True)}
    assert len(told(market, by_day)) == 1


def ahead(market, sessions=5):
    """[T, N] returns over the coming sessions; NaN at the end."""
    table = np.full(market.shape, NAN)
    table[:-sessions] = market.close[sessions:] / market.close[:-sessions] - 1
    return table


def by_text(market):
    return [f"{day!s:.10}" for day in market.dates]


NAMES_BY_DATE = {
    "a tidy frame": lambda m, t: tidy(m, t, pd.DatetimeIndex(m.dates)),
    "a tidy frame with days as text": lambda m, t: tidy(m, t, by_text(m)),
    "a Series by date and name": lambda m, t: tidy(m, t, m.dates).set_index(["date", "ticker"])["value"],
    "a frame by date with the ticker beside": lambda m, t: tidy(m, t, m.dates).set_index("date"),
    "rows by day": lambda m, t: dict(zip(m.dates, np.nan_to_num(t), strict=True)),
    "rows by text": lambda m, t: dict(zip(by_text(m), np.nan_to_num(t).tolist(), strict=True)),
    "rows by Timestamp": lambda m, t: {pd.Timestamp(d): pd.Series(r, m.tickers) for d, r in zip(m.dates, t, strict=True)},
    "names by date": lambda m, t: {
        pd.Timestamp(day).date(): m.tickers[int(row.argmax())] for day, row in zip(m.dates, np.nan_to_num(t), strict=True)
    },
    "lists of names": lambda m, t: {d: [m.tickers[i] for i in row.argsort()[:2]] for d, row in zip(by_text(m), t, strict=True)},
}  # fmt: skip


def tidy(market, table, dates):
    frame = pd.DataFrame(np.nan_to_num(table), index=pd.Index(dates, name="date"), columns=list(market.tickers))
    frame.columns.name = "ticker"
    return frame.stack().rename("value").reset_index()


@pytest.mark.parametrize("kind", NAMES_BY_DATE)
def test_what_is_said_of_names_by_later_dates_is_told(market, kind):
    held = NAMES_BY_DATE[kind](market, ahead(market))
    (copy,) = told(market, held)
    assert " of days up to 20" in str(copy)
    assert told(market, held, row=99) == []


def test_what_is_said_of_names_up_to_the_day_is_not_told(market):
    until = dict(zip(market.dates[: ROW + 1], ahead(market), strict=False))
    assert told(market, until) == []
    frame = tidy(market, ahead(market), market.dates)
    assert told(market, frame[frame.date <= market.dates[ROW]]) == []


@pytest.mark.parametrize("sessions", [1, 5])
@pytest.mark.parametrize("of", [lambda moves: 2 * moves, np.sign, lambda moves: moves > 0, lambda moves: moves + 0.001])
def test_figures_that_go_with_coming_moves_are_told(sessions, of):
    long = random_market(days=450, names=3)
    moves = of(long.benchmark_close[sessions:] / long.benchmark_close[:-sessions] - 1).astype(float)
    days = long.dates[:-sessions]
    for held in ({f"{day!s:.10}": float(move) for day, move in zip(days, moves, strict=True)}, pd.Series(moves, days)):
        assert f"over the next {sessions} sessions" in str(told(long, held))
    rates = dict(zip(long.dates, np.random.default_rng(0).normal(size=450).cumsum().tolist(), strict=True))
    assert told(long, rates) == []
    assert told(long, pd.Series(rates)) == []
    past = np.r_[0.5, moves[:-1]] if sessions == 1 else np.r_[np.full(5, 0.5), moves[:-5]]  # what has happened
    assert told(long, dict(zip(days, past.tolist(), strict=True))) == []


def test_signs_of_each_coming_session_are_told_without_dates():
    long = random_market(days=450, names=3)
    signs = np.sign(long.benchmark_close[1:] / long.benchmark_close[:-1] - 1)
    assert "over the next 1 sessions" in str(told(long, signs))


# --- no copies ------------------------------------------------------------------------------------------------------


def test_what_it_was_trained_on_it_may_hold(market):
    until = f"{market.dates[80]!s:.10}"
    assert told(market, market.close[:81].copy(), trained_until=until) == []
    assert len(told(market, market.close[:82].copy(), trained_until=until)) == 1
    assert told(market, market, trained_until="2030-01-01") == []


def test_the_last_row_has_nothing_after_it(market):
    assert told(market, market, row=99) == []


@pytest.mark.parametrize(
    "held",
    [
        list(range(1000)),
        np.linspace(0, 1, 5000).round(3),
        np.random.default_rng(0).normal(size=(64, 64)),
        torch.randn(500, 500, generator=torch.Generator().manual_seed(0)),
        np.arange("2024-01-01", "2024-06-01", dtype="datetime64[D]"),
        pd.date_range("2024-01-01", periods=100),
        pd.DataFrame({"name": ["A", "B"], "day": pd.to_datetime(["2024-01-01", "2030-01-01"])}),
        ["A", "B", "C"],
        {"alpha": 0.1, "beta": 20, "gamma": 63.0},
        np.array([]),
        np.zeros((100, 6)),
        np.array([np.inf, NAN, 1e300]),
        np.array(["x", None, 3.0], dtype=object),
        torch.zeros(3, dtype=torch.bool),
        torch.eye(3).to_sparse(),
        {f"2024-0{month}-01": month % 5 for month in range(1, 10)},
        {f"2024-0{month}-01": 0.123 * month for month in range(1, 10)},
        {"2024-01-01": "A", "2030-01-01": "a holiday"},
        pd.DataFrame({"day": ["2024-03-20", "2030-01-01"], "name": ["A", "B"], "weight": [0.5, 0.25]}),
        pd.Series(["x", "y"], pd.to_datetime(["2024-01-01", "2030-01-01"])),
        {"2024-01-01": None, "not a day": 3.0},
        {},
        pd.DataFrame(),
    ],
    ids=str,
)
def test_other_things_are_not_told(market, held):
    assert told(market, held) == []


def test_a_price_that_stands_still_is_no_copy_of_its_future():
    market = make_market(np.tile([10.37, 20.41, 30.59, 44.73], (50, 1)))
    assert told(market, market.close[:21].copy(), row=20) == []
    assert told(market, market.close[20].copy(), row=20) == []


def test_whole_prices_alone_are_no_evidence():
    close = np.random.default_rng(0).integers(1, 200, (60, 5)).astype(float)
    assert told(make_market(close), list(range(1, 200)), row=20) == []
    assert told(make_market(close), np.random.default_rng(1).integers(1, 200, (40, 3)), row=20) == []
