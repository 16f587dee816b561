"""The audit: sampled days, comparison and findings; markets cut after a day, fills and first prices."""

import json

import numpy as np
import pytest
from made_errors import refused
from made_markets import NAN, make_market, random_market
from made_strategies import does

import finpod
from finpod import StrategyError, simulate_market
from finpod.files import to_json
from finpod.lookahead.audit import UNCHECKED, audit
from finpod.lookahead.perturbation import back_fill_findings, sample_rows, with_noise_after
from finpod.records import Audit, Finding, Severity
from finpod.rules import EqualWeight, Momentum
from finpod.strategy import equal_parts, top_k


def quiet_market(**changes):
    """Two tickers over 200 days that never miss a bar, always members."""
    random = np.random.default_rng(3)
    close = 50 * np.cumprod(1 + random.normal(0, 0.02, (200, 2)), axis=0)
    return make_market(close, **changes)


def test_the_finding_names_the_day_the_size_and_the_ticker():
    close = np.full((8, 4), 10.0)
    close[1:, 2] = 10 * 1.1 ** np.arange(1, 8)  # C alone rises
    close[1:, [0, 1, 3]] = 10 * 0.9 ** np.arange(1, 8)[:, None]

    def one_ahead(view):
        rows = view._market.close
        return top_k(rows[min(view._row + 1, len(rows) - 1)] / rows[view._row], 1)

    market = make_market(close)
    verdict = audit(does(one_ahead), market, days=3, start=market.dates[2], end=market.dates[4])
    (finding,) = verdict.findings
    assert (finding.day, finding.subject, finding.size) == ("2024-01-02", "A", 1.0)
    assert finding.data == {"largest_on": "2024-01-02", "days": 2, "checked": 2}
    assert verdict.days == ("2024-01-02", "2024-01-03")


def test_decisions_are_compared_up_to_the_last_sampled_day(market):
    shares = []
    verdict = audit(EqualWeight(), market, days=3, progress=lambda doing, share: shares.append(share))
    assert verdict.compared == market.row_of(verdict.days[-1]) + 1
    assert (verdict.decisions, verdict.unchecked) == (129, UNCHECKED)
    assert Audit.from_record(json.loads(to_json(verdict.to_record()))) == verdict
    assert len(shares) == 1 + verdict.compared
    assert 0 == shares[0] == min(shares) < max(shares) <= 1


def test_a_strategy_that_fails_by_itself_is_an_error(market):
    fails = does(lambda view: equal_parts(view.tradable) if view.step < 20 else 1 / 0)
    refused(f"failed on {market.dates[20]!s:.10}: ZeroDivisionError", audit, fails, market, error=StrategyError)


def test_a_backtest_is_audited_in_its_own_account(market, fill):
    """Cash, value and weights of the view are those of the run to the last bit."""

    def decide(view):
        odd = int(view.cash * 1e3) % 2 + int(view.equity * 1e3) % 2 + (view.held * 1e12).astype(int) % 2
        return equal_parts(view.tradable) * (0.2 + odd / 5) if view.step % 2 else None

    terms = {"fill": fill, "start": market.dates[20], "max_weight": 0.1}
    audited = finpod.backtest(does(decide, every=7), market, **terms).audit
    assert audited.passed, str(audited)
    assert audited.compared > 1


def test_days_are_sampled_from_those_with_a_decision_and_a_day_after():
    market = simulate_market(names=3, days=60)
    verdict = audit(EqualWeight(), market, days=1000, start=market.dates[40])
    assert verdict.days == tuple(f"{day!s:.10}" for day in market.dates[40:59])


def test_an_audit_of_nothing_is_refused(market):
    for options, bad in (
        ({"days": 0}, "0"),
        ({"seed": -1}, "-1"),
        ({"start": market.dates[-1]}, "2024-06-28 to 2024-06-28"),
    ):
        refused(bad, audit, Momentum(), market, **options)
    refused("str", audit, Momentum(), "sample")


