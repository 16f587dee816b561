"""The audit catches each known way of looking ahead."""

import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from made_agents import tiny_train
from made_markets import make_market
from made_strategies import DAYS, MARKET, Holds, Mixes, Ranks, all_rows, does, in_parts, kinds, made, shifted
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import RobustScaler, StandardScaler

from finpod.loading import load_strategy
from finpod.lookahead.audit import audit
from finpod.records import Severity
from finpod.rules import Momentum
from finpod.strategy import MarketView, Strategy, top_k
from finpod.synthetic import simulate_market
from finpod.trading.execution import Execution

LOOKS, CAN = Severity.LOOKS_AHEAD, Severity.CAN_LOOK_AHEAD


def scaled_on_all_rows(market):
    return (market.close - np.nanmean(market.close, axis=0)) / np.nanstd(market.close, axis=0)


_PANEL = None


def kept_in_a_global(market):
    """The next close of the first market that it was ever given."""
    global _PANEL
    if _PANEL is None:
        _PANEL = market
    later = np.searchsorted(_PANEL.dates, market.dates) + 1
    return _PANEL.close[later.clip(max=len(_PANEL.dates) - 1)] / market.close


def days_to_live(market):
    left = (market.last_bar - market.dates[:, None]).astype("timedelta64[D]").astype(float)
    return np.where(market.has_bar, left, np.nan)


def fails_without_the_future(market):
    return market.close * (market.close[DAYS - 1] > 0)


LEAKS = [shifted, scaled_on_all_rows, kept_in_a_global, days_to_live, fails_without_the_future]


def test_leaking_features_are_named():
    verdict = audit(Mixes(*map(Ranks, LEAKS)), MARKET)
    assert {finding.where for finding in verdict.findings} == {leak.__name__ for leak in LEAKS}
    assert kinds(verdict) <= {("cut", LOOKS), ("noise", LOOKS)}
    assert _PANEL is None


def test_a_trained_agent_on_a_leaking_feature_is_caught(tmp_path):
    simulated = simulate_market(names=6, days=130, seed=3)
    agent = tiny_train(simulated, tmp_path / "agent", features=("return_5", shifted))
    assert {finding.where for finding in audit(agent, simulated, days=3).findings} == {"shifted"}


def last_close(view):
    return top_k(np.nan_to_num(view._market.close[-1] / view.closes(1)[0]), 3, among=view.tradable)


class Caches(Strategy):
    """Decides by the whole panel, which it keeps in an attribute or in its class."""

    panel = None

    def __init__(self, in_class):
        self.in_class = in_class

    def decide(self, view):
        keeper = type(self) if self.in_class else self
        if keeper.panel is None or (view.step == 0 and not self.in_class):
            keeper.panel = np.nan_to_num(shifted(view._market))
        return top_k(keeper.panel[min(view._row, len(keeper.panel) - 1)], 3, among=view.tradable)


def by_a_scaler_on_all_rows(view):
    close = view._market.close
    return top_k((view.closes(1)[0] - np.nanmean(close, 0)) / np.nanstd(close, 0), 3, among=view.tradable)


