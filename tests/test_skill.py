"""Intervals, verdicts and deflated ratios of a result, their sentences, and those on its audit."""

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
from made_commands import run
from made_errors import refused
from made_markets import random_market
from made_results import make_result
from made_strategies import Holds, does
from scipy.stats import binomtest

import finpod
from finpod import Strategy, top_k
from finpod.backtesting.sentences import audit_outcome, doubt, verdict_lines
from finpod.evidence import skill
from finpod.evidence.skill import (
    ANCHOR,
    BENCHMARK,
    MEASURED,
    RESAMPLES,
    SAMPLING,
    Code,
    code_of,
    evidence,
    excess_growth,
    verdict_of,
    widened,
)
from finpod.records import Severity
from finpod.rules import Momentum
from finpod.significance import Interval, expected_best, minimum_length, probabilistic_sharpe

DAYS = 756


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch):
    assert RESAMPLES == 10_000
    monkeypatch.setattr(skill, "RESAMPLES", 1000)


def curve(steps, index):
    return pd.Series(1e6 * np.cumprod(np.append(1, 1 + steps)), index)


def against(mean, sd=0.002, trials=1, **changes):
    """A result that differs from equal weight by normal returns of the given mean and deviation."""
    random = np.random.default_rng(0)
    base = random.normal(0.0004, 0.01, DAYS)
    own = base + random.normal(mean, sd, DAYS)
    made = make_result(days=DAYS, names=3, trials=trials)
    changes = {"equal_weight_equity": curve(base, made.equity.index), **changes}
    return make_result(curve(own, made.equity.index), names=3, trials=trials, **changes)


@pytest.mark.parametrize(("mean", "trials", "code"), [
    (0.00005, 1, Code.NOT_DISTINGUISHABLE),
    (0.0008, 1, Code.MORE),
    (-0.0008, 1, Code.WORSE),
    (0.0003, 1, Code.MORE),
    (0.0003, 400, Code.NOT_DISTINGUISHABLE),  # the best of many
])  # fmt: skip
def test_noise_is_luck_an_edge_is_more_and_a_loss_is_worse(mean, trials, code):
    result = against(mean, trials=trials)
    spans = excess_growth(result)
    assert list(spans) == [ANCHOR, BENCHMARK]
    assert code_of(spans[ANCHOR]) is code
    assert evidence(result)["verdicts"][ANCHOR] == code.value
    assert ("400" in verdict_lines(result)[0]) == (trials == 400)


def test_trials_count_only_where_the_choice_was_made():
    before = {"trials": 24, "trained_until": "2016-12-30"}
    asked = ({}, {"opened": 3}, {"in_sample": True}, {"in_sample": True, "opened": 2}, {"trained_until": None})
    made = [against(0.0004, **{**before, **changes}) for changes in asked]
    assert [result.candidates for result in made] == [1, 3, 24, 48, 24]
    found = [evidence(result) for result in made]
    assert [figures["trials"] for figures in found] == [24] * 5
    once = found[0]["deflated_active_sharpe"]
    powers = [once**result.candidates for result in made]
    assert [figures["deflated_active_sharpe"] for figures in found] == pytest.approx(powers)
    assert found[0]["deflated_sharpe"] == found[0]["probabilistic_sharpe"]


@pytest.mark.parametrize(("mean", "opened"), [(0.00005, 1), (0.0003, 400)])
def test_the_plain_function_says_what_the_result_says(mean, opened):
    result = against(mean, opened=opened)
    returns = [np.diff(curve) / curve[:-1] for curve in (result.equity.to_numpy(), result.anchor_equity.to_numpy())]
    code, interval = verdict_of(*returns, opened=opened, resamples=skill.RESAMPLES)
    assert code is code_of(excess_growth(result)[ANCHOR])
    assert interval == pytest.approx(excess_growth(result)[ANCHOR], rel=1e-9, abs=1e-12)


def test_a_widened_interval_errs_as_seldom_for_the_best_of_many():
    """Normal estimates of zero, the best of 24: its lower end is above zero in 2.5 % of cases."""
    plain, normal = Interval(-1.96, 0.0, 1.96, 0.95), NormalDist()
    assert widened(plain, 1) is plain
    wide = widened(plain, 24)
    assert -wide.low == pytest.approx(normal.inv_cdf(0.975 ** (1 / 24)), rel=1e-4)
    assert wide.level == pytest.approx(1 - 2 * (1 - 0.975 ** (1 / 24)))
    best = np.random.default_rng(0).normal(0, 1, (20_000, 24)).max(axis=1)
    low, high = binomtest((best + wide.low > 0).sum(), len(best)).proportion_ci(method="wilson")
    assert low < 0.025 < high
    refused("opened is 0", widened, plain, 0)


