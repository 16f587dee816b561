"""Walk-forward: causal windows, one account through all segments, and resuming."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from made_agents import CONFIG, FEATURES, SMALL
from made_errors import refusal
from made_markets import random_market
from made_tournaments import content, names
from test_schedule import FIRST, LENGTHS, backtest

import finpod
from finpod import CheckpointError, InputError, StrategyError, walk_forward
from finpod.lookahead.audit import audit
from finpod.lookahead.perturbation import with_noise_after
from finpod.significance import sharpe_error
from finpod.tournament import scheduler
from finpod.walkforward import retraining
from finpod.walkforward.schedule import schedule
from finpod.walkforward.strategy import rank_correlation, with_segments

pytestmark = pytest.mark.usefixtures("unaudited")
TINY = {**LENGTHS, **SMALL, "features": FEATURES, "config": CONFIG, "agents": 1, "rounds": 1, "keep": 1, "steps": 1}


@pytest.fixture(scope="module", autouse=True)
def plain():
    """Backtests without evidence, which takes longer than all else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retraining, "backtest", backtest)
        yield


@pytest.fixture(scope="module")
def market():
    return random_market(260, 6, gaps=0.02, seed=5)


@pytest.fixture(scope="module")
def done(market, tmp_path_factory, plain):
    """A walk-forward of four segments and two seeds: its folder and its result."""
    out = tmp_path_factory.mktemp("strategies") / "wf"
    return SimpleNamespace(out=out, result=run(market, out, seeds=2))


@pytest.fixture
def out(tmp_path):
    return tmp_path / "wf"


@pytest.fixture
def copied(done, out):
    return shutil.copytree(done.out, out)


@pytest.fixture
def trained(monkeypatch):
    """Note every ensemble that is trained; an error in `fails`, by number, is raised in its place."""
    noted = SimpleNamespace(days=[], fails={})
    train = retraining.train_ensemble

    def spy(**arguments):
        noted.days.append(arguments["train"][0])
        if error := noted.fails.pop(len(noted.days) - 1, None):
            raise error
        return train(**arguments)

    monkeypatch.setattr(retraining, "train_ensemble", spy)
    return noted


def run(market, out, **changes):
    return walk_forward(market=market, out=out, **{"start": market.dates[FIRST], **TINY, **changes})


def test_d12_what_comes_after_a_validation_changes_no_agent_chosen_on_it(market, tmp_path):
    segments = schedule(market, start=market.dates[FIRST], **LENGTHS)[:2]
    later = with_noise_after(market, market.row_of(segments[1].validation[1]))
    for name, one in (("first", market), ("later", later)):
        run(one, tmp_path / name / "wf", end=segments[1].test[1])
    for segment in segments:
        texts = [(tmp_path / name / "wf" / segment.folder / "ensemble.json").read_text() for name in ("first", "later")]
        assert texts[0] == texts[1]


def test_d12_the_strategy_passes_the_audit(market, done):
    found = audit(finpod.load_strategy(done.out), market, start=market.dates[FIRST], days=2)
    assert found.passed, str(found)


@pytest.mark.parametrize(("changes", "told"), [
    ({"embargo": -1}, "embargo is -1"), ({"task": "bonds"}, "'bonds'"), ({"check": True}, "check is"),
    ({"features": ["retrun_5"]}, "'retrun_5'"), ({"resume": True}, "wf.unfinished"),
])  # fmt: skip
def test_what_is_invalid_is_refused_in_one_line_and_leaves_nothing(market, tmp_path, changes, told):
    assert told in refusal(run, market, tmp_path / "wf", **changes)
    assert names(tmp_path) == []


def test_the_result_tells_what_each_segment_earned(market, done):
    result = done.result
    lines = result.agent["segments"]
    assert len(lines) == 4
    curves = {"total_return": result.equity, "benchmark": result.benchmark_equity}
    for kind, curve in (curves | {"equal_weight": result.equal_weight_equity}).items():
        assert np.prod([1 + line[kind] for line in lines]) == pytest.approx(curve.iloc[-1] / curve.iloc[0], rel=1e-9)
    second = market.window(*lines[1]["test"].split(" to "))
    part = slice(second[0] - FIRST, second[1] - FIRST + 2)
    own, anchor = (curve.iloc[part].pct_change().dropna() for curve in (result.equity, result.anchor_equity))
    over = own - anchor
    ratio = finpod.metrics(returns=over, periods_per_year=result.periods_per_year).sharpe
    error = sharpe_error(over.to_numpy(), periods_per_year=result.periods_per_year)
    assert lines[1]["out_of_sample_score"] == pytest.approx(ratio - error, rel=1e-9)
    assert lines[1]["over_equal_weight"] == lines[1]["total_return"] - lines[1]["equal_weight"]
    ensemble = json.loads((done.out / lines[1]["agent"] / "ensemble.json").read_text())
    scores = [one["score"] for one in ensemble["provenance"]["members"]]
    assert lines[1]["validation_score"] == pytest.approx(np.mean(scores))
    walk = result.agent["walk_forward"]
    assert (walk["segments"], walk["purge"], walk["embargo"], walk["expanding"]) == (4, 2, 2, False)
    pairs = [[line[f"{kind}_score"] for line in lines] for kind in ("validation", "out_of_sample")]
    assert walk["rank_correlation"] == rank_correlation(*pairs)
    assert result.agent["fill"] == result.fill == "open"