CHEATS = {
    "the next close": does(lambda view: top_k(np.nan_to_num(view._market.close[view._row + 1]), 3)),
    "once invested": does(lambda view: last_close(view) if view.held.sum() > 0.5 else in_parts(view)),
    "a cached panel": Caches(in_class=False),
    "a panel cached in its class": Caches(in_class=True),
    "a scaler on all rows": does(by_a_scaler_on_all_rows),
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_decision_that_needs_the_future_looks_ahead(name):
    verdict = audit(CHEATS[name], MARKET)
    assert verdict.passed is False, str(verdict)
    assert (verdict.findings[0].kind, verdict.findings[0].severity) == ("cut", LOOKS)
    assert name != "the next close" or verdict.findings[0].size == np.inf  # it fails without the future
    assert Caches.panel is None


CARRIED = {
    "the market": lambda: MARKET,
    "market": lambda: MarketView(made(), DAYS - 1),
    "closes": all_rows,
    "a tensor": lambda: torch.tensor(all_rows()),
    "returns": lambda: all_rows()[1:] / all_rows()[:-1] - 1,
    "a frame by number": lambda: pd.DataFrame(all_rows()),
    "a frame by date": lambda: pd.DataFrame(all_rows()[-40:], MARKET.dates[-40:]),
    "dates as text": lambda: pd.DataFrame(all_rows(), MARKET.dates.astype("datetime64[D]").astype(str)),
    "a tidy frame": lambda: pd.DataFrame(all_rows(), MARKET.dates).rename_axis("day").stack().rename("x").reset_index(),
    "a Series of one ticker": lambda: pd.Series(all_rows()[:, 4], MARKET.dates),
    "a Series with a time zone": lambda: pd.Series(all_rows()[:, 4], pd.DatetimeIndex(MARKET.dates, tz="UTC")),
    "columns by date": lambda: pd.DataFrame(all_rows(), MARKET.dates).T,
    "one ticker": lambda: all_rows()[:, 3].copy(),
    "who will be a member": lambda: MARKET.member.copy(),
    "by date": lambda: dict(zip(pd.DatetimeIndex(MARKET.dates), all_rows()[:, 4], strict=True)),
    "json": lambda: dict(zip(MARKET.dates.astype("datetime64[D]").astype(str), all_rows()[:, 4].tolist(), strict=True)),
    "by ticker and day": lambda: {("A", f"{day!s:.10}"): 1.0 for day in MARKET.dates},
    "by number": lambda: {int(f"{day!s:.10}".replace("-", "")): 1.0 for day in MARKET.dates},
    "as in the US": lambda: pd.Series(1.0, pd.DatetimeIndex(MARKET.dates).strftime("%m/%d/%Y")),
    "by month": lambda: dict.fromkeys(pd.DatetimeIndex(MARKET.dates).to_period("M"), 1.0),
    "records": lambda: [{"date": f"{day!s:.10}", "close": 1.0} for day in MARKET.dates],
    "a table": lambda: pa.table({"day": MARKET.dates, "close": all_rows()[:, 4]}),
    "it": lambda: [SimpleNamespace(it=all_rows())],
}


def test_later_data_that_are_held_can_look_ahead():
    verdict = audit(Holds({name: make() for name, make in CARRIED.items()}), MARKET, days=2)
    assert kinds(verdict) == {("held", CAN)}
    assert sorted(finding.subject for finding in verdict.findings) == sorted(CARRIED), str(verdict)


PANEL = MARKET.close.copy()


def by_closure(closed_over):
    return does(lambda view: in_parts(view, closed_over[-1] > closed_over[0]))


def test_later_data_in_globals_closures_and_classes_can_look_ahead():
    of_class = type("Decides", (Momentum,), {"panel": all_rows()})(20, 3)
    verdict = audit(Mixes(does(lambda view: in_parts(view, PANEL[-1] > 0)), by_closure(all_rows()), of_class), MARKET)
    assert kinds(verdict) == {("held", CAN)}
    assert {finding.subject for finding in verdict.findings} == {"PANEL", "closed_over", "panel"}


def test_the_panel_of_an_own_module_is_caught(tmp_path, monkeypatch):
    """It is held by a module that is loaded, and read from a file if `decide` loads the module."""
    monkeypatch.syspath_prepend(tmp_path)
    np.save(tmp_path / "closes.npy", MARKET.close)
    (tmp_path / "own_panel.py").write_text(f"import numpy as np\nCLOSES = np.load({str(tmp_path / 'closes.npy')!r})\n")
    body = "class Mine(finpod.Strategy):\n    def decide(self, view):\n        {}\n        "
    body += "return finpod.top_k(own_panel.CLOSES[-1], 3)\n"
    for head, line, kind in (("import own_panel\n", "pass", "held"), ("", "import own_panel", "file")):
        (tmp_path / "mine.py").write_text("import finpod\n" + head + body.format(line))
        (finding,) = audit(load_strategy(tmp_path / "mine.py"), MARKET, days=2).findings
        assert (finding.kind, finding.severity) == (kind, CAN)
        assert kind == "held" or "closes.npy" in finding.note
        monkeypatch.delitem(sys.modules, "own_panel", raising=False)


def test_what_lies_after_its_training_it_may_not_hold():
    frame = pd.DataFrame(MARKET.close[:102], MARKET.dates[:102])
    assert audit(Holds(frame, f"{MARKET.dates[100]!s:.10}"), MARKET, days=2).findings[0].kind == "held"


def fitted(model):
    rows = np.random.default_rng(0).normal(size=(20, 2))
    return model.fit(rows, rows[:, 0])


MODELS = {
    "LinearRegression": lambda: fitted(LinearRegression()),
    "StandardScaler": lambda: ["x", fitted(StandardScaler())],
    "RobustScaler": lambda: fitted(RobustScaler()),
    "Linear": lambda: torch.nn.Linear(2, 1),
    "Sequential": lambda: SimpleNamespace(net=torch.nn.Sequential(torch.nn.Linear(2, 1))),
}


def test_fitted_models_without_a_day_can_look_ahead():
    models = {name: make() for name, make in MODELS.items()}
    unfitted = [LinearRegression(), LinearRegression, torch.nn.ReLU(), SimpleNamespace(beta_=1)]
    verdict = audit(Holds([models, unfitted]), MARKET, days=2)
    assert kinds(verdict) == {("model", CAN)}
    assert sorted(finding.note.rpartition(" ")[2] for finding in verdict.findings) == sorted(MODELS)


def test_fills_at_the_seen_close_are_caught(monkeypatch, fill):
    honest = Execution.fill_row
    seen = lambda tape, row: row - tape.lag if tape.fill == fill else honest(tape, row)  # noqa: E731
    monkeypatch.setattr(Execution, "fill_row", seen)
    verdict = audit(load_strategy("equal-weight"), MARKET, days=3)
    (finding,), row = verdict.findings, MARKET.row_of(verdict.days[0])
    assert (finding.kind, finding.severity, finding.data) == ("fill", LOOKS, {"fill": fill})
    assert finding.day == verdict.days[0]
    assert finding.size == getattr(MARKET, fill)[row, MARKET.tickers.index(finding.subject)]


def test_back_filled_prices_are_caught():
    close = MARKET.close.copy()
    close[:60, 0] = close[60, 0]
    assert ("backfilled", LOOKS) in kinds(audit(load_strategy("equal-weight"), make_market(close), days=2))