@pytest.mark.parametrize("ratio", [0.0, 0.7])
def test_skill_is_found_as_often_as_theory_says(ratio):
    """Independent normal active returns of a yearly information ratio: without skill, one in forty is more than luck."""
    weeks, years, markets, deviation = 52, 8, 400, 0.005
    drift = ratio * deviation / math.sqrt(weeks)
    active = np.random.default_rng(2).normal(drift, deviation, (markets, years * weeks))
    codes = [verdict_of(own, np.zeros(len(own)), resamples=200, periods_per_year=weeks)[0] for own in active]
    low, high = binomtest(codes.count(Code.MORE), markets).proportion_ci(method="wilson")
    assert low < NormalDist().cdf(ratio * math.sqrt(years) - 1.96) < high


def test_evidence_is_the_intervals_and_the_ratios():
    result = against(0.0004, trials=12)
    found = evidence(result)
    steps, base = (np.diff(curve) / curve[:-1] for curve in (result.equity.to_numpy(), result.anchor_equity.to_numpy()))
    active, sd = steps - base, 1 / math.sqrt(DAYS / 252)
    best = expected_best(12, sd)
    assert list(found["intervals"]) == ["strategy", ANCHOR, BENCHMARK]
    assert found["intervals"]["strategy"]["sharpe"]["estimate"] == pytest.approx(result.metrics.sharpe)
    drawdown = result.metrics.max_drawdown - result.benchmark_metrics.max_drawdown
    assert found["intervals"][BENCHMARK]["max_drawdown"]["estimate"] == pytest.approx(drawdown)
    expected = {
        "probabilistic_sharpe": probabilistic_sharpe(steps),
        "deflated_sharpe": probabilistic_sharpe(steps, best),
        "deflated_active_sharpe": probabilistic_sharpe(active) ** 12,
        "minimum_years": minimum_length(steps, best, level=0.975) / 252,
        "minimum_active_years": minimum_length(active, level=0.975 ** (1 / 12)) / 252,
        **{"trial_sd": sd, "expected_best": best, "candidates": 12, "level": 0.95, "resamples": 1000, "fan_size": 0},
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    assert found["trial_sd_source"] == SAMPLING
    assert np.isnan([found["overfitting"], found["fan_beaten"], found["validation_luck"]]).all()


def test_what_the_search_measured_is_taken_from_it():
    result = against(0.0004, trials=12, search={"trials": 12, "sharpe_sd": 0.25, "overfitting": 0.4})
    found = evidence(result)
    assert (found["trial_sd"], found["trial_sd_source"], found["overfitting"]) == (0.25, MEASURED, 0.4)
    assert found["expected_best"] == found["validation_luck"] == expected_best(12, 0.25)
    before = evidence(replace(result, trained_until="2016-12-30"))
    assert (before["validation_luck"], before["expected_best"]) == (expected_best(12, 0.25), 0.0)
    unknown = evidence(replace(result, search={"sharpe_sd": None, "overfitting": None}))  # as read back from JSON
    assert unknown["trial_sd_source"] == SAMPLING
    assert math.isnan(unknown["overfitting"])


def test_sentences_hold_the_digits_of_the_evidence():
    result = against(0.0008)
    own, bench = verdict_lines(result)
    for said, key in ((own, ANCHOR), (bench, BENCHMARK)):
        span = evidence(result)["intervals"][key]["cagr"]
        assert all(f"{100 * span[end]:+.1f}" in said for end in ("estimate", "low", "high"))
    chosen = replace(result, benchmark_equity=result.equal_weight_equity, manifest={"survivorship": True})
    assert ["hindsight" in line for line in verdict_lines(chosen)] == [False, True]


def test_the_share_of_random_portfolios_that_are_beaten():
    """Two fall on average, one rises without a fall's worth of noise, one never moves and has no Sharpe ratio."""
    result = against(0.0)
    worse, better = np.tile([0.01, -0.011], DAYS // 2), np.tile([0.01, -0.005], DAYS // 2)
    ways = (worse, 2 * worse, better, 0 * worse)
    fan = pd.DataFrame({name: curve(steps, result.equity.index) for name, steps in enumerate(ways)})
    found = evidence(replace(result, fan=fan))
    assert (found["fan_beaten"], found["fan_size"]) == (2 / 3, 4)
    assert math.isnan(evidence(replace(result, fan=fan[[3]]))["fan_beaten"])


def test_what_is_too_short_ruined_or_equal_has_no_intervals():
    short = make_result(days=10, fan=pd.DataFrame({0: make_result(days=10, seed=1).equity}))
    found = evidence(short)
    assert (found["intervals"], excess_growth(short)) == ({}, {})
    keys = ("probabilistic_sharpe", "deflated_sharpe", "deflated_active_sharpe", "fan_beaten", "overfitting")
    assert np.isnan([found[key] for key in (*keys, "minimum_years", "minimum_active_years")]).all()
    equity = np.concatenate([np.linspace(1e6, 0, 100), np.zeros(200)])
    found = evidence(make_result(equity, names=3))
    assert (found["intervals"], found["minimum_years"]) == ({}, math.inf)
    rival = make_result(days=299, equal_weight_equity=pd.Series(equity, make_result(days=299).equity.index))
    assert list(evidence(rival)["intervals"]) == ["strategy", BENCHMARK]
    assert list(excess_growth(against(0.0, sd=0.0))) == [BENCHMARK]


def test_days_that_the_benchmark_lacks_are_left_out_of_its_interval_alone():
    result = against(0.0004)
    holes = result.benchmark_equity.copy()
    holes.iloc[[5, 6, 100]] = np.nan
    gaps, whole = (evidence(one)["intervals"] for one in (replace(result, benchmark_equity=holes), result))
    assert {name: gaps[name] == whole[name] for name in whole} == {"strategy": True, ANCHOR: True, BENCHMARK: False}


LOOKS, CAN = Severity.LOOKS_AHEAD, Severity.CAN_LOOK_AHEAD


@pytest.fixture(scope="module")
def market():
    return random_market(days=200, names=8)


class Waits(Strategy):
    """Knows the next week, after 40 steps; holds the market."""

    every = 5

    def __init__(self, market):
        self.market = market

    def decide(self, view):
        if view.step < 40:
            return None
        later = view._market.close[min(view._row + 5, len(view._market.dates) - 1)]
        return top_k(later / view.closes(1)[0], 1)


@pytest.mark.parametrize(("strategy", "passed", "told"), [
    (lambda market: Momentum(20, 3), True, []),
    (Waits, False, [LOOKS, CAN]),
    (Holds, False, [CAN]),
    (lambda market: Holds(row for row in range(3)), None, ["failed"]),  # cannot be pickled
    (lambda market: does(lambda view: None), None, ["no_decision"]),
    (lambda market: does(lambda view: np.random.dirichlet(np.ones(8))), None, ["not_repeatable"]),
    (lambda market: np.full((200, 8), 1 / 8), None, ["ready_weights"]),
])  # fmt: skip
def test_the_outcome_of_the_audit_is_in_warnings_verdicts_and_text(market, tmp_path, strategy, passed, told):
    result = finpod.backtest(strategy(market), market)
    result.save(tmp_path / "run")
    for one in (result, finpod.load_result(tmp_path / "run")):
        assert one.audit.passed is passed
        warnings = [one.data for one in one.warnings if one.code in ("look_ahead", "not_audited")]
        assert [data.get("severity", data.get("reason")) for data in warnings] == told
        assert (doubt(one.audit) == "") == (passed is True)
        assert all(line.endswith(doubt(one.audit)) for line in verdict_lines(one))
        assert audit_outcome(one.audit) in str(one)


def test_the_audit_counts_the_decisions_that_it_compared(market):
    audit = finpod.backtest(Momentum(20, 3), market).audit
    assert (audit.decisions, audit.compared) == (10, 1 + market.row_of(audit.days[-1]) // 21)  # one every 21 sessions
    assert f"{audit.compared} decisions" in audit_outcome(audit)


def test_the_command_says_what_it_could_not_tell(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import finpod, random\nclass Mine(finpod.Strategy):\n    every = 21\n    def decide(self, view):\n"
        "        return {view.tickers[0]: random.random()}\n"
    )
    told = run(f"audit {file} --days 2 --start 2020-01-02 --end 2020-12-31")
    assert (told.code, "NOT REPEATABLE" in told.out) == (2, True)
