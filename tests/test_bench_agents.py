"""The command that measures agents on real days: rows that are kept, and the tables of them."""

import json

import numpy as np
import pytest

from finpod.bench import agents
from finpod.errors import InputError
from finpod.synthetic import simulate_market


@pytest.fixture
def small(monkeypatch):
    """Two tiny learners, two periods of a year or less, two seeds."""
    kinds = {"apg-linear": ("apg", {"network": "linear"}, 4, 256), "ppo": ("ppo", {}, 4, 256)}
    monkeypatch.setattr(agents, "KINDS", kinds)
    market = simulate_market(names=6, days=520)
    day = [f"{date!s:.10}" for date in market.dates]
    periods = [
        agents.Period("first", (day[360], day[410]), (day[415], day[440]), (day[445], day[480]), range(2)),
        agents.Period("second", (day[365], day[430]), (day[435], day[475]), (day[481], day[519]), range(2)),
    ]
    return market, periods


def test_rows_are_made_once_and_joined_into_a_table(small, tmp_path, monkeypatch):
    market, periods = small
    agents.run(market, ["apg-linear", "ppo"], tmp_path, periods)
    assert len(list(tmp_path.iterdir())) == 2 * (2 * 2 * 2 + 1)
    row = json.loads((tmp_path / "first-ppo-dollar-volume-1.json").read_text())
    assert len(row["returns"]) == len(row["anchor_returns"]) == 35
    assert 0 < row["chosen"] <= row["steps"]
    monkeypatch.setattr(agents, "learn", lambda *given: pytest.fail("a row is there and was made again"))
    agents.run(market, ["ppo"], tmp_path, periods)
    lines = agents.table(tmp_path, periods).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| apg-linear", "| apg-linear", "| ppo", "| ppo", "| equal-weight, weekly", "| dollar-volume, weekly", "| benchmark"
    ]  # fmt: skip
    (tmp_path / "second-ppo-equal-weight-0.json").unlink()
    (tmp_path / "second-ppo-equal-weight-1.json").unlink()
    assert "| ppo | equal-weight |" not in agents.table(tmp_path, periods)


def test_an_unknown_learner_is_named(small, tmp_path):
    with pytest.raises(InputError, match="unknown learner 'sac'"):
        agents.run(small[0], ["sac"], tmp_path, small[1])


def test_alpha_is_what_the_known_returns_leave():
    random = np.random.default_rng(0)
    known = random.normal(0, 0.01, (2000, 2))
    noise = random.normal(0, 0.001, 2000)
    constant, t = agents.alpha(0.0002 + known @ [1.0, 0.5] + noise, known, 252)
    assert constant == pytest.approx(0.0002 * 252, abs=3 * 0.001 / np.sqrt(2000) * 252)
    assert t == pytest.approx(0.0002 / 0.001 * np.sqrt(2000), rel=0.3)
