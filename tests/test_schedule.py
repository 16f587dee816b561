"""Windows of a walk-forward: in order, and tests that tile the span."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_markets import make_market

from finpod.errors import InputError
from finpod.walkforward.schedule import schedule
from finpod.walkforward.strategy import rank_correlation


@given(
    spans=st.tuples(st.integers(8, 80), st.integers(8, 40), st.integers(6, 60)),
    hold=st.integers(1, 6),
    purge=st.integers(0, 4),
    embargo=st.integers(0, 4),
    start=st.integers(130, 200),
    end=st.integers(210, 259),
    expanding=st.booleans(),
    close=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_windows_are_in_order_and_tests_tile_the_span(spans, hold, purge, embargo, start, end, expanding, close):
    market = make_market(np.full((260, 1), 10.0), open=np.full((260, 1), 10.0))
    train, validation, test = spans
    terms = {"purge": hold + purge, "embargo": embargo, "hold": hold, "fill": "close" if close else "open"}
    if train <= terms["purge"] + hold or validation <= embargo + hold:
        return
    found = schedule(market, start=market.dates[start], end=market.dates[end], train=train, validation=validation,
                     test=test, expanding=expanding, **terms)  # fmt: skip
    row = {f"{date!s:.10}": i for i, date in enumerate(market.dates)}
    assert row[found[0].test[0]] == start
    assert row[found[-1].test[1]] == end
    for before, after in pairwise(found):
        assert row[after.test[0]] == row[before.test[1]] + 1
    for i, one in enumerate(found):
        first = row[one.test[0]]
        assert (first - start) % hold == 0
        assert 0 <= first - (start + i * test) < hold
        assert row[one.decides_from] == first - close
        assert (row[one.validation[0]], row[one.validation[1]]) == (first - validation, first - 1 - embargo)
        assert row[one.train[1]] == first - validation - 1 - terms["purge"]
        assert row[one.train[0]] == (row[found[0].train[0]] if expanding else first - validation - train)
        assert row[one.test[1]] - first >= hold - 1


def test_years_and_months_go_by_the_calendar():
    market = make_market(np.full((2600, 1), 10.0), start="2008-01-02")
    found = schedule(market, start="2013-01-02", end="2016-03-31", hold=1)
    assert [one.test[0] for one in found] == ["2013-01-02", "2014-01-02", "2015-01-02", "2016-01-04"]
    assert found[0].train == ("2008-01-02", "2011-12-29")
    assert found[0].validation == ("2012-01-02", "2012-12-31")
    assert found[3].validation == ("2015-01-05", "2015-12-31")
    half = schedule(market, start="2013-08-30", end="2014-12-31", hold=1, train="2y", validation="6m", test="6m")
    assert [one.test[0] for one in half] == ["2013-08-30", "2014-02-28", "2014-09-01"]
    assert half[1].validation[0] == "2013-08-28"


def test_purge_and_embargo_are_the_hold_and_a_short_rest_belongs_to_the_segment_before():
    market = make_market(np.full((260, 1), 10.0))
    terms = {"start": market.dates[130], "train": 60, "validation": 30, "test": 40, "hold": 2}
    assert schedule(market, **terms) == schedule(market, **terms, purge=2, embargo=2)
    ends = [schedule(market, **terms | {"hold": 5}, end=market.dates[130 + last]) for last in (39, 44, 45)]
    assert [len(one) for one in ends] == [1, 1, 2]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"start": "2024-03-01"}, "2024-03-01, and the data begin on 2024-01-01"),
        ({"train": "4y"}, "train=4y"),
        ({"train": "long"}, "train is 'long'"),
        ({"validation": 0}, "validation is 0"),
        ({"test": 1.5}, "test is 1.5"),
        ({"hold": 0}, "hold is 0"),
        ({"test": 3, "hold": 8}, "test=3"),
        ({"validation": 12, "hold": 8}, "validation window before 2024-07-01 has 3 sessions"),
        ({"train": 10, "hold": 8}, "training window before 2024-07-01 has 1 sessions"),
        ({"purge": 60}, "training window before 2024-07-01 has 0 sessions"),
        ({"purge": 1}, "purge is 1"),
        ({"end": "2024-07-02"}, "from 2024-07-01 on there are 1 sessions"),
    ],
)
def test_windows_that_are_invalid_are_refused_in_one_line(changes, told):
    market = make_market(np.full((260, 1), 10.0), start="2024-01-01")
    with pytest.raises(InputError) as raised:
        schedule(
            market, **{"start": market.dates[130], "train": 60, "validation": 30, "test": 40, "hold": 2, **changes}
        )
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_rank_correlation():
    assert rank_correlation([1, 2, 3, 9], [10, 20, 30, 31]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(0.6)
    assert rank_correlation([1, 2, 3, np.nan], [1, 2, 3, -9]) == pytest.approx(1)
    for one, other in (([1, 2], [1, 2]), ([1, 1, 1], [1, 2, 3]), ([1, 2, np.nan], [1, 2, 3])):
        assert np.isnan(rank_correlation(one, other))
