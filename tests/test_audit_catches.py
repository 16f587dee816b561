"""The audit catches each known way of looking ahead, in full and in the short form that each backtest runs; it passes the rest."""

import socket
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from made_agents import tiny_train
from made_audits import sentences
from made_markets import make_market, random_market
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import RobustScaler, StandardScaler

from finpod.loading import load_strategy
from finpod.lookahead.audit import audit, audit_features, quick_audit
from finpod.market.extra import ExtraData
from finpod.rules import RULES, Momentum
from finpod.strategy import MarketView, Strategy, equal_parts, top_k
from finpod.synthetic import simulate_market
from finpod.trading.execution import Execution

DAYS, NAMES = 330, 12


@pytest.fixture(scope="module")
def market():
    """Twelve names with gaps, of which the first three are listed later, one of them for the last sixty days."""
    made = random_market(days=DAYS, names=NAMES, gaps=0.02)
    tables = {name: getattr(made, name).copy() for name in ("close", "open", "factor")}
    for table in tables.values():
        for column, first in enumerate((100, 200, 270)):
            table[:first, column] = np.nan
    return make_market(
        tables["close"],
        open=tables["open"],
        factor=tables["factor"],
        member=made.member,
        benchmark=made.benchmark_close,
        benchmark_open=made.benchmark_open,
    )


def quick(strategy, market, days=4):
    return quick_audit(strategy, market, 10, len(market.dates) - 1, days=days)


BOTH = pytest.mark.parametrize("check", [audit, quick], ids=["audit", "quick"])


class Ranks(Strategy):
    """Holds the three highest of a feature that it reads in `decide` alone."""

    name = "ranks"

    def __init__(self, feature) -> None:
        self.own = feature

    def decide(self, view):
        return top_k(view.features(self.own)[:, 0], 3, among=view.tradable)


class Declares(Momentum):
    """Declares a feature, and decides by something else."""

    def __init__(self, *features) -> None:
        super().__init__(lookback=20, k=3)
        self.features = features


# --- the five leaks, as features ------------------------------------------------------------------------------------


def shifted(market):
    """The return of the next session."""
    close = pd.DataFrame(market.close)
    return (close.shift(-1) / close - 1).to_numpy()


def scaled_on_all_rows(market):
    """Closes scaled by mean and deviation of all rows."""
    return (market.close - np.nanmean(market.close, axis=0)) / np.nanstd(market.close, axis=0)


def filled_backwards(market):
    """How near closes are to the mean of all names, of which those without a price yet have their first."""
    close = pd.DataFrame(market.close).ffill().bfill()
    return close.div(close.mean(axis=1), axis=0).sub(1).abs().mul(-1).to_numpy()


_PANEL = None


def kept_in_a_global(market):
    """The next close of the first market that it was ever given."""
    global _PANEL
    if _PANEL is None:
        _PANEL = market
    later = np.searchsorted(_PANEL.dates, market.dates) + 1
    return _PANEL.close[later.clip(max=len(_PANEL.dates) - 1)] / market.close


LEAKS = [shifted, scaled_on_all_rows, filled_backwards, kept_in_a_global]


@BOTH
@pytest.mark.parametrize("leak", LEAKS)
def test_a_strategy_that_ranks_by_a_leak_is_caught(market, leak, check):
    verdict = check(Ranks(leak), market, days=12)
    assert not verdict.passed
    assert any(finding.startswith("decisions") and "first leak on 20" in finding for finding in sentences(verdict))
    assert _PANEL is None


@BOTH
@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_that_is_declared_is_named(market, leak, check):
    verdict = check(Declares("return_5", leak), market)
    named = [
        finding for finding in sentences(verdict) if finding.startswith(f"feature {leak.__name__}: first leak on 20")
    ]
    assert named
    assert all(" by " in finding or "appears, vanishes" in finding for finding in named)
    assert not any("return_5" in finding for finding in sentences(verdict))


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_among_features_is_named(market, leak):
    verdict = audit_features(market, ["return_5", leak])
    assert any(finding.startswith(f"feature {leak.__name__}: first leak on 20") for finding in sentences(verdict))
    assert _PANEL is None


