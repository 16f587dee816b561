"""The experiments in backtests/experiments: saved rows, tables and exit codes."""

import sys
from functools import partial
from importlib import import_module
from itertools import product

import numpy as np
import pytest
from joblib import cpu_count

import agents
import rows
import skill
from finpod import simulate_market
from finpod.market.load import save_snapshot
from rows import markdown, run_command


@pytest.fixture
def call(capsys, monkeypatch, apart):
    """Runs a command within an empty folder; returns the exit code, stdout and stderr."""

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *words])
        code = 0
        try:
            run_command(import_module(name).main)
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(("line", "value"), [
    ("skill sac", "'sac'"), ("skill apg -w 0.7", "'0.7'"), ("skill apg -w resampled -n 1", "give -r FILE"),
    ("skill apg -n 0", "markets is 0"), ("skill apg -n 1 -j 0", "jobs is 0"),
    ("skill -r no.parquet apg", "no.parquet"), ("skill -o taken informed", "File exists: 'taken'"),
    ("agents prices taken", "taken"), ("learning chess", "'chess'"),
])  # fmt: skip
def test_a_mistake_ends_the_command(call, tmp_path, line, value):
    (tmp_path / "taken").write_text("no table")
    save_snapshot(simulate_market(names=2, days=30), tmp_path / "prices")
    code, printed, told = call(*line.split())
    assert (code, printed) == (2, "")
    assert value in told.splitlines()[-1]


def test_a_command_prints_its_tables_and_an_interruption_ends_it(call, monkeypatch):
    row = {"code": "worse", "ratio": 0.5, "seconds": 1.0}
    monkeypatch.setattr(skill, "play", lambda cell, real: {**cell._asdict(), **row})
    code, printed, told = call("skill", "informed", "-n", "1", "-j", "1")
    assert (code, len(printed.splitlines()), told) == (0, 2 + 4, "")

    def interrupt(cell, real):
        raise KeyboardInterrupt

    monkeypatch.setattr(skill, "play", interrupt)
    assert call("skill", "informed", "-n", "2", "-j", "1")[0] == 130


def test_rows_are_made_once_and_in_order(tmp_path):
    made = []
    makers = {name: lambda name=name: made.append(name) or {"name": name} for name in "ba"}
    first = rows.keep_rows(tmp_path / "rows", makers)
    assert [row["name"] for row in first] == made == ["b", "a"]
    assert "cores" in first[0]["hardware"]
    assert rows.keep_rows(tmp_path / "rows", makers) == first
    assert made == ["b", "a"]


def test_agents_are_joined_into_a_table(tmp_path, monkeypatch):
    kinds = {"apg-linear": ("apg", {"network": "linear"}, 4, 256), "ppo": ("ppo", {}, 4, 256)}
    monkeypatch.setattr(agents, "KINDS", kinds)
    market = simulate_market(names=6, days=520)
    day = [f"{date!s:.10}" for date in market.dates]
    periods = [
        agents.Period("first", (day[360], day[410]), (day[415], day[440]), (day[445], day[480]), range(2)),
        agents.Period("second", (day[365], day[430]), (day[435], day[475]), (day[481], day[519]), range(2)),
    ]
    made = agents.run(market, ["apg-linear", "ppo"], tmp_path, periods)
    assert len(made) == len(list(tmp_path.iterdir())) == 2 * (2 * 2 * 2 + 1)
    again = agents.run(market, ["ppo"], tmp_path, periods)
    lines = list(agents.table(made))
    assert [(line["learner"], line["anchor"]) for line in lines] == [
        *product(["apg-linear", "ppo"], ["equal-weight", "dollar-volume"]),
        *((name, "equal-weight") for name in ("equal-weight, weekly", "dollar-volume, weekly", "benchmark")),
    ]
    assert list(agents.table(again)) == lines[2:]
    figures = [row["test"]["turnover"] for row in again if row.get("anchor") == "equal-weight"]
    assert lines[2]["turnover"] == f"{np.mean(figures):.1f}"


def test_alpha_is_what_the_known_returns_leave():
    random = np.random.default_rng(0)
    known = random.normal(0, 0.01, (2000, 2))
    noise = random.normal(0, 0.001, 2000)
    constant, t = agents.alpha(0.0002 + known @ [1.0, 0.5] + noise, known, 252)
    assert constant == pytest.approx(0.0002 * 252, abs=3 * 0.001 / np.sqrt(2000) * 252)
    assert t == pytest.approx(0.0002 / 0.001 * np.sqrt(2000), rel=0.3)


