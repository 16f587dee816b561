"""Intervals, verdicts and deflated ratios of a result, and their sentences."""

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
from made_results import make_result

from finpod import significance
from finpod.backtesting.sentences import luck_sentence, verdict_lines
from finpod.errors import InputError
from finpod.evidence import skill
from finpod.evidence.skill import (
    ANCHOR,
    BENCHMARK,
    MEASURED,
    RESAMPLES,
    SAMPLING,
    Code,
    evidence,
    intervals_of,
    verdict_of,
    verdicts,
    widened,
)
from finpod.files import to_json
from finpod.significance import Interval, expected_best, minimum_length, probabilistic_sharpe

DAYS = 756
YEARS = ("minimum_years", "minimum_active_years")
PROBABILITIES = ("probabilistic_sharpe", "deflated_sharpe", "deflated_active_sharpe", "fan_beaten", "overfitting")


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch):
    assert RESAMPLES == 10_000
    monkeypatch.setattr(skill, "RESAMPLES", 1000)


def wilson(count, total, z=1.96):
    """The 95 % interval of a share (Wilson 1927)."""
    share, spread = count / total, z**2 / total
    centre, half = share + spread / 2, math.sqrt(spread * (share * (1 - share) + spread / 4))
    return (centre - half) / (1 + spread), (centre + half) / (1 + spread)


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


@pytest.mark.parametrize(
    ("mean", "code"),
    [(0.00005, Code.NOT_DISTINGUISHABLE), (0.0008, Code.MORE), (-0.0008, Code.WORSE)],
)
def test_noise_is_luck_an_edge_is_more_and_a_loss_is_worse(mean, code):
    result = against(mean)
    (over_anchor, _) = verdicts(result)
    assert (over_anchor.over, over_anchor.code) == (ANCHOR, code)
    assert evidence(result)["verdicts"][ANCHOR] == code.value


def test_an_excess_that_convinces_alone_does_not_as_the_best_of_many():
    alone, chosen = against(0.0003), against(0.0003, trials=400)
    assert [verdicts(result)[0].code for result in (alone, chosen)] == [Code.MORE, Code.NOT_DISTINGUISHABLE]
    assert "widened" not in verdict_lines(alone)[0]
    assert "(widened for the best of 400): not distinguishable" in verdict_lines(chosen)[0]


def test_trials_count_only_where_the_choice_was_made():
    before = {"trials": 24, "trained_until": "2016-12-30"}
    asked = ({}, {"opened": 3}, {"in_sample": True}, {"in_sample": True, "opened": 2}, {"trained_until": None})
    made = [against(0.0004, **{**before, **changes}) for changes in asked]
    assert [result.candidates for result in made] == [1, 3, 24, 48, 24]
    found = [evidence(result) for result in made]
    assert [figures["trials"] for figures in found] == [24] * 5
    once = found[0]["deflated_active_sharpe"]
    assert [figures["deflated_active_sharpe"] for figures in found] == pytest.approx(
        [once**n for n in (1, 3, 24, 48, 24)]
    )
    assert found[0]["deflated_sharpe"] == found[0]["probabilistic_sharpe"]


def test_the_plain_function_says_what_the_result_says():
    for mean, opened in ((0.00005, 1), (0.0003, 1), (0.0003, 400), (-0.0008, 24)):
        result = against(mean, opened=opened)
        base = result.anchor_equity.to_numpy()
        code, interval = verdict_of(
            result.returns.to_numpy(), base[1:] / base[:-1] - 1, opened=opened, resamples=skill.RESAMPLES
        )
        assert code is verdicts(result)[0].code
        assert interval == pytest.approx(verdicts(result)[0].interval, rel=1e-9, abs=1e-12)


