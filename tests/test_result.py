"""`BacktestResult`: its figures, and saving and loading."""

import hashlib
import json
import shutil

import numpy as np
import pandas as pd
import pytest
from made_markets import make_market, random_market
from made_results import make_result

from finpod.backtesting.comparison import compare
from finpod.backtesting.comparison_text import headings
from finpod.backtesting.engine import backtest
from finpod.backtesting.result_io import checksums, load_result
from finpod.errors import InputError
from finpod.records import ResultWarning
from finpod.result import BacktestResult
from finpod.rules import BuyAndHold, EqualWeight, Momentum
from finpod.strategy import Strategy
from finpod.trading.ledger import Costs

FILES = {"result.json", "run.json", "returns.csv", "trades.csv", "weights.parquet", "SHA256SUMS"}


class Constant(Strategy):
    """The same weights every day."""

    name = "constant"

    def __init__(self, *weights: float, **attributes) -> None:
        self.weights = np.array(weights)
        vars(self).update(attributes)

    def decide(self, view):
        return self.weights


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
        pd.testing.assert_series_equal(
            getattr(back, name), getattr(result, name), check_names=False, check_freq=False, rtol=0, atol=0
        )
    pd.testing.assert_frame_equal(back.weights, result.weights, check_freq=False, rtol=0, atol=0)
    pd.testing.assert_frame_equal(back.trades, result.trades, check_dtype=False, rtol=0, atol=0)


def test_a_ticker_that_looks_like_a_missing_value_stays_a_ticker(tmp_path):
    result = backtest(Constant(1.0), make_market([10] * 8, tickers=("NA",)))
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


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (forget("result.json"), "has no backtest result"),
        (write("result.json", "[]"), "has no backtest result"),
        (write("result.json", '{"format": 3}'), "is damaged: result.json was changed"),
        *((change(name), f"is damaged: {name} was changed") for name in sorted(FILES - {"run.json"})[2:]),
        *((forget(name), f"is damaged: {name} is missing") for name in sorted(FILES - {"result.json"})),
        (write("fan.parquet", "x"), "fan.parquet was changed"),
        (write("SHA256SUMS", "nonsense\n"), "SHA256SUMS was changed"),
        (alter(costs={"bogus": 1}), "bogus"),
        (alter(warnings=7), r"is damaged \("),
        (alter(format=99), "has result format 99, not 3"),
    ],
)
def test_a_damaged_folder_is_one_line(tmp_path, saved, damage, message):
    folder = tmp_path / "run"
    shutil.copytree(saved, folder)
    damage(folder)
    with pytest.raises(InputError, match=message) as raised:
        load_result(folder)
    assert "\n" not in str(raised.value)
    assert str(folder) in str(raised.value)


def test_the_checksums_are_those_of_sha256sum(saved):
    for line in (saved / "SHA256SUMS").read_text().splitlines():
        assert hashlib.sha256((saved / line[66:]).read_bytes()).hexdigest() + "  " == line[:66]


def test_a14_after_ruin_everything_is_finite():
    market = make_market([100, 100, 110, np.nan, np.nan], open=[100, 100, 100, np.nan, np.nan])
    result = backtest(
        BuyAndHold(), market, start=market.dates[1], cash=100, costs=Costs(fee_bps=0), delisting_return=-1
    )
    assert result.equity.tolist() == [100, 110, 0, 0]
    assert result.returns.tolist() == pytest.approx([0.1, -1, 0])
    assert (result.metrics.total_return, result.metrics.cagr, result.metrics.max_drawdown) == (-1, -1, -1)
    assert np.isfinite(result.weights).all().all()
    assert result.cash_weight.iloc[-1] == 0
    assert result.warnings[0].code == "ruined"
    assert f"ruined on {market.dates[3]!s:.10}" in str(result)


def test_d24_each_variant_is_run_alone_on_the_same_terms(tmp_path):
    market, weights = random_market(60, 3, gaps=0), [(1, 0, 0), (0.5, 0.5, 0), (0, 0.4, 0.6)]
    seeds = [Constant(*each, name=f"seed {i}") for i, each in enumerate(weights)]
    result = backtest(Constant(0.5, 0.3, 0.2, variants=seeds, variant_kind="seed"), market)
    alone = [backtest(seed, market) for seed in seeds]
    for seed, one in zip(seeds, alone, strict=True):
        np.testing.assert_array_equal(result.variants[seed.name].to_numpy(), one.equity.to_numpy())
        assert result.spread[seed.name]["excess_over_equal_weight"] == one.relative_to_equal_weight.excess
    sharpes = [one.metrics.sharpe for one in alone]
    spread = {key: figures["sharpe"] for key, figures in result.spread.items()}
    closing = {"mean": np.mean(sharpes), "sd": np.std(sharpes, ddof=1), "count": 3}
    assert spread == pytest.approx(dict(zip(("seed 0", "seed 1", "seed 2"), sharpes, strict=True)) | closing)
    loaded = load_result(result.save(tmp_path / "run"))
    assert loaded.to_json() == result.to_json()
    assert backtest(seeds[0], market).spread == {}


# --- warnings ------------------------------------------------------------------------------------------------------


def codes_of(strategy, market, **options) -> set[str]:
    return {warning.code for warning in backtest(strategy, market, **options).warnings}


def flat(days=30, **manifest):
    prices = np.full((days, 3), 10.0)
    return make_market(prices, open=prices, manifest=manifest)


def test_a13_a_short_history_is_warned_of():
    assert ["short_history" in codes_of(EqualWeight(), flat(days)) for days in (20, 21)] == [True, False]


@pytest.mark.parametrize(
    ("manifest", "code", "data"),
    [
        ({"source": "simulated"}, "simulated", {"title": "no title"}),
        ({"survivorship": True, "membership": "list of 2026"}, "survivorship", {"membership": "list of 2026"}),
        ({"benchmark_kind": "price return"}, "price_return_benchmark", {"benchmark": "QQQ"}),
        ({"missing": ["XYZ"]}, "missing_members", {"tickers": ["XYZ"], "count": 1}),
    ],
)
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