def test_filling_backwards_shows_on_the_days_before_a_listing(market):
    """Where all later bars are known anyhow, filling them back changes nothing: random days would miss it."""
    verdict = audit_features(market, [filled_backwards], days=4)
    rows = np.searchsorted(market.dates, np.array(verdict.days, dtype="datetime64[ns]"))
    assert {99, 199, 269} & set(rows)
    assert not verdict.passed


@BOTH
def test_filling_backwards_what_has_been_seen_is_no_leak(market, check):
    class Fills(Strategy):
        def decide(self, view):
            closes = pd.DataFrame(view.closes(30)).bfill().to_numpy()
            return top_k(closes[-1] / closes[0], 3, among=view.tradable)

    assert check(Fills(), market).passed


# --- the five leaks, as strategies ----------------------------------------------------------------------------------


@BOTH
def test_a_strategy_that_takes_the_next_day_from_its_view_is_caught(market, check):
    class Ahead(Strategy):
        def decide(self, view):
            return top_k(np.nan_to_num(view._market.close[view._row + 1] / view.closes(1)[0]), 3, among=view.tradable)

    assert "decisions: first leak on 20" in str(check(Ahead(), market))


@BOTH
def test_a_scaler_fitted_on_all_rows_is_caught(market, check):
    class Scales(Strategy):
        def __init__(self):
            returns = market.close[1:] / market.close[:-1] - 1
            self.mean, self.sd = np.nanmean(returns, axis=0), np.nanstd(returns, axis=0)

        def decide(self, view):
            closes = view.closes(2)
            return top_k((closes[1] / closes[0] - 1 - self.mean) / self.sd, 3, among=view.tradable)

    held = [finding for finding in sentences(check(Scales(), market)) if " holds " in finding]
    assert [finding[len("decisions: on 2024-01-01 ") :] for finding in held] == [
        "self.mean holds ndarray [12] with the mean of each name's return over all rows, up to 2025-04-04",
        "self.sd holds ndarray [12] with the deviation (ddof 0) of each name's return over all rows, up to 2025-04-04",
    ]
    assert all(finding.startswith("decisions: on 20") for finding in held)


@BOTH
def test_a_robust_scaler_fitted_on_all_rows_is_caught(market, check):
    class Scales(Strategy):
        def __init__(self):
            self.scaler = RobustScaler().fit(market.close)

        def decide(self, view):
            return top_k(np.nan_to_num(self.scaler.transform(view.closes(1))[0]), 3, among=view.tradable)

    found = str(check(Scales(), market))
    assert "self.scaler.center_ holds ndarray [12] with the median of each name's close over all rows" in found
    assert "self.scaler.scale_ holds ndarray [12] with the interquartile range of each name's close" in found


@BOTH
@pytest.mark.parametrize(
    ("name", "statistic"),
    [("mean", np.nanmean), ("deviation (ddof 0)", np.nanstd), ("largest", np.nanmax), ("least", np.nanmin)],
)
def test_one_number_over_all_names_and_rows_is_caught(market, check, name, statistic):
    class Scales(Strategy):
        def __init__(self):
            self.scale = statistic(market.close[1:] / market.close[:-1] - 1)

        def decide(self, view):
            return equal_parts(view.tradable) * min(abs(self.scale), 1)

    # an extreme has been seen once its day has come
    end = market.dates[40] if name in ("largest", "least") else None
    verdict = audit(Scales(), market, end=end) if check is audit else quick_audit(Scales(), market, 10, 40)
    assert f"self.scale holds float64 with the {name} of all names' return over all rows, up to 2025-04-04" in str(
        verdict
    )