def test_a_widened_interval_errs_as_seldom_for_the_best_of_many():
    """Normal estimates of zero, the best of 24: its lower end is above zero in 2.5 % of cases."""
    plain, normal = Interval(-1.96, 0.0, 1.96, 0.95), NormalDist()
    assert widened(plain, 1) is plain
    wide = widened(plain, 24)
    assert -wide.low == pytest.approx(normal.inv_cdf(0.975 ** (1 / 24)), rel=1e-4)
    assert wide.level == pytest.approx(1 - 2 * (1 - 0.975 ** (1 / 24)))
    best = np.random.default_rng(0).normal(0, 1, (20_000, 24)).max(axis=1)
    low, high = wilson(int((best + wide.low > 0).sum()), len(best))
    assert low < 0.025 < high
    with pytest.raises(InputError, match="opened is 0"):
        widened(plain, 0)


WEEKS, YEARS_LONG, MARKETS = 52, 20, 1000


def share_of_more(ratio, seed, deviation=0.005):
    """Wilson interval of how often independent normal active returns of a yearly information ratio are more than luck."""
    rows = YEARS_LONG * WEEKS
    drift = ratio * deviation / math.sqrt(WEEKS)
    active = np.random.default_rng(seed).normal(drift, deviation, (MARKETS, rows))
    codes = [verdict_of(own, np.zeros(rows), resamples=300, periods_per_year=WEEKS)[0] for own in active]
    return wilson(codes.count(Code.MORE), MARKETS)


def test_without_skill_one_in_forty_is_called_more_than_luck():
    low, high = share_of_more(0.0, seed=1)
    assert low < 0.025 < high


@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.7])
def test_skill_is_found_as_often_as_theory_says(ratio):
    low, high = share_of_more(ratio, seed=2)
    assert low < NormalDist().cdf(ratio * math.sqrt(YEARS_LONG) - 1.96) < high


def test_hindsight_is_held_against_the_excess_over_the_benchmark():
    made = against(0.0008, manifest={"survivorship": True})
    flattered = against(0.0008, manifest={"survivorship": True}, benchmark_equity=made.equal_weight_equity)
    own, bench = verdict_lines(flattered)
    assert "hindsight" not in own
    assert "hindsight" in bench


def test_there_is_no_sentence_without_a_history_or_a_difference():
    short = make_result(days=10)
    assert verdicts(short) == ()
    same = against(0.0, sd=0.0)
    assert [verdict.over for verdict in verdicts(same)] == [BENCHMARK]
    nothing = make_result(days=DAYS, benchmark_equity=pd.Series(np.nan, make_result(days=DAYS).equity.index))
    assert len(verdicts(nothing)) == 1


def test_evidence_is_the_intervals_and_the_ratios():
    result = against(0.0004, trials=12)
    found = evidence(result)
    own, base = (np.diff(np.log(curve)) for curve in (result.equity, result.equal_weight_equity))
    steps, active = np.expm1(own), np.expm1(own) - np.expm1(base)
    sd = 1 / math.sqrt(DAYS / 252)
    best = expected_best(12, sd)
    assert list(found["intervals"]) == ["strategy", ANCHOR, BENCHMARK]
    assert found["intervals"]["strategy"]["sharpe"]["estimate"] == pytest.approx(result.metrics.sharpe)
    drawdown = result.metrics.max_drawdown - result.benchmark_metrics.max_drawdown
    assert found["intervals"][BENCHMARK]["max_drawdown"]["estimate"] == pytest.approx(drawdown)
    assert found["probabilistic_sharpe"] == pytest.approx(probabilistic_sharpe(steps))
    assert found["deflated_sharpe"] == pytest.approx(probabilistic_sharpe(steps, best))
    assert found["deflated_active_sharpe"] == pytest.approx(probabilistic_sharpe(active) ** 12)
    assert found["minimum_years"] == pytest.approx(minimum_length(steps, best, level=0.975) / 252)
    assert found["minimum_active_years"] == pytest.approx(minimum_length(active, level=0.975 ** (1 / 12)) / 252)
    assert (found["candidates"], found["trial_sd"], found["expected_best"]) == (
        12,
        pytest.approx(sd),
        pytest.approx(best),
    )
    assert found["trial_sd_source"] == SAMPLING
    assert (found["level"], found["resamples"], found["fan_size"]) == (0.95, 1000, 0)
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
    assert unknown["deflated_sharpe"] < found["deflated_sharpe"]
    assert unknown["deflated_active_sharpe"] == found["deflated_active_sharpe"]
    assert math.isnan(unknown["overfitting"])


