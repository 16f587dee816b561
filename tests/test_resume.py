"""Unfinished runs: one driver at a time, settings that may change, and equal results after a kill."""

import shutil
import socket
from dataclasses import replace

import numpy as np
import pytest
from made_agents import CONFIG, STEPS_AN_UPDATE, VALIDATION, tiny_train
from made_errors import refusal
from made_markets import random_market
from made_tournaments import content, hash_of, leaving, lines, names, process

from finpod import Costs, InputError
from finpod.ensemble import load_ensemble
from finpod.tournament import run_folder, scheduler
from finpod.tournament.run_folder import driven, may_begin, recorded_of
from finpod.tournament.setup import Plan, Stop
from finpod.tournament.verify import verify_log
from finpod.walkforward.retraining import settings_of

PLAN = Plan(checkpoint_steps=STEPS_AN_UPDATE)
ASYNC = replace(PLAN, mode="async")
TRIALS = 6
LONGER = {"rounds": 3, "steps": 6 * STEPS_AN_UPDATE}

CHILD = """
import sys, time
from made_agents import STEPS_AN_UPDATE, tiny_train
from made_markets import random_market
from finpod.tournament.setup import Plan

out, mode, storage, stay = sys.argv[1:5]

def watch(status):
    print(len(status.board.log), flush=True)
    if len(status.board.log) == int(stay):
        time.sleep(600)

tiny_train(random_market(130, 6, gaps=0.02, seed=5), out, agents=3, seed=7, storage=storage or None, watch=watch,
           plan=Plan(checkpoint_steps=STEPS_AN_UPDATE, mode=mode))
"""


def run(market, out, plan=PLAN, **changes):
    """Three agents in two rounds of two updates."""
    return tiny_train(market, out, **{"agents": 3, "seed": 7, "plan": plan, **changes})


def interrupted(market, out, after=4, **changes):
    """The same, left alone after some trials; returns the folder of the unfinished run."""
    with pytest.raises(KeyboardInterrupt):
        run(market, out, watch=leaving(after), **changes)
    return out.with_name(out.name + ".unfinished")


@pytest.fixture(scope="module")
def whole(market, tmp_path_factory):
    """The hash of the ensemble of a run that nobody interrupted, by its mode."""
    folder = tmp_path_factory.mktemp("whole")
    for plan in (PLAN, ASYNC):
        run(market, folder / plan.mode / "tiny", plan)
    return {plan.mode: hash_of(folder / plan.mode / "tiny") for plan in (PLAN, ASYNC)}


@pytest.fixture(scope="module")
def half(market, tmp_path_factory):
    """The folder of an unfinished run; tests work on copies."""
    return interrupted(market, tmp_path_factory.mktemp("half") / "tiny")


@pytest.fixture
def out(half, tmp_path):
    """The output of an unfinished run that lies beside it."""
    shutil.copytree(half, tmp_path / "tiny.unfinished")
    return tmp_path / "tiny"


# --- killed and resumed


@pytest.mark.parametrize(("mode", "scheme", "stay"), [("rounds", "", 4), ("async", "local://", 3)], ids=str)
def test_d06_a_driver_that_is_killed_is_gone_on_with_and_ends_the_same(
    market, tmp_path, whole, mode, scheme, stay, monkeypatch
):
    """By SIGKILL, once it stays where it is; meanwhile no second driver comes in."""
    out, plan = tmp_path / "tiny", replace(PLAN, mode=mode)
    storage = f"{scheme}{tmp_path}/place" if scheme else None
    with process(CHILD, out, mode, storage or "", stay) as child:
        for line in child.stdout:
            if int(line) >= stay:
                break
        for changes in ({"resume": True}, {"overwrite": True}):
            told = refusal(run, market, out, plan, storage=storage, **changes)
            assert f"process {child.pid} on {socket.gethostname()}" in told
        child.kill()
        child.wait()
    assert not out.exists()
    assert "unfinished" in refusal(run, market, out, plan, storage=storage)
    monkeypatch.setattr(run_folder, "LEASE", 0.1)  # the mark of a killed driver at a URL
    run(market, out, plan, storage=storage, resume=True)
    assert hash_of(out) == whole[mode]
    assert len(verify_log(out / "log-7.jsonl").log) == TRIALS
    assert [name for name in names(tmp_path) if name != "place"] == ["tiny"]


