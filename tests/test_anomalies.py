import numpy as np
import pandas as pd
from made_bars import alone, built, frame, one_name, suspicions

from finpod.market.long_bars import SUSPICIONS, RepairLog, repair_lines, suspicion_lines


def test_sessions_without_a_bar_are_those_inside_a_life():
    days = pd.bdate_range("2024-01-02", "2024-02-09")
    bars = frame(days=days[days != "2024-01-15"])  # no session, and none is missed
    gone = (bars["ticker"] == "AAA") & bars["date"].isin(pd.to_datetime(["2024-01-02", "2024-01-16", "2024-01-17"]))
    market = built(bars[~gone], calendar="XNYS")
    assert suspicions(market) == {"sessions without a bar": [("AAA", "2024-01-16"), ("AAA", "2024-01-17")]}
    nobody = built(bars[bars["date"] != "2024-01-16"], calendar="XNYS")
    assert suspicions(nobody) == {"sessions without a bar": [(name, "2024-01-16") for name in ("AAA", "BBB", "QQQ")]}


def test_a_series_that_ends_early_is_listed_and_a_late_start_is_not():
    bars = frame()
    bars = bars[~((bars["ticker"] == "AAA") & (bars["date"] > "2024-01-04"))]
    bars = bars[~((bars["ticker"] == "BBB") & (bars["date"] < "2024-01-04"))]
    market = built(bars)
    assert suspicions(market) == {"series that end early": [("AAA", "2024-01-04")]}
    assert "go on to 2024-01-08" in market.manifest["suspicions"][0]["sentence"]


NEAR_100 = 100.0 + np.arange(500) % 2 / 100


def quarterly(extra=0.0, at=300):
    """Five hundred closes near 100 with a dividend of 0.5 % every 60 bars, and one of `extra` at one bar."""
    step = np.zeros(500)
    step[60::60] = 0.005
    step[at] += extra
    return one_name(NEAR_100, adj_close=NEAR_100 * np.exp(np.cumsum(step) - step.sum()))


def test_large_distributions_are_those_beyond_what_is_usual():
    assert suspicions(alone(quarterly())) == {}
    market = alone(quarterly(extra=0.04))
    assert suspicions(market) == {"days on which close and adj_close part": [("AAA", "2025-02-25")]}
    yearly = quarterly().assign(adj_close=NEAR_100 * np.exp(0.04 * (np.arange(500) // 250)))
    assert suspicions(alone(pd.concat([yearly, yearly.iloc[[]]]))) == {
        "days on which close and adj_close part": [("AAA", "2024-12-17")]
    }  # the only one
    twice = yearly.assign(adj_close=NEAR_100 * np.exp(0.04 * (np.arange(500) // 200)))
    assert suspicions(alone(twice)) == {}  # two of the same size are usual


def test_a_distribution_that_the_file_lists_is_no_suspicion():
    bars = quarterly(extra=0.04, at=301)
    step = np.log(bars["adj_close"] / bars["adj_close"].shift())
    market = alone(bars.assign(dividend=(100 * (1 - np.exp(-step))).where(step > 1e-3, 0)))
    assert market.manifest["suspicions"] == []
    assert market.manifest["repairs"] == []


def test_jumps_of_the_size_of_a_split():
    market = alone(one_name([100.0, 101, 25.3, 25.2, 75.6, 76]))
    assert suspicions(market) == {"jumps of the size of a split": [("AAA", "2024-01-04"), ("AAA", "2024-01-08")]}
    sentences = [entry["sentence"] for entry in market.manifest["suspicions"]]
    assert "split of 4:1" in sentences[0]
    assert "split of 1:3" in sentences[1]


def test_all_are_counted_and_the_first_listed():
    ledger = RepairLog()
    dates = np.arange("2020-01-01", "2021-01-01", dtype="datetime64[D]").astype("datetime64[ns]")
    ledger.suspect("odd", ["AAA"] * 366, dates, ("why" for _ in dates))
    ledger.repair("mended", ["AAA"] * 366, dates, "close", np.arange(366.0), 1.0)
    ledger.repair("mended", ["BBB"], dates[:1], "close", np.array([5e6]), 1.0)
    ledger.repair("nothing", [], dates[:0], "close", np.array([]))
    content = ledger.content()
    assert content["suspicion_counts"] == {"odd": 366}
    assert len(content["suspicions"]) == SUSPICIONS
    assert [(entry["kind"], entry["count"], len(entry["places"])) for entry in content["repairs"]] == [
        ("mended", 367, 20)
    ]
    lines = repair_lines(content)
    assert lines[:2] == ["mended: 367", "  AAA 2020-01-01 close 0 -> 1"]
    assert lines[-1] == "  and 362 more"
    assert suspicion_lines(content)[-1] == "  and 166 more"
    assert repair_lines({"repairs": {}}) == suspicion_lines({}) == []