def test_sentences_and_evidence_hold_the_same_digits(monkeypatch):
    """The intervals are worked out once, whoever asks first."""
    calls, whole = [], significance.intervals
    monkeypatch.setattr(skill, "intervals", lambda *given, **settings: calls.append(1) or whole(*given, **settings))
    result = against(0.00005)
    own, bench = verdict_lines(result)
    found = evidence(result)
    assert [own, bench] == verdict_lines(result)
    assert len(calls) == 1
    for said, key in ((own, ANCHOR), (bench, BENCHMARK), (luck_sentence(result), ANCHOR)):
        span = found["intervals"][key]["cagr"]
        assert all(f"{100 * span[end]:+.1f}" in said for end in ("estimate", "low", "high"))
    lead = verdicts(result)[0].interval
    assert dict(zip(("low", "estimate", "high"), lead, strict=False)) == found["intervals"][ANCHOR]["cagr"]


def test_the_share_of_random_portfolios_that_are_beaten():
    """Two fall on average, one rises without a fall's worth of noise, one never moves and has no Sharpe ratio."""
    result = against(0.0)
    worse, better = np.tile([0.01, -0.011], DAYS // 2), np.tile([0.01, -0.005], DAYS // 2)
    fan = pd.DataFrame(
        {name: curve(steps, result.equity.index) for name, steps in enumerate((worse, 2 * worse, better, 0 * worse))}
    )
    found = evidence(replace(result, fan=fan))
    assert (found["fan_beaten"], found["fan_size"]) == (2 / 3, 4)
    assert math.isnan(evidence(replace(result, fan=fan[[3]]))["fan_beaten"])


def test_a_short_history_has_neither_intervals_nor_probabilities():
    short = make_result(days=10, fan=pd.DataFrame({0: make_result(days=10, seed=1).equity}))
    found = evidence(short)
    assert found["intervals"] == {}
    assert luck_sentence(short) == ""
    assert np.isnan([found[key] for key in (*PROBABILITIES, *YEARS)]).all()


def test_a_ruined_account_has_no_intervals():
    equity = np.concatenate([np.linspace(1e6, 0, 100), np.zeros(200)])
    found = evidence(make_result(equity, names=3))
    assert found["intervals"] == {}
    assert found["probabilistic_sharpe"] < 0.05
    assert found["minimum_years"] == math.inf
    rival = make_result(days=299, equal_weight_equity=pd.Series(equity, make_result(days=299).equity.index))
    assert list(evidence(rival)["intervals"]) == ["strategy", BENCHMARK]


def test_days_that_the_benchmark_lacks_are_left_out_of_its_interval_alone():
    result = against(0.0004)
    holes = result.benchmark_equity.copy()
    holes.iloc[[5, 6, 100]] = np.nan
    gaps, whole = (evidence(one)["intervals"] for one in (replace(result, benchmark_equity=holes), result))
    assert list(gaps) == list(whole)
    assert gaps["strategy"] == whole["strategy"]
    assert gaps[ANCHOR] == whole[ANCHOR]
    assert gaps[BENCHMARK] != whole[BENCHMARK]


def test_intraday_results_are_judged_session_by_session():
    """Two bars a session, of which the first is anywhere, and one in the first session: V_0."""
    daily = against(0.0004, trials=3)
    random = np.random.default_rng(1)

    def twice(series):
        bars = pd.concat([series * random.uniform(0.99, 1.01, len(series)), series])
        bars.index = series.index.append(series.index + pd.Timedelta(hours=6))
        return bars.sort_index().iloc[1:]

    made = {name: twice(getattr(daily, name)) for name in ("equity", "benchmark_equity", "equal_weight_equity")}
    made["anchor_equity"] = made["equal_weight_equity"]
    fine = replace(
        daily,
        **made,
        weights=twice(daily.weights["N00"]).to_frame(),
        turnover=twice(daily.turnover),
        periods_per_year=504,
    )
    assert to_json(evidence(fine)) == to_json(evidence(daily))
    assert verdicts(fine) == verdicts(daily)
    assert intervals_of(fine) == intervals_of(daily)
