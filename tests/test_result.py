"""`BacktestResult`: its figures, saving and loading, warnings, and the printed table."""

import hashlib
import json
import math
import shutil

import numpy as np
import pandas as pd
import pytest
from made_errors import refused
from made_markets import flat_market, make_market, random_market
from made_results import make_result, trained
from made_strategies import constant

from finpod import BacktestResult, Costs
from finpod.backtesting.comparison import compare
from finpod.backtesting.comparison_text import headings
from finpod.backtesting.engine import backtest
from finpod.backtesting.result_io import checksums, load_result
from finpod.backtesting.text import ROWS, agents_line, headline, spread_line
from finpod.evidence.assemble import warnings_of
from finpod.figures import figure, money, percent, ratio
from finpod.records import Event, ResultWarning
from finpod.report.sections import ranked
from finpod.rules import BuyAndHold, EqualWeight, Momentum

pytestmark = pytest.mark.usefixtures("unaudited")
FILES = {"result.json", "run.json", "returns.csv", "trades.csv", "weights.parquet", "SHA256SUMS"}


def run(days=60, **options) -> BacktestResult:
    market = random_market(days=days)
    return backtest(Momentum(lookback=5, k=2), market, **{"start": market.dates[6], "risk_free": 0.01, **options})


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return run().save(tmp_path_factory.mktemp("saved") / "run")


def test_two_runs_are_byte_identical(tmp_path):
    folders = [run().save(tmp_path / name, run={"seconds": clock}) for name, clock in (("one", 1.5), ("two", 2.5))]
    for name in FILES - {"run.json"}:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name
    assert json.loads((folders[0] / "run.json").read_text()) == {"seconds": 1.5}


def test_what_is_saved_is_loaded(tmp_path):
    result = run(opened=3, fill="close", whole_shares=True, costs=Costs(per_share=0.01))
    folder = result.save(tmp_path / "deep" / "run")
    assert {path.name for path in folder.iterdir()} == FILES
    back = load_result(folder)
    assert back.to_json() == result.to_json()
    for name in ("equity", "benchmark_equity", "equal_weight_equity", "anchor_equity", "turnover"):
        own, other = getattr(back, name), getattr(result, name)
        pd.testing.assert_series_equal(own, other, check_names=False, check_freq=False, rtol=0, atol=0)
    pd.testing.assert_frame_equal(back.weights, result.weights, check_freq=False, rtol=0, atol=0)
    pd.testing.assert_frame_equal(back.trades, result.trades, check_dtype=False, rtol=0, atol=0)


def test_a_ticker_that_looks_like_a_missing_value_stays_a_ticker(tmp_path):
    result = backtest(constant(1.0), make_market([10] * 8, tickers=("NA",)))
    assert load_result(result.save(tmp_path / "run")).trades["ticker"].tolist() == ["NA"]


def forget(name):
    return lambda folder: (folder / name).unlink()


def write(name, content):
    return lambda folder: (folder / name).write_text(content)


def change(name):
    """Flip the last byte but one."""

    def damage(folder):
        content = bytearray((folder / name).read_bytes())
        content[-2] ^= 1
        (folder / name).write_bytes(content)

    return damage


def alter(**fields):
    """Change fields of result.json and its checksum, as another program might."""

    def damage(folder):
        content = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps({**content, **fields}))
        (folder / "SHA256SUMS").write_text(checksums(folder))

    return damage


@pytest.mark.parametrize(("damage", "message"), [
    (forget("result.json"), "has no backtest result"), (write("result.json", "[]"), "has no backtest result"),
    (write("result.json", '{"format": 3}'), "is damaged: result.json was changed"),
    *((change(name), f"is damaged: {name} was changed") for name in sorted(FILES - {"run.json"})[2:]),
    *((forget(name), f"is damaged: {name} is missing") for name in sorted(FILES - {"result.json"})),
    (write("fan.parquet", "x"), "fan.parquet was changed"),
    (write("SHA256SUMS", "nonsense\n"), "SHA256SUMS was changed"), (alter(costs={"bogus": 1}), "bogus"),
    (alter(warnings=7), r"is damaged \("), (alter(format=99), "has result format 99, not 3"),
])  # fmt: skip
def test_a_damaged_folder_is_one_line(tmp_path, saved, damage, message):
    folder = tmp_path / "run"
    shutil.copytree(saved, folder)
    damage(folder)
    assert str(folder) in str(refused(message, load_result, folder))


def test_the_checksums_are_those_of_sha256sum(saved):
    for line in (saved / "SHA256SUMS").read_text().splitlines():
        assert hashlib.sha256((saved / line[66:]).read_bytes()).hexdigest() + "  " == line[:66]