# --- models of which nothing shows when they were fitted ------------------------------------------------------------


class Brings(Momentum):
    """Holds something."""

    def __init__(self, held, trained_until=None) -> None:
        super().__init__(20, 3)
        self.model, self.trained_until = held, trained_until


def fitted(model):
    rows = np.random.default_rng(0).normal(size=(20, 2))
    return model.fit(rows, rows[:, 0])


MODELS = {
    "a fitted LinearRegression (self.model)": lambda: fitted(LinearRegression()),
    "a fitted StandardScaler (self.model[1])": lambda: ["x", fitted(StandardScaler())],
    "a network, Linear (self.model)": lambda: torch.nn.Linear(2, 1),
    "a network, Sequential (self.model.net)": lambda: SimpleNamespace(net=torch.nn.Sequential(torch.nn.Linear(2, 1))),
}


@BOTH
@pytest.mark.parametrize("what", MODELS)
def test_a_model_without_a_day_is_told_and_no_leak(market, check, what):
    verdict = check(Brings(MODELS[what]()), market, days=2)
    assert verdict.undated == (what,)
    assert verdict.passed
    assert check(Brings(MODELS[what](), "2023-12-29"), market, days=2).undated == ()


@BOTH
@pytest.mark.parametrize("held", [LinearRegression(), LinearRegression, torch.nn.ReLU(), SimpleNamespace(beta_=1)])
def test_what_is_not_fitted_is_no_model(market, check, held):
    assert check(Brings(held), market, days=2).undated == ()


class WalksForward(Strategy):
    """Fits a model on what it has seen whenever it decides."""

    every = 5

    def __init__(self):
        self.model = LinearRegression()

    def decide(self, view):
        closes = np.nan_to_num(view.closes(10), nan=1.0)
        self.model.fit(closes[:-1].T, closes[-1])
        return top_k(self.model.predict(closes[1:].T), 3, among=view.tradable)


@BOTH
def test_a_model_that_is_fitted_while_deciding_is_none_that_it_brings(market, check):
    verdict = check(WalksForward(), market, days=2)
    assert verdict.undated == sentences(verdict) == ()


def test_a_strategy_may_hold_what_it_was_trained_on(market):
    row = 150

    class Trained(Momentum):
        trained_until = f"{market.dates[row]!s:.10}"

        def __init__(self, rows):
            super().__init__(20, 3)
            self.panel, self.mean = market.close[:rows].copy(), market.close[:rows, 3:].mean(axis=0)

    assert audit(Trained(row + 1), market).passed
    (finding,) = sentences(audit(Trained(row + 2), market))
    assert finding.startswith("decisions: on ")
    assert "self.panel holds ndarray [152, 12] with the close of 2024-07-30" in finding


