"""The days an audit samples, and what it says of the market's own fills and prices."""

import numpy as np
import pytest
from made_markets import NAN, make_market, random_market

from finpod.errors import InputError
from finpod.lookahead.future import back_filled, fill_findings, sample_rows, with_noise_after
from finpod.records import Finding, Severity
from finpod.synthetic import simulate_market
from finpod.trading.execution import Execution


def quiet_market(**changes):
    """Two names over 200 days that never miss a bar, always members."""
    random = np.random.default_rng(3)
    close = 50 * np.cumprod(1 + random.normal(0, 0.02, (200, 2)), axis=0)
    return make_market(close, **changes)


# --- the days -------------------------------------------------------------------------------------------------------


def test_half_of_the_days_lie_where_the_future_shows():
    market = quiet_market()
    close, member = market.close.copy(), market.member.copy()
    close[:41, 0] = NAN  # listed on row 41
    close[80:84, 1] = NAN  # a gap: it ends on row 84
    member[120:, 1] = False
    changed = make_market(close, member=member)
    told = {40, 83, 79, 119}
    assert told <= set(sample_rows(changed, 8, 0, 0, 199))
    for seed in range(20):
        rows = sample_rows(changed, 2, seed, 0, 199)
        assert len(set(rows)) == 2
        assert set(rows) & told


def test_days_are_random_where_nothing_changes():
    market = quiet_market()
    rows = [tuple(sample_rows(market, 5, seed, 20, 150)) for seed in range(30)]
    assert len(set(rows)) > 25
    assert all(list(one) == sorted(set(one)) and one[0] >= 20 and one[-1] <= 150 and len(one) == 5 for one in rows)


def test_rows_without_any_price_before_them_are_not_sampled():
    close = quiet_market().close.copy()
    close[:50] = NAN
    assert list(sample_rows(make_market(close), 500, 0, 0, 199)) == list(range(50, 199))


def test_no_day_is_sampled_twice_and_each_has_a_row_after_it():
    market = random_market(days=40, names=4)
    assert list(sample_rows(market, 100, 0, 0, 39)) == list(range(39))
    assert len(set(sample_rows(market, 38, 0, 0, 39))) == 38
    with pytest.raises(InputError, match="no session follows"):
        sample_rows(market, 1, 0, 39, 39)


# --- fills ----------------------------------------------------------------------------------------------------------


def test_honest_fills_pass():
    for market in (random_market(days=20), simulate_market(names=3, days=20), quiet_market()):
        assert fill_findings(market, np.arange(19)) == []


@pytest.mark.parametrize("fill", ["open", "close"])
def test_a_fill_at_a_price_that_was_seen_is_named(monkeypatch, fill):
    market = simulate_market(names=3, days=30)
    honest = Execution.fill_row
    monkeypatch.setattr(
        Execution, "fill_row", lambda own, row: own.decision_row(row) if own.fill == fill else honest(own, row)
    )
    rows = np.array([7, 12])
    price = (market.open if fill == "open" else market.close)[7, 0]
    (finding,) = fill_findings(market, rows)
    assert finding == Finding(
        "fill",
        Severity.LOOKS_AHEAD,
        "fills",
        f"{market.dates[7]!s:.10}",
        market.tickers[0],
        size=pytest.approx(price),
        data={"fill": fill},
    )


def test_a_fill_of_yesterdays_price_is_caught_too(monkeypatch):
    monkeypatch.setattr(
        Execution, "fill_row", lambda own, row: abs(own.decision_row(row) - 1)
    )  # of the first, tomorrow's
    assert len(fill_findings(simulate_market(names=3, days=30), np.array([12]))) == 2


def test_the_last_decision_has_no_close_to_be_filled_at():
    market = quiet_market()
    assert fill_findings(market, np.array([len(market.dates) - 2])) == []


# --- prices that were filled backwards ------------------------------------------------------------------------------


def filled(first, volume=None, **tables):
    """The quiet market, with its first name's first bar on row `first` filled back to row 0."""
    close = quiet_market().close.copy()
    close[:first, 0] = close[first, 0]
    if volume is not None:
        tables["volume"] = np.full(close.shape, 1000.0)
        tables["volume"][:first, 0] = volume
    return make_market(close, **tables)


@pytest.mark.parametrize("volume", [0.0, NAN, None])
def test_a_name_that_stands_still_until_its_first_real_bar_is_told(volume):
    market = filled(30, volume)
    (finding,) = back_filled(market, 0, 199)
    first, until = (f"{market.dates[row]!s:.10}" for row in (0, 30))
    data = {"until": until, "count": 1}
    assert finding == Finding("backfilled", Severity.LOOKS_AHEAD, "data", first, "A", data=data)
    assert back_filled(market, 31, 199) == []  # the window does not see them
    assert len(back_filled(market, 25, 199)) == 1


def test_closes_filled_with_the_first_open_are_told():
    market = filled(30, 0.0)
    opens = market.close.copy()
    opens[30, 0] = market.close[0, 0]
    close = market.close.copy()
    close[30, 0] *= 1.05
    other = make_market(close, volume=market.volume, open=opens)
    assert [finding.kind for finding in back_filled(other, 0, 199)] == ["backfilled"]
    assert back_filled(make_market(close, volume=market.volume), 0, 199) == []


def test_several_such_names_are_counted():
    market = filled(30)
    close = market.close.copy()
    close[:25, 1] = close[25, 1]
    (finding,) = back_filled(make_market(close), 0, 199)
    assert finding.data["count"] == 2


def test_honest_prices_are_not_told():
    still = np.full((200, 2), 10.0)
    for market in (
        quiet_market(),
        random_market(days=100),
        make_market(still),  # never moves
        make_market(still, volume=np.zeros((200, 2))),
        filled(4, 0.0),  # too short to be sure
        filled(19),
        filled(30, 500.0),  # it is traded
    ):
        assert back_filled(market, 0, len(market.dates) - 1) == []


def test_a_listing_later_than_the_first_row_is_counted_from_its_first_bar():
    market = filled(60, 0.0)
    close, volume = market.close.copy(), market.volume.copy()
    close[:40, 0] = volume[:40, 0] = NAN
    (finding,) = back_filled(make_market(close, volume=volume), 0, 199)
    assert (finding.day, finding.data["until"]) == tuple(f"{market.dates[row]!s:.10}" for row in (40, 60))


def test_noise_is_noise():
    market = random_market(days=50, names=4)
    one, other = (with_noise_after(market, 20, seed) for seed in (1, 2))
    assert one.content_hash != other.content_hash
    np.testing.assert_array_equal(one.close[:21], other.close[:21])