def test_a14_after_ruin_everything_is_finite():
    market = make_market([100, 100, 110, np.nan, np.nan], open=[100, 100, 100, np.nan, np.nan])
    terms = {"cash": 100, "costs": Costs(fee_bps=0), "delisting_return": -1}
    result = backtest(BuyAndHold(), market, start=market.dates[1], **terms)
    assert result.equity.tolist() == [100, 110, 0, 0]
    assert result.returns.tolist() == pytest.approx([0.1, -1, 0])
    assert (result.metrics.total_return, result.metrics.cagr, result.metrics.max_drawdown) == (-1, -1, -1)
    assert np.isfinite(result.weights).all().all()
    assert result.cash_weight.tolist() == [1, 0, 1, 1]
    assert result.warnings[0].code == "ruined"
    assert f"ruined on {market.dates[3]!s:.10}" in str(result)


def test_d24_each_variant_is_run_alone_on_the_same_terms(tmp_path):
    market, weights = random_market(60, 3, gaps=0), [(1, 0, 0), (0.5, 0.5, 0), (0, 0.4, 0.6)]
    seeds = [constant(*each, name=f"seed {i}") for i, each in enumerate(weights)]
    result = backtest(constant(0.5, 0.3, 0.2, variants=seeds, variant_kind="seed"), market)
    alone = [backtest(seed, market) for seed in seeds]
    for seed, one in zip(seeds, alone, strict=True):
        np.testing.assert_array_equal(result.variants[seed.name].to_numpy(), one.equity.to_numpy())
        assert result.spread[seed.name]["excess_over_equal_weight"] == one.relative_to_equal_weight.excess
    sharpes = [one.metrics.sharpe for one in alone]
    spread = {key: figures["sharpe"] for key, figures in result.spread.items()}
    closing = {"mean": np.mean(sharpes), "sd": np.std(sharpes, ddof=1), "count": 3}
    assert spread == pytest.approx(dict(zip(("seed 0", "seed 1", "seed 2"), sharpes, strict=True)) | closing)
    assert load_result(result.save(tmp_path / "run")).to_json() == result.to_json()
    assert backtest(seeds[0], market).spread == {}


def flat(days=30, **manifest):
    return flat_market(10, 10, 10, days=days, manifest=manifest)


def test_a13_a_short_history_is_warned_of():
    for days, short in ((20, True), (21, False)):
        codes = {warning.code for warning in backtest(EqualWeight(), flat(days)).warnings}
        assert ("short_history" in codes) == short


@pytest.mark.parametrize(("manifest", "code", "data"), [
    ({"source": "simulated"}, "simulated", {"title": "no title"}),
    ({"survivorship": True, "membership": "list of 2026"}, "survivorship", {"membership": "list of 2026"}),
    ({"benchmark_kind": "price return"}, "price_return_benchmark", {"benchmark": "QQQ"}),
    ({"missing": ["XYZ"]}, "missing_members", {"tickers": ["XYZ"], "count": 1}),
])  # fmt: skip
def test_the_data_speak_for_themselves(manifest, code, data):
    assert ResultWarning(code, data) in backtest(EqualWeight(), flat(**manifest)).warnings


def test_a_note_of_the_vendor_is_never_grave(tmp_path):
    """A note that speaks of in-sample files says nothing of the strategy."""
    notes = ["in-sample and out-of-sample files of the vendor were joined", "LOOKS AHEAD of nothing"]
    result, other = (backtest(rule, flat(notes=notes)) for rule in (EqualWeight(), BuyAndHold()))
    assert not any(warning.grave for warning in result.warnings)
    assert '<li class="red">' not in result.report(tmp_path / "page.html").read_text()
    assert headings(compare([result, other])) == ["equal-weight", "buy-and-hold"]


def test_a_first_session_of_one_bar_is_v0_alone():
    index = pd.DatetimeIndex(["2024-01-02 16:00", "2024-01-03 10:00", "2024-01-03 16:00"])
    sessions = make_result(days=2, periods_per_year=504).sessions_of(pd.Series([100.0, 110.0, 121.0], index))
    assert sessions.to_dict() == {pd.Timestamp("2024-01-02"): 100.0, pd.Timestamp("2024-01-03"): 121.0}


def row(text, label):
    return next(line for line in text.splitlines() if line.startswith(label)).removeprefix(label).split()


@pytest.mark.parametrize(("written", "right"), [
    (percent(-1e-9), "0.00%"), (percent(math.nan), "n/a"), (percent(None), "n/a"), (percent(-0.12344), "-12.34%"),
    (percent(11.27), "1,127.00%"), (percent(0.05, 1), "5.0%"), (ratio(1.7468), "1.75"), (ratio(-math.inf), "n/a"),
    (figure(2.998002, "times"), "3.00x"), (money(1_465_863.4), "1,465,863"), (money(-0.001), "0.00"),
    (money(12.5), "12.50"), (figure(1104, "count"), "1,104"), (percent(1e250), "1e+252%"),
])  # fmt: skip
def test_e07_figures_are_written_plainly(written, right):
    assert written == right


