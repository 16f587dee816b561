import numpy as np
import pandas as pd
import pytest
from made_bars import alone, built, frame, one_name, suspicions

from finpod.market.long_bars import SUSPICIONS, RepairLog, repair_lines, suspicion_lines

PARTED = "days on which close and adj_close diverge"
ROWS = np.arange(500)
NEAR_100 = 100.0 + ROWS % 2 / 100


def test_missing_sessions_are_those_within_the_life_of_an_asset():
    days = pd.bdate_range("2024-01-02", "2024-02-09")
    bars = frame(days=days[days != "2024-01-15"])  # not a session, so it is not missing
    gone = (bars["ticker"] == "AAA") & bars["date"].isin(pd.to_datetime(["2024-01-02", "2024-01-16", "2024-01-17"]))
    gone |= (bars["ticker"] == "BBB") & ((bars["date"] > "2024-02-07") | (bars["date"] < "2024-01-04"))
    market = built(bars[~gone], calendar="XNYS")
    assert suspicions(market) == {
        "sessions without a bar": [("AAA", "2024-01-16"), ("AAA", "2024-01-17")],
        "series that end early": [("BBB", "2024-02-07")],
    }
    market = built(bars[bars["date"] != "2024-01-16"], calendar="XNYS")
    assert suspicions(market) == {"sessions without a bar": [(name, "2024-01-16") for name in ("AAA", "BBB", "QQQ")]}


def with_steps(steps):
    """Closes near 100 with the log steps {rows: step} of adj_close / close."""
    step = np.zeros(500)
    for rows, size in steps:
        step[rows] += size
    return one_name(NEAR_100, adj_close=NEAR_100 * np.exp(np.cumsum(step) - step.sum()))


@pytest.mark.parametrize(
    ("steps", "day"),
    [
        ([(slice(60, None, 60), 0.005)], None),
        ([(slice(60, None, 60), 0.005), (300, 0.04)], "2025-02-25"),
        ([(250, 0.04)], "2024-12-17"),  # the only one
        ([([200, 400], 0.04)], None),  # two of the same size are usual
    ],
)
def test_large_distributions_are_those_beyond_the_usual(steps, day):
    bars = with_steps(steps)
    assert suspicions(alone(bars)) == ({PARTED: [("AAA", day)]} if day else {})
    step = np.log(bars["adj_close"] / bars["adj_close"].shift())
    listed = alone(bars.assign(dividend=(100 * (1 - np.exp(-step))).where(step > 1e-3, 0)))
    assert listed.manifest["suspicions"] == listed.manifest["repairs"] == []


def test_jumps_of_the_size_of_a_split():
    market = alone(one_name([100.0, 101, 25.3, 25.2, 75.6, 76]))
    assert suspicions(market) == {"jumps of the size of a split": [("AAA", "2024-01-04"), ("AAA", "2024-01-08")]}
    sentences = [entry["sentence"] for entry in market.manifest["suspicions"]]
    assert "4:1" in sentences[0]
    assert "1:3" in sentences[1]


def test_all_are_counted_and_the_first_listed():
    log = RepairLog()
    dates = np.arange("2020-01-01", "2021-01-01", dtype="datetime64[D]").astype("datetime64[ns]")
    log.suspect("odd", ["AAA"] * 366, dates, ("why" for _ in dates))
    log.repair("mended", ["AAA"] * 366, dates, "close", np.arange(366.0), 1.0)
    log.repair("mended", ["BBB"], dates[:1], "close", np.array([5e6]), 1.0)
    log.repair("nothing", [], dates[:0], "close", np.array([]))
    content = log.content()
    assert content["suspicion_counts"] == {"odd": 366}
    assert len(content["suspicions"]) == SUSPICIONS
    (mended,) = content["repairs"]
    assert (mended["kind"], mended["count"], len(mended["places"])) == ("mended", 367, 20)
    lines = repair_lines(content)
    assert lines[:2] == ["mended: 367", "  AAA 2020-01-01 close 0 -> 1"]
    assert lines[-1] == "  and 362 more"
    assert suspicion_lines(content)[-1] == "  and 166 more"
    assert repair_lines({"repairs": {}}) == suspicion_lines({}) == []
