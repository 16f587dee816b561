"""`MarketView`: the data visible to a decision."""

import numpy as np
import pytest
from made_errors import refused
from made_markets import NAN, last_move, make_market, random_market

from finpod.strategy import FeatureTable, MarketView, Strategy, top_k


def test_windows_end_at_the_decision_row_and_are_padded_with_nan():
    """Missing bars are never filled."""
    market = random_market(days=10, gaps=0.3)
    view = MarketView(market, 3)
    assert view.date == market.dates[3]
    np.testing.assert_array_equal(view.closes(2), market.close[2:4])
    np.testing.assert_array_equal(view.closes(7), np.vstack([np.full((3, 5), NAN), market.close[:4]]))
    np.testing.assert_array_equal(view.opens(4), market.open[:4])
    np.testing.assert_array_equal(view.benchmark(6), [NAN, NAN, *market.benchmark_close[:4]])
    np.testing.assert_array_equal(view.tradable, np.isfinite(market.close[3]))
    np.testing.assert_array_equal(view.member, market.member[3])


def test_nothing_a_view_gives_can_be_written_to():
    view = MarketView(random_market(days=10), 2, held=np.full(5, 0.1))
    windows = (view.closes(5), view.opens(5), view.benchmark(5), view.window(5, last_move))
    for array in (*windows, view.tradable, view.member, view.held, view.features(last_move)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_features_of_the_decision_day_are_computed_once_for_all_rows():
    calls, market = [], random_market(days=10, gaps=0)

    def counted(market):
        calls.append(1)
        return last_move(market)

    table = FeatureTable(market)
    for row in range(10):
        view = MarketView(market, row, table=table)
        np.testing.assert_array_equal(view.features([counted])[:, 0], last_move(market)[row].astype(np.float32))
    assert table.get(counted)[0] == ("counted",)
    assert len(calls) == 1
    view = MarketView(market, 4)
    np.testing.assert_array_equal(view.window(6, [last_move])[1:, :, 0], last_move(market)[:5].astype(np.float32))
    assert np.isnan(view.window(6, [last_move])[0]).all()
    assert view.features().shape == (5, len(view.feature_names))
    lacking = view.left_out("published")  # these bars have no highs and lows
    assert set(lacking) == {"cci_30", "dx_30"}
    assert view.features("published").shape == (5, 9 - len(lacking))


@pytest.mark.parametrize(("ask", "k"), [("closes", 0), *((name, 3) for name in ("opens", "highs", "lows", "volumes"))])
def test_what_a_view_cannot_give(ask, k):
    refused(rf"{ask}\({k}\)", getattr(MarketView(make_market([10, 11, 12]), 2), ask), k)


def test_top_k_ranks_nan_last_and_ties_by_column():
    strength = np.array([1.0, NAN, 3.0, 3.0, 2.0])
    assert top_k(strength, 2).tolist() == [0, 0, 0.5, 0.5, 0]
    assert top_k(strength, 1).tolist() == [0, 0, 1, 0, 0]
    assert top_k(strength, 9).tolist() == [0.25, 0, 0.25, 0.25, 0.25]
    assert top_k(strength, 2, among=np.array([True, True, False, True, False])).tolist() == [0.5, 0, 0, 0.5, 0]
    assert top_k(np.full(3, NAN), 2).tolist() == [0, 0, 0]
    assert top_k(np.array([-np.inf, 1.0]), 2).tolist() == [0, 1]
    for k in (0, 1.5, True):
        refused(f"k is {k}", top_k, strength, k)


def test_a_strategy_is_called_after_its_class_unless_it_says_otherwise():
    plain, named = type("Own", (Strategy,), {}), type("Own", (Strategy,), {"name": "by another name"})
    assert (plain.name, named.name, type("Below", (named,), {}).name) == ("Own", "by another name", "Below")