def test_a11_a13_short_histories_are_starred():
    assert row(str(make_result([100.0, 101.0])), "CAGR *")[0] == "1,127.40%"
    assert "*" not in str(make_result(days=20))
    rows = zip(headline(make_result(days=19)), ROWS, strict=True)
    assert all(label.endswith("*") == item.yearly for (label, _), item in rows)
    flat = str(make_result([1000.0] * 6))
    assert [row(flat, f"{label} *")[0] for label in ("Sharpe", "Calmar", "Volatility")] == ["n/a", "n/a", "0.00%"]


def test_a23_the_benchmark_may_miss_days():
    benchmark = pd.Series([400, 404, math.nan, 412.08], pd.bdate_range("2017-01-03", periods=4))
    text = str(make_result([100, 101, 102.01, 103.0301], benchmark_equity=benchmark))
    assert row(text, "Beta")[0] == "1.01"
    assert row(text, "Excess over benchmark")[0] == "0.01%"
    assert row(text, "Returns") == ["3", "2", "3"]
    unknown = str(make_result([100, 101, 102.01, 103.0301], benchmark_equity=benchmark * np.nan))
    assert row(unknown, "Total return")[1] == "n/a"


def test_c06_what_follows_the_table():
    events = tuple(Event(f"2018-03-0{day}", "no_price", f"N{day}") for day in range(1, 9))
    lines = str(trained(days=60, events=events)).splitlines()
    assert [sum(line.startswith(kind) for line in lines) for kind in ("turnover: ", "warning: ")] == [1, 1]
    shown = [line for line in lines if line.startswith("event: ")]
    assert [f"N{day}" in line for day, line in enumerate(shown, start=1)] == [True] * 5 + [False]


def test_names_cannot_break_the_table():
    """Long names are wrapped, and control characters left out."""
    benchmark = "S&P 500 price index (dividends left out), as stored"
    lines = str(make_result(days=60, strategy="two\nlines\x1b[31m" + "x" * 60, benchmark=benchmark)).splitlines()
    assert "\x1b" not in "".join(lines)
    assert "two lines" in lines[0]
    assert max(map(len, lines)) < 150


def test_d24_the_spread_and_the_best_agent_have_a_line():
    base = make_result(days=60)
    variants = {f"seed {i}": base.equity for i in range(3)}
    agents = {"a": base.equity, "b": base.equal_weight_equity}
    result = make_result(days=60, variants=variants, variant_kind="seed", agents=agents)
    assert spread_line(result).startswith("each of 3 seeds ")
    assert "understates" in spread_line(make_result(days=60, variants=variants, variant_kind="member"))
    assert f"Sharpe {ratio(base.metrics.sharpe)}, " in agents_line(result)
    assert (agents_line(base), spread_line(base)) == ("", "")


@pytest.mark.parametrize("missing", [[0, 1], [1], [0, 2, -1]])
def test_a23_a_benchmark_that_covers_a_part_is_told(missing):
    benchmark = make_result(days=40).benchmark_equity.copy()
    benchmark.iloc[missing] = math.nan
    part, bars = make_result(days=40, benchmark_equity=benchmark), benchmark.dropna()
    (warning,) = [warning for warning in warnings_of(part) if warning.code == "benchmark_cover"]
    first, last = (f"{bars.index[place]:%Y-%m-%d}" for place in (0, -1))
    assert warning.data == {"benchmark": "QQQ", "bars": len(bars), "of": 41, "first": first, "last": last}


def test_a_benchmark_with_gaps_is_annualised_by_the_time_it_covers():
    """It grows by 0.1 % a session and has a bar on every fifth."""
    growth = 1.001 ** np.arange(101)
    quotes = np.where(np.arange(101) % 5 == 0, 100 * growth, np.nan)
    result = backtest(BuyAndHold(), make_market(50 * growth, benchmark=quotes), costs=Costs(fee_bps=0), fill="close")
    assert result.benchmark_metrics.cagr == pytest.approx(1.001**result.periods_per_year - 1, rel=1e-9)


def test_a_strategy_named_as_the_benchmark_keeps_its_row():
    result = backtest(BuyAndHold(), random_market(130, 3, gaps=0), name="QQQ", examine=True)
    rows = ranked(result)
    assert [row["metrics"] for row in rows if row["is_own"]] == [result.metrics]
    assert [row["name"] for row in rows].count("QQQ") == 2