@pytest.fixture
def brief(monkeypatch):
    monkeypatch.setattr(skill, "ROWS", {"train": (64, 160), "validation": (161, 220), "test": (221, 320)})
    monkeypatch.setattr(skill, "UPDATES", {"apg": 2, "ppo": 2})


def test_all_cells_are_asked_for_and_those_of_the_first_seeds_come_first():
    cells = skill.cells(skill.RULES, "bars.parquet")
    assert len(cells) == len({cell.name for cell in cells}) == 2 * 2 * 200 + 4 * 3 * 100
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)
    assert not any(cell.world == skill.RESAMPLED for cell in skill.cells(skill.RULES, None))
    assert [cell.name for cell in skill.cells(["apg"], None, 250, ["simulated"])][-1] == "simulated-apg-249"


def test_verdicts_come_into_the_tables(brief, tmp_path):
    real = save_snapshot(simulate_market(names=24, days=300, seed=5), tmp_path / "real")
    wanted = skill.cells(skill.RULES, str(real), markets=1)
    made = rows.keep_rows(tmp_path / "rows", {cell.name: partial(skill.play, cell, str(real)) for cell in wanted})
    assert [(row["world"], row["rule"], row["seed"]) for row in made] == wanted
    assert all(np.isfinite([*row["interval"], row["ratio"]]).all() and row["tracking_error"] > 0 for row in made)
    assert (len(list(skill.false_skill(made))), len(list(skill.power(made)))) == (4, 12)


def test_markets_without_signal_are_free_of_costs_and_the_others_take_lookbacks_and_signs_in_turn(brief):
    free = skill.market_of(skill.Cell(skill.SIMULATED, "apg", 1), None)
    assert (free.signal, skill.task_of(free, free=True).trading.costs.rate) == (0.0, 0.0)
    made = [skill.market_of(skill.Cell("1.5", "apg", seed), None) for seed in range(6)]
    drawn = {(market.lookback, np.sign(market.signal)) for market in made}
    assert drawn == {(n, s) for n in (5, 21, 63) for s in (1, -1)}


def test_rates_are_counted_beside_their_interval():
    """Wilson 1927: 5 of 200 are from 0.8 % to 7.2 % at 99 %."""
    codes = ["more_than_luck"] * 5 + ["worse"] * 3 + ["not_distinguishable"] * 192
    row = {"world": skill.SIMULATED, "rule": "apg", "tracking_error": 0.02, "seconds": 3.0}
    (line,) = skill.false_skill([{**row, "code": code} for code in codes])
    assert "| simulated | apg | 200 | 2.5% | 0.8% to 7.2% | yes | 1.5% | 2.00% | 3.0 |" in markdown([line])
    none = [{**row, "code": "worse"}] * 30  # 0 of all fails, whatever the interval
    assert [line["contains 2.5 %"] for line in skill.false_skill(none)] == ["no"]
    power = [
        {"world": "1.0", "rule": rule, "code": code, "ratio": ratio, "seconds": 0.3}
        for rule, code, ratio in (("informed", "more_than_luck", 1.0), ("apg", "not_distinguishable", 0.6))
    ]
    lines = markdown(list(skill.power(power))).splitlines()
    assert lines[-2].startswith("| 1.0 | apg | 1 | 0.0% | 0.0% to 79.3% | 80.7% |  | 0.60 | 0.60 |")
    assert lines[-1].startswith("| 1.0 | informed | 1 | 100.0% | 20.7% to 100.0% | 80.7% |  | 1.00 | 1.00 |")


@pytest.mark.slow
def test_luck_is_called_skill_one_time_in_forty_and_skill_is_seen_as_often_as_it_should_be(shared):
    real = str(shared / "data" / "nasdaq100_daily.parquet")
    wanted = {cell.name: partial(skill.play, cell, real) for cell in skill.cells(["apg", "informed"], real)}
    made = rows.keep_rows(skill.FOLDER, wanted, jobs=cpu_count())
    false = [line["contains 2.5 %"] for line in skill.false_skill(made)]
    seen = [line["contains it"] for line in skill.power(made) if line["agent"] == "informed"]
    assert (false, seen) == (["yes"] * 2, ["yes"] * 4)