CARRIERS = {
    "the market": lambda market: market,
    "a part of it": lambda market: market.rows(100, 320),
    "closes": lambda market: market.close.copy(),
    "some closes": lambda market: market.close[50:300, 2:7].copy(),
    "closes as float32": lambda market: market.close[50:].astype(np.float32),
    "a tensor": lambda market: torch.tensor(market.open[5:]),
    "returns": lambda market: market.close[1:] / market.close[:-1] - 1,
    "logarithmic returns": lambda market: np.diff(np.log(market.close), axis=0),
    "a frame": lambda market: pd.DataFrame(market.close[:-3], columns=list(market.tickers)),
    "a tidy frame": lambda market: pd.DataFrame(market.close).stack().reset_index(),
    "a Series": lambda market: pd.Series(market.close[:, 4]).dropna(),
    "the benchmark": lambda market: market.benchmark_close.tolist(),
    "lists by ticker": lambda market: dict(zip(market.tickers, market.close.T.tolist(), strict=True)),
    "rows by date": lambda market: {day: dict(zip(market.tickers, row, strict=True))
                                    for day, row in zip(market.dates[-40:], market.close[-40:].tolist(), strict=True)},
    "newest first": lambda market: market.close[::-1].copy(),
    "a signal of the same shape": lambda market: np.cumsum(np.nan_to_num(market.close), axis=0),
    "who will be a member": lambda market: market.member.copy(),
    "a view of the last day": lambda market: MarketView(market, DAYS - 1),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("what", CARRIERS)
def test_a_strategy_that_carries_the_panel_is_caught(market, what, check):
    class Carries(Momentum):
        def __init__(self):
            super().__init__(20, 3)
            self.panel = CARRIERS[what](market)

    verdict = check(Carries(), market, days=3)
    assert not verdict.passed
    assert all(" self.panel" in finding and " holds " in finding for finding in sentences(verdict))
    assert sentences(verdict)[0].startswith(f"decisions: on {verdict.days[0]} self.panel")
    assert ": CAN LOOK AHEAD, checked on 3 days" in str(verdict)


@BOTH
def test_a_strategy_that_keeps_the_panel_when_it_first_decides_is_caught(market, check):
    class Caches(Strategy):
        every = 5

        def decide(self, view):
            if view.step == 0:
                self.panel = view._market.close
            return equal_parts(view.tradable)

    assert "self.panel holds ndarray" in str(check(Caches(), market))


class CachesInItsClass(Strategy):
    panel = None

    def decide(self, view):
        if CachesInItsClass.panel is None:
            CachesInItsClass.panel = view._market
        return equal_parts(view.tradable)


@BOTH
def test_a_strategy_that_keeps_the_panel_in_its_class_is_caught_and_left_as_it_was(market, check):
    assert "CachesInItsClass.panel holds a market" in str(check(CachesInItsClass(), market))
    assert CachesInItsClass.panel is None


@BOTH
def test_a_panel_in_a_global_of_its_file_is_caught(tmp_path, market, check):
    np.save(tmp_path / "closes.npy", market.close)
    (tmp_path / "mine.py").write_text(
        "import finpod, numpy as np\n"
        f"CLOSES = np.load({str(tmp_path / 'closes.npy')!r})\n"
        "UNUSED = CLOSES.copy()\n"
        "class Mine(finpod.Strategy):\n"
        "    def decide(self, view):\n"
        "        return finpod.top_k(np.nan_to_num(CLOSES[-1]), 3, among=view.tradable)\n"
    )
    verdict = check(load_strategy(tmp_path / "mine.py"), market)
    assert ["global CLOSES holds" in finding for finding in sentences(verdict)] == [True]


@BOTH
@pytest.mark.parametrize(
    "line", ["from panel_of_mine import CLOSES", "import panel_of_mine; CLOSES = panel_of_mine.CLOSES"]
)
def test_a_panel_that_is_imported_while_it_decides_is_caught(tmp_path, monkeypatch, market, check, line):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "panel_of_mine", raising=False)
    np.save(tmp_path / "closes.npy", market.close)
    (tmp_path / "panel_of_mine.py").write_text(
        f"import numpy as np\nCLOSES = np.load({str(tmp_path / 'closes.npy')!r})\n"
    )
    (tmp_path / "mine.py").write_text(
        "import finpod, numpy as np\n"
        "class Mine(finpod.Strategy):\n"
        "    def decide(self, view):\n"
        f"        {line}\n"
        "        return finpod.top_k(np.nan_to_num(CLOSES[-1]), 3, among=view.tradable)\n"
    )
    verdict = check(load_strategy(tmp_path / "mine.py"), market)
    assert "panel_of_mine.CLOSES holds ndarray [330, 12]" in sentences(verdict)[0]


