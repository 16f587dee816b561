"""The table of false skill and power: which rows there are, what one says, and how they are counted; never how they come out."""

import json

import numpy as np
import pytest

from finpod import InputError, simulate_market
from finpod.bench import skill as bench
from finpod.devices import usable_cores
from finpod.market.snapshots import save_snapshot


@pytest.fixture
def brief(monkeypatch):
    monkeypatch.setattr(bench, "ROWS", {"train": (64, 160), "validation": (161, 220), "test": (221, 320)})
    monkeypatch.setattr(bench, "UPDATES", {"apg": 2, "ppo": 2})


def test_all_rows_are_asked_for_and_those_of_the_first_seeds_come_first():
    cells = bench.cells(bench.RULES, "bars.parquet")
    assert len(cells) == len({cell.file for cell in cells}) == 2 * 2 * 200 + 4 * 3 * 100
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)
    assert not any(cell.world == bench.RESAMPLED for cell in bench.cells(bench.RULES, None))
    assert len(bench.cells(["informed"], None, most=3)) == 4 * 3
    with pytest.raises(InputError, match="unknown rule 'sac'"):
        bench.cells(["sac"], None)


def test_rows_are_made_once_and_come_into_the_tables(brief, tmp_path):
    real = save_snapshot(simulate_market(names=24, days=300, seed=5), tmp_path / "real")
    wanted = bench.cells(bench.RULES, str(real), most=1)
    rows = bench.run(wanted, str(real), tmp_path / "rows", jobs=1)
    assert [(row["world"], row["rule"], row["seed"]) for row in rows] == wanted
    assert all(np.isfinite([*row["interval"], row["ratio"]]).all() and row["tracking_error"] > 0 for row in rows)
    file = tmp_path / "rows" / wanted[0].file
    file.write_text(json.dumps({**rows[0], "ratio": 7.0}))
    again = bench.run(wanted, str(real), tmp_path / "rows", jobs=1)
    assert again[0]["ratio"] == 7.0
    assert again[1:] == rows[1:]
    assert len(list(bench.false_skill(rows))) == 2 + 4
    assert len(list(bench.power(rows))) == 2 + 12


def test_markets_without_signal_are_free_of_costs_and_the_others_take_lookbacks_and_signs_in_turn(brief):
    free = bench.market_of(bench.Cell(bench.SIMULATED, "apg", 1), None)
    assert (free.signal, bench.task_of(free, free=True).trading.costs.rate) == (0.0, 0.0)
    made = [bench.market_of(bench.Cell("1.5", "apg", seed), None) for seed in range(6)]
    assert {(market.lookback, np.sign(market.signal)) for market in made} == {
        (n, s) for n in (5, 21, 63) for s in (1, -1)
    }
    with pytest.raises(InputError, match="file of real bars"):
        bench.market_of(bench.Cell(bench.RESAMPLED, "apg", 0), None)


def test_rates_are_counted_beside_their_interval():
    """Wilson 1927: 5 of 200 lie from 1.072 % to 5.718 % at 95 %."""
    assert bench.wilson(5, 200, 0.95) == pytest.approx((0.01072, 0.05718), abs=1e-5)
    codes = ["more_than_luck"] * 5 + ["worse"] * 3 + ["not_distinguishable"] * 192
    row = {"world": bench.SIMULATED, "rule": "apg", "tracking_error": 0.02, "seconds": 3.0}
    assert "| simulated | apg | 200 | 2.5% | 0.8% to 7.2% | yes | 1.5% | 2.00% | 3.0 |" in bench.false_skill(
        [{**row, "code": code} for code in codes]
    )
    none = [{**row, "code": "worse"}] * 30
    assert "| no |" in list(bench.false_skill(none))[-1]  # 0 of all is a failure, whatever the interval
    assert "% |  | " in list(bench.false_skill(none[1:]))[-1]  # too few to say
    power = [
        {"world": "1.0", "rule": rule, "code": code, "ratio": ratio, "seconds": 0.3}
        for rule, code, ratio in (("informed", "more_than_luck", 1.0), ("apg", "not_distinguishable", 0.6))
    ]
    lines = list(bench.power(power))
    assert lines[-2].startswith("| 1.0 | apg | 1 | 0.0% | 0.0% to 79.3% | 80.7% |  | 0.60 | 0.60 |")
    assert lines[-1].startswith("| 1.0 | informed | 1 | 100.0% | 20.7% to 100.0% | 80.7% |  | 1.00 | 1.00 |")
    assert "| no | 1.00 |" in list(bench.power(power[:1] * 30))[-1]


@pytest.mark.slow
def test_luck_is_called_skill_one_time_in_forty_and_skill_is_seen_as_often_as_it_should_be(shared):
    real = str(shared / "data" / "nasdaq100_daily.parquet")
    rows = bench.run(bench.cells(["apg", "informed"], real), real, bench.FOLDER, jobs=usable_cores())
    judged = [*bench.false_skill(rows), *(line for line in bench.power(rows) if "| informed |" in line)]
    assert len(judged) == 2 + 2 + 4
    assert all("| yes |" in line for line in judged[2:]), judged