def test_d12_d24_all_trials_are_counted_and_each_seed_is_followed_through_all_segments(market, done, tmp_path):
    assert done.result.trials == 8
    assert [line["trials"] for line in done.result.agent["segments"]] == [2] * 4
    assert list(done.result.variants) == ["seed 0", "seed 1"]
    alone = run(market, tmp_path / "alone", seed=1)
    np.testing.assert_array_equal(done.result.variants["seed 1"], alone.equity)
    assert alone.variants == {}
    assert done.result.spread["count"]["sharpe"] == 2


def test_the_anchor_may_be_weights(market, out):
    weights = np.where(market.member & market.has_bar, 1 / market.shape[1], 0.0)
    assert run(market, out, anchor=weights, end=market.dates[FIRST + 50]).anchor == "extra:anchor"


def test_c25_the_folder_is_the_strategy_again(market, done):
    strategy = finpod.load_strategy(done.out)
    assert (strategy.name, strategy.every, strategy.trials) == ("wf", 2, 8)
    again = backtest(strategy, market, start=market.dates[FIRST])
    assert with_segments(again, strategy).to_json() == done.result.to_json()
    assert names(done.out) == [*(segment.folder for segment in strategy.segments), "walkforward.json"]
    assert names(done.out.parent) == ["wf"]


def test_d01_finished_segments_are_kept_and_gone_on_with(market, done, out, trained):
    trained.fails[2] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(market, out, seeds=2)
    kept = out.with_name("wf.unfinished")
    assert names(out.parent) == [kept.name]
    assert len(list(kept.glob("segment-*"))) == 2
    before = content(kept)
    other = with_noise_after(market, 250)
    for told, one, changes in (
        ("resume=True", market, {}),
        ("hold was 2 and is 3", market, {"hold": 3, "resume": True}),
        ("seeds was 2 and is 1", market, {"seeds": 1, "resume": True}),
        ("data was", other, {"resume": True}),
    ):
        assert told in refusal(run, one, out, **{"seeds": 2, **changes})
    assert content(kept) == before
    (kept / ".half").mkdir()  # of a process that was killed
    trained.days.clear()
    result = run(market, out, seeds=2, resume=True)
    assert len(trained.days) == 2
    assert result.to_json() == done.result.to_json()
    assert names(out.parent) == ["wf"]
    assert names(out) == names(done.out)
    trained.days.clear()
    assert run(market, out, seeds=2, resume=True).to_json() == result.to_json()  # evaluated again
    assert trained.days == []
    assert "seeds was 2 and is 3" in refusal(run, market, out, seeds=3, resume=True)


@pytest.mark.parametrize(
    ("place", "how", "trained_slices"), [(None, "resume", 5), ("p", "resume", 5), ("p", "overwrite", 8)]
)
def test_a_segment_that_had_begun_is_gone_on_with_too(market, out, monkeypatch, place, how, trained_slices):
    size = {"rounds": 2, "end": market.dates[FIRST + 50], "storage": place and str(out.with_name(place))}
    whole = run(market, out.with_name("whole") / "wf", **size)
    slices, run_slice = [], scheduler.run_slice

    def interrupted(*arguments, **named):
        slices.append(arguments)
        if len(slices) == 4:  # the second of the second segment
            raise KeyboardInterrupt
        return run_slice(*arguments, **named)

    monkeypatch.setattr(scheduler, "run_slice", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(market, out, **size)
    assert run(market, out, **size, **{how: True}).to_json() == whole.to_json()
    assert len(slices) == trained_slices


def test_an_earlier_walk_forward_is_replaced_when_allowed_and_only_when_all_is_done(market, copied, trained):
    before = (copied / "walkforward.json").read_bytes()
    assert "exists already" in refusal(run, market, copied)
    for number, left in ((0, ["wf"]), (2, ["wf", "wf.unfinished"])):  # before and after a segment is done
        trained.fails[number] = InputError("no ink; buy some")
        assert "no ink" in refusal(run, market, copied, overwrite=True)
        assert names(copied.parent) == left
    assert (copied / "walkforward.json").read_bytes() == before
    run(market, copied, overwrite=True, end=market.dates[FIRST + 50])
    assert (copied / "walkforward.json").read_bytes() != before
    assert len(list(copied.glob("segment-*"))) == 2
    assert names(copied.parent) == ["wf"]


def test_overwrite_replaces_nothing_but_a_walk_forward(market, done, copied, trained, monkeypatch):
    notes = copied / "segment-2024-07-01" / "notes.txt"
    notes.write_text("keep me")
    assert "notes.txt" in refusal(run, market, copied, overwrite=True)
    assert notes.read_text() == "keep me"
    ensemble = shutil.copytree(next(done.out.glob("segment-*")), copied.with_name("ensemble"))
    assert "ensemble" in refusal(run, market, ensemble, overwrite=True)
    monkeypatch.chdir(copied)
    assert "current folder" in refusal(run, market, copied.parent, overwrite=True)
    assert trained.days == []


def test_a_folder_that_is_not_whole_is_refused(copied):
    manifest = copied / "walkforward.json"
    content = json.loads(manifest.read_text())
    first = content["segments"][0]
    for damaged in (
        "{",
        json.dumps({**content, "segments": [{"test": ["2024-07-01"]}]}),
        json.dumps({**content, "segments": [{**first, "decides_from": "x"}]}),
    ):
        manifest.write_text(damaged)
        assert "walkforward.json" in refusal(finpod.load_strategy, copied, error=CheckpointError)
    manifest.write_text(json.dumps(content))
    one, two = sorted(copied.glob("segment-*"))[:2]
    one.rename(copied / "aside")
    assert "ensemble.json" in refusal(finpod.load_strategy, copied, error=CheckpointError)
    two.rename(one)
    (copied / "aside").rename(two)
    assert one.name.removeprefix("segment-") in refusal(finpod.load_strategy, copied, error=StrategyError)  # swapped