@BOTH
def test_a_calendar_is_no_look_ahead(market, check):
    class Knows(Strategy):
        def __init__(self):
            self.weekday = {f"{day!s:.10}": pd.Timestamp(day).dayofweek for day in market.dates}
            self.holidays = pd.DatetimeIndex(market.dates[::20])
            self.season = pd.Series(np.sin(np.arange(DAYS) / 41.3), pd.DatetimeIndex(market.dates))
            self.rates = pd.DataFrame({"rate": np.linspace(1, 2, DAYS) ** 0.5}, pd.DatetimeIndex(market.dates))

        def decide(self, view):
            return equal_parts(view.tradable) * (self.weekday[f"{view.date!s:.10}"] < 3)

    assert check(Knows(), market).findings == ()


def test_a_feature_that_carries_a_panel_is_caught(market):
    def knows(on):
        return market.close[: len(on.dates)][:, : len(on.tickers)] * 0 + 1

    verdict = audit_features(market, [knows])
    assert any("market of knows holds a market [330, 12]" in finding for finding in sentences(verdict))


# --- fills ----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("fill", ["open", "close"])
def test_fills_at_the_seen_close_are_caught(market, monkeypatch, check, fill):
    assert check(RULES["equal-weight"](), market).passed
    honest = Execution.fill_row
    monkeypatch.setattr(
        Execution, "fill_row", lambda own, row: own.decision_row(row) if own.fill == fill else honest(own, row)
    )
    (finding,) = sentences(check(RULES["equal-weight"](), market))
    assert finding.startswith("fills: first leak on 20")
    assert f"with fill='{fill}' an order of that decision" in finding
    assert "a price the decision has seen" in finding


def test_a_decision_for_the_close_that_sees_that_close_is_caught(market, monkeypatch):
    """With no lag, the decision at the mark is filled one row too late to be seen; with the old rows, at the seen close."""
    monkeypatch.setattr(Execution, "lag", property(lambda execution: 0))
    monkeypatch.setattr(Execution, "fill_row", lambda execution, row: row + (execution.fill == "open"))
    findings = sentences(audit(Momentum(20, 3), market))
    assert [finding[:5] for finding in findings] == ["fills"]
    assert "fill='close'" in findings[0]


# --- files, processes, the network and the clock --------------------------------------------------------------------


class Reads(Momentum):
    """Does something on the side."""

    def __init__(self, act) -> None:
        super().__init__(20, 3)
        self.act = act

    def decide(self, view):
        self.act()
        return super().decide(view)


@BOTH
@pytest.mark.parametrize(
    ("act", "deed"),
    [
        (lambda: datetime.now(), "reads the clock (datetime.now)"),
        (lambda: time.time(), "reads the clock (time.time)"),
        (lambda: subprocess.run(["true"], check=True), "starts a process"),
        (lambda: socket.getaddrinfo("localhost", 80), "reaches for the network"),
        (lambda: list(Path("strategies").iterdir()), "lists the folder strategies"),
    ],
)
def test_what_is_read_besides_the_view_is_told(market, act, deed, check):
    verdict = check(Reads(act), market, days=3)
    line = act.__code__.co_firstlineno
    assert sentences(verdict) == (
        f"decisions: <lambda> (test_audit_catches.py, line {line}) {deed} while deciding on {verdict.days[0]}",
    )


@BOTH
def test_a_strategy_that_reads_a_file_is_told(tmp_path, market, check):
    pd.DataFrame(market.close).to_csv(tmp_path / "prices.csv")
    (tmp_path / "mine.py").write_text(
        "import finpod, pandas as pd\n"
        "class Mine(finpod.Strategy):\n"
        "    def decide(self, view):\n"
        f"        later = pd.read_csv({str(tmp_path / 'prices.csv')!r}).iloc[-1, 1:]\n"
        "        return finpod.top_k(later.to_numpy(), 3, among=view.tradable)\n"
    )
    verdict = check(load_strategy(tmp_path / "mine.py"), market, days=3)
    assert sentences(verdict) == (
        f"decisions: Mine.decide (mine.py, line 4) reads the file {tmp_path / 'prices.csv'} while deciding on "
        f"{verdict.days[0]}",
    )