def test_several_seeds_go_on_where_they_were(market, tmp_path, slices):
    run(market, tmp_path / "whole" / "tiny", seeds=2)

    def watch(status):
        if (status.plan.seed, len(status.board.log)) == (8, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(market, tmp_path / "tiny", seeds=2, watch=watch)
    slices.clear()
    run(market, tmp_path / "tiny", seeds=2, resume=True)
    done = {(f"8-{i}", until) for i in (0, 1) for until in (STEPS_AN_UPDATE, 2 * STEPS_AN_UPDATE)}
    assert not done & {(piece.settings.agent_id, piece.until) for _, piece in slices}
    assert {piece.settings.agent_id.split("-")[0] for _, piece in slices} == {"8"}
    assert hash_of(tmp_path / "tiny") == hash_of(tmp_path / "whole" / "tiny")


# --- settings that may change


@pytest.mark.parametrize(("changes", "told", "forks"), [
    ({"agents": 4}, "plan.agents was 3 and is 4", True),
    ({"config": replace(CONFIG, gamma=0.8)}, "config.gamma was 0.9 and is 0.8", True),
    ({"features": ["return_5"]}, "task.features was ['return_5', 'volatility_21'] and is ['return_5']", False),
    ({"costs": Costs(fee_bps=3)}, "task.trading.costs.fee_bps was 10.0 and is 3", False),
    ({"seed": 8}, "seed 7", False),
    ({"market": random_market(130, 6, gaps=0.02, seed=6)}, "task.training_data_hash was '", False),
])  # fmt: skip
def test_other_settings_are_refused_by_name_and_another_task_cannot_be_forked(market, out, changes, told, forks):
    place, said = out.with_name("tiny.unfinished"), []
    before, changes = content(place), dict(changes)
    market = changes.pop("market", market)
    refused = refusal(run, market, out, resume=True, progress=lambda text, _: said.append(text), **changes)
    assert told in refused
    assert not (told.startswith("plan.") and said)  # before features are computed
    assert ("fork=" in refused) == forks
    if not forks:
        assert told in refusal(run, market, out.with_name("fork"), fork=out, **changes)
    assert content(place) == before
    assert names(out.parent) == ["tiny.unfinished"]


def test_what_comes_after_validation_and_what_no_agent_depends_on_may_change(market, out):
    close, said = market.close.copy(), []
    close[VALIDATION[1] + 1 :] *= 2
    plan = replace(PLAN, stop=Stop(trials=5), alike=0.5, retries=1, checkpoint_steps=None)
    later = replace(market, close=close)
    ensemble = run(later, out, plan, keep=1, resume=True, progress=lambda text, _: said.append(text))
    assert (ensemble.trials, len(ensemble.members)) == (5, 1)
    assert any("plan.alike was changed from 0.95 to 0.5" in text for text in said)
    assert len(verify_log(out / "log-7.jsonl").log) == 5


# --- forks


def test_a_fork_goes_on_under_other_settings_and_leaves_its_source_alone(market, out, tmp_path):
    place = out.with_name("tiny.unfinished")
    before = content(place)
    fork = run(market, tmp_path / "fork", replace(PLAN, restart_rate=1), agents=4, fork=out, **LONGER)
    assert fork.trials == TRIALS + 4  # a third round, of four agents
    known = {one["agent"] for one in fork.log[:6]}
    begun = [line["parent"] for line in fork.log if line["generation"] == 2 and line["agent"] not in known]
    assert begun == ["-", "-"]
    assert {line["steps"] for line in fork.log} == {64, 128, 192}
    board = verify_log(tmp_path / "fork" / "log-7.jsonl")
    assert lines(board)[:4] == lines(verify_log(place / "seed-7" / "log.jsonl"))
    assert content(place) == before
    assert names(tmp_path) == ["fork", "tiny.unfinished"]


def test_a_fork_comes_from_and_goes_to_urls(market, out, tmp_path, whole):
    url, log = f"memory://{tmp_path.name}/fork", out.with_name("tiny.unfinished") / "seed-7" / "log.jsonl"
    log.write_bytes(log.read_bytes()[:-9])  # the last line is cut short
    interrupted(market, tmp_path / "there" / "tiny", after=5, storage=url, fork=out)
    run(market, tmp_path / "back" / "tiny", fork=url)
    run(market, tmp_path / "there" / "tiny", storage=url, resume=True)
    assert hash_of(tmp_path / "back" / "tiny") == hash_of(tmp_path / "there" / "tiny") == whole["rounds"]


def test_a_fork_does_not_move_the_levels_at_which_agents_are_compared(market, out, tmp_path):
    for changes in ({"rounds": 3}, {"config": replace(CONFIG, num_steps=16)}):
        assert "[64, 128]" in refusal(run, market, tmp_path / "fork", fork=out, **changes)
    assert names(tmp_path) == ["tiny.unfinished"]


def test_a_fork_of_nothing_and_one_over_another_run_are_refused(market, out, tmp_path):
    for nothing in (tmp_path / "nothing", "memory://nothing"):
        assert "nothing" in refusal(run, market, tmp_path / "fork", fork=nothing)
    assert names(tmp_path) == ["tiny.unfinished"]
    assert "onto itself" in refusal(run, market, out, fork=out, overwrite=True)
    shutil.copytree(out.with_name("tiny.unfinished"), tmp_path / "other.unfinished")
    assert "other.unfinished exists" in refusal(run, market, tmp_path / "other", fork=out)


# --- what there is, and what stays


def test_a_run_is_driven_at_its_url_and_a_moved_folder_must_give_its_output(out):
    assert driven("memory://bucket/run", None, None) == {"storage": "memory://bucket/run"}
    moved = out.with_name("tiny.unfinished").rename(out.with_name("moved"))
    assert driven(str(moved), None, out) == {"storage": str(moved)}
    assert ".unfinished" in refusal(driven, str(moved), None, None)


def test_an_unfinished_run_is_not_begun_anew_unless_it_is_allowed(market, out):
    place = out.with_name("tiny.unfinished")
    assert "resume=True" in refusal(run, market, out)
    assert not may_begin(str(out), out, None)
    before = content(place)
    refusal(run, market, out, overwrite=True, features=["retrun_5"])  # cannot begin
    assert content(place) == before
    assert run(market, out, seed=8, overwrite=True).provenance["seeds"] == [8]
    assert names(out.parent) == ["tiny"]


@pytest.mark.parametrize("after", ["nothing", "checkpoint", "resume"])
def test_a_run_that_fails_can_be_gone_on_with_if_something_was_learnt(market, tmp_path, whole, monkeypatch, after):
    run_slice, count = scheduler.run_slice, []

    def fails(setup, piece):
        count.append(piece)
        if len(count) > (after == "checkpoint"):
            raise InputError("no such data")
        return run_slice(setup, piece)

    if after == "resume":
        interrupted(market, tmp_path / "tiny", after=0)
    monkeypatch.setattr(scheduler, "run_slice", fails)
    assert refusal(run, market, tmp_path / "tiny", resume=after == "resume") == "no such data"
    monkeypatch.undo()
    assert names(tmp_path) == ([] if after == "nothing" else ["tiny.unfinished"])
    run(market, tmp_path / "tiny", resume=after != "nothing")
    assert hash_of(tmp_path / "tiny") == whole["rounds"]


def rise(market):
    return np.log(market.close / market.close[0])


def test_a_feature_function_must_not_change(market, tmp_path):
    interrupted(market, tmp_path / "own", features=(one for one in ["return_5", rise]))
    other = lambda market: -rise(market)  # noqa: E731
    other.__name__ = "rise"
    told = refusal(run, market, tmp_path / "own", features=["return_5", other], resume=True)
    assert told.startswith("task.functions.rise was 'mean "), told
    assert run(market, tmp_path / "own", features=["return_5", rise], resume=True).trials == TRIALS
    settings = [settings_of(market, [], {"features": [one]})["functions"] for one in (rise, other)]
    assert settings[0] != settings[1]


def test_nothing_of_a_users_own_is_removed_from_the_place_of_a_run(market, tmp_path):
    place = tmp_path / "mine"
    for name in ("notes.txt", "seed-data/prices.csv", "seed-9/agents/old.pt"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("keep me")
    before = content(place)
    run(market, tmp_path / "tiny", storage=str(place))
    assert content(place) == before
    assert load_ensemble(tmp_path / "tiny").trials == TRIALS


def test_g18_the_log_records_what_the_next_driver_needs(market, tmp_path, monkeypatch):
    """Options that no agent depends on are those of the last driver; a market from memory has no path."""
    place = interrupted(market, tmp_path / "tiny", metadata={"tensorboard": "/events"})
    where, recorded = recorded_of(str(tmp_path / "tiny"), None)
    assert where == recorded.where == str(place)
    assert recorded.plan == replace(PLAN, agents=3, keep=2, seed=7, steps=4 * STEPS_AN_UPDATE)
    assert (recorded.config, recorded.header["task"]["threads"], recorded.seeds) == (CONFIG, 1, [7])
    assert (recorded.features, recorded.functions) == (["return_5", "volatility_21"], {})
    assert (recorded.market, recorded.header["data_title"]) == ({}, market.title)
    assert (recorded.out, recorded.storage) == (str(tmp_path / "tiny"), None)
    named = replace(market, origin={"path": "/data/sim"})
    interrupted(named, tmp_path / "tiny", after=5, resume=True, plan=replace(PLAN, alike=0.5))
    _, recorded = recorded_of(str(place), None)
    assert (recorded.plan.alike, recorded.market) == (0.5, {"path": "/data/sim"})
    assert recorded.metadata == {"tensorboard": "/events"}
    interrupted(market, tmp_path / "fork", after=5, fork=place)
    _, recorded = recorded_of(str(tmp_path / "fork"), None)
    assert (recorded.out, recorded.market) == (str(tmp_path / "fork"), {"path": "/data/sim"})
    run(market, tmp_path / "tiny", resume=True)
    assert "finished" in refusal(recorded_of, str(tmp_path / "tiny"), None)
