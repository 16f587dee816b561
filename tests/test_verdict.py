"""The sentence that says whether an excess is more than luck."""

import numpy as np
import pandas as pd
import pytest
from made_results import make_result

from finpod.verdict import RESAMPLES, excess_over, sentence, verdicts

DAYS = 756


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
    ("mean", "verdict"),
    [
        (0.00005, "not distinguishable from luck"),
        (0.0008, "more than luck explains"),
        (-0.0008, "worse than luck explains"),
    ],
)
def test_noise_is_luck_an_edge_is_more_and_a_loss_is_worse(mean, verdict):
    result = against(mean)
    assert sentence(result, result.equal_weight_equity, "equal weight").endswith(f": {verdict}")


def test_the_best_of_many_trials_is_not_judged_as_one():
    result = against(0.0008, trials=24)
    assert sentence(result, result.equal_weight_equity, "x").endswith(
        "more than luck explains if this were the only trial"
    )


def test_hindsight_is_held_against_the_excess_over_the_benchmark():
    made = against(0.0008, manifest={"survivorship": True})
    flattered = against(0.0008, manifest={"survivorship": True}, benchmark_equity=made.equal_weight_equity)
    own, bench = verdicts(flattered)
    assert own.endswith(": more than luck explains")
    assert bench.endswith("but names chosen with hindsight explain it as well")


def test_the_sentence_holds_the_figures():
    result = against(0.00005)
    found = excess_over(result, result.equal_weight_equity)
    said = sentence(result, result.equal_weight_equity, "equal weight")
    assert (
        f"{100 * found.estimate:+.1f} points a year, 95 % interval {100 * found.low:+.1f} to {100 * found.high:+.1f}"
        in said
    )
    assert found.estimate == result.metrics.cagr - result.equal_weight_metrics.cagr or np.isclose(
        found.estimate, result.metrics.cagr - result.equal_weight_metrics.cagr
    )
    assert RESAMPLES >= 1000


def test_both_comparisons_are_made_and_gaps_are_left_out():
    result = against(0.00005)
    holes = result.benchmark_equity.copy()
    holes.iloc[[5, 6, 100]] = np.nan
    said = verdicts(against(0.00005, benchmark_equity=holes))
    assert [text.split(":")[0] for text in said] == ["Excess over equal weight", "Excess over QQQ"]


def test_there_is_no_sentence_without_a_history_or_a_difference():
    short = make_result(days=10)
    assert verdicts(short) == []
    same = against(0.0, sd=0.0)
    assert excess_over(same, same.equal_weight_equity) is None
    nothing = make_result(days=DAYS, benchmark_equity=pd.Series(np.nan, make_result(days=DAYS).equity.index))
    assert len(verdicts(nothing)) == 1