@BOTH
def test_a_feature_that_reads_a_file_is_told(tmp_path, market, check):
    (tmp_path / "factor.txt").write_text("1")

    def from_file(on):
        return on.close * float((tmp_path / "factor.txt").read_text())

    assert f"from_file (test_audit_catches.py, line {from_file.__code__.co_firstlineno + 1}) reads the file" in str(
        check(Ranks(from_file), market, days=2)
    )
    (finding,) = sentences(audit_features(market, [from_file], days=2))
    assert "features: from_file" in finding
    assert "while computing the values of 20" in finding


# --- what must pass -------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("name", [*list(RULES)[:4], *(str(path) for path in Path("strategies").glob("*.py"))])
def test_the_reference_strategies_pass(market, name, check):
    strategy, random = load_strategy(name), np.random.default_rng(0)
    market = replace(market, extra=ExtraData({"sentiment": random.normal(size=market.shape)}, NAMES))
    traded = market.benchmark_market() if strategy.trades_benchmark and check is quick else market
    assert check(strategy, traded).findings == ()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    simulated = simulate_market(names=6, days=130, seed=3)
    return simulated, tiny_train(simulated, tmp_path_factory.mktemp("trained") / "agent")


@BOTH
def test_a_trained_agent_passes(trained, check):
    simulated, agent = trained
    for strategy in (agent, *agent.variants):
        verdict = check(strategy, simulated, days=3)
        assert sentences(verdict) == verdict.undated == ()


@BOTH
def test_a_trained_agent_on_a_leaking_feature_is_caught(trained, tmp_path, check):
    simulated, _ = trained
    agent = tiny_train(simulated, tmp_path / "agent", features=("return_5", shifted))
    assert any(
        finding.startswith("feature shifted: first leak on") for finding in sentences(check(agent, simulated, days=3))
    )


@BOTH
def test_remembering_is_no_leak(market, check):
    class Remembers(Strategy):
        every = 3

        def __init__(self):
            self.tickers, self.days, self.past, self.views, self.closes = list("ABC"), [], {}, [], []
            self.plan = {f"{day!s:.10}": i for i, day in enumerate(market.dates)}
            self.slots = np.zeros(market.shape)

        def decide(self, view):
            weights = top_k(view.closes(5)[-1] / view.closes(5)[0], 3, among=view.tradable)
            self.days.append(view.date)
            self.past[view.date] = weights
            self.views.append(view)
            self.closes.append(view.closes(1)[0])
            self.slots[view._row] = weights
            self.seen = view._market.close[: view._row + 1].copy()
            return weights

    assert check(Remembers(), market).findings == ()


@BOTH
def test_importing_while_it_decides_is_no_leak(market, check):
    class Lazy(Strategy):
        def decide(self, view):
            import scipy.stats

            ranks = scipy.stats.rankdata(np.nan_to_num(view.closes(1)[0]))
            return top_k(ranks, 3, among=view.tradable)

    assert check(Lazy(), market, days=2).findings == ()


@BOTH
def test_what_an_audit_leaves_behind(market, check):
    """Nothing: globals, class attributes and generators of random numbers are as before."""
    tables = {}

    def memoised(on):
        if "close" not in tables:
            tables["close"] = on.close
        return on.close

    np.random.seed(7)
    torch.manual_seed(7)

    class Draws(Strategy):
        def decide(self, view):
            return np.random.rand(len(view.tickers)) * view.tradable * torch.rand(1).item() / 20

    first = np.random.get_state()[1].copy(), torch.get_rng_state()
    check(Ranks(memoised), market, days=2)
    assert "NOT REPEATABLE" in str(check(Draws(), market, days=2))
    np.testing.assert_array_equal(np.random.get_state()[1], first[0])
    assert torch.equal(torch.get_rng_state(), first[1])
    assert tables == {}