def test_half_of_the_days_lie_where_the_future_shows():
    market = quiet_market()
    close, member = market.close.copy(), market.member.copy()
    close[:41, 0] = NAN  # listed on row 41
    close[80:84, 1] = NAN  # a gap: it ends on row 84
    member[120:, 1] = False
    changed, all_rows = make_market(close, member=member), np.arange(199)
    told = {40, 83, 79, 119}
    assert told <= set(sample_rows(changed, 8, 0, all_rows))
    for seed in range(20):
        rows = sample_rows(changed, 2, seed, all_rows)
        assert len(set(rows) & told) in (1, 2)
        np.testing.assert_array_equal(rows, sample_rows(changed, 2, seed, all_rows))
    drawn = {tuple(sample_rows(market, 5, seed, np.arange(20, 151))) for seed in range(30)}  # nothing changes
    assert len(drawn) > 25
    assert all(list(rows) == sorted(set(rows)) and rows[0] >= 20 and rows[-1] <= 150 for rows in drawn)


def test_noise_leaves_the_past_and_the_shapes():
    market = random_market(days=150, names=8, gaps=0.02)
    noisy = with_noise_after(market, 100, seed=3)
    for name in ("open", "close", "factor", "member", "benchmark_close"):
        before, after = getattr(market, name), getattr(noisy, name)
        np.testing.assert_array_equal(after[:101], before[:101])
        assert after.shape == before.shape
        assert not np.array_equal(after[101:], before[101:], equal_nan=True)
    ended = market.last_bar <= market.dates[100]
    np.testing.assert_array_equal(noisy.last_bar[ended], market.last_bar[ended])
    assert (noisy.last_bar[~ended] > market.dates[100]).all()
    hashes = [with_noise_after(market, 100, seed).content_hash for seed in (3, 4)]
    assert noisy.content_hash == hashes[0] != hashes[1]


def filled(first, volume=None, **tables):
    """The quiet market, with its first ticker's first bar on row `first` filled back to row 0."""
    close = quiet_market().close.copy()
    close[:first, 0] = close[first, 0]
    if volume is not None:
        tables["volume"] = np.full(close.shape, 1000.0)
        tables["volume"][:first, 0] = volume
    return make_market(close, **tables)


@pytest.mark.parametrize("volume", [0.0, NAN, None])
def test_prices_that_stand_still_until_the_first_real_bar_are_told(volume):
    market = filled(30, volume)
    (finding,) = back_fill_findings(market, 0, 199)
    first, until = (f"{market.dates[row]!s:.10}" for row in (0, 30))
    data = {"until": until, "count": 1}
    assert finding == Finding("backfilled", Severity.LOOKS_AHEAD, "data", first, "A", data=data)
    assert back_fill_findings(market, 31, 199) == []  # the window does not see them
    assert len(back_fill_findings(market, 25, 199)) == 1


def test_back_filled_tickers_are_counted_and_honest_prices_are_not_told():
    close, random = filled(30).close.copy(), random_market(days=100)
    close[:25, 1] = close[25, 1]
    assert back_fill_findings(make_market(close), 0, 199)[0].data["count"] == 2
    market = filled(60, 0.0)
    close, volume, opens = market.close.copy(), market.volume.copy(), market.close.copy()
    close[60, 0] *= 1.05  # with the first open, which is not the first close
    assert len(back_fill_findings(make_market(close, volume=volume, open=opens), 0, 199)) == 1
    still = np.full((200, 2), 10.0)
    never_moves = make_market(still), make_market(still, volume=np.zeros((200, 2)))
    without = make_market(close, volume=volume), quiet_market(), filled(4, 0.0), filled(19), filled(30, 500.0)
    for honest in (random, *never_moves, *without):
        assert back_fill_findings(honest, 0, len(honest.dates) - 1) == []
