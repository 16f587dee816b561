"""Unfinished runs: one driver at a time, settings that may change, and equal results after a kill."""

import errno
import json
import os
import shutil
import socket
import time
from dataclasses import replace

import pytest
from made_agents import CONFIG, STEPS_AN_UPDATE, TRAIN, VALIDATION, tiny_train
from made_markets import random_market
from made_tournaments import hash_of, lines, process, wait_until

from finpod.ensemble import load_ensemble
from finpod.errors import CheckpointError, FinpodError, InputError
from finpod.storage import Store
from finpod.tournament import run_folder
from finpod.tournament.evolution import EvolutionConfig
from finpod.tournament.history import read_history
from finpod.tournament.recorded import find, is_unfinished, recorded_of
from finpod.tournament.run_folder import RunFolder, lock
from finpod.tournament.setup import Plan, Stop
from finpod.tournament.verify import verify_log
from finpod.trading.ledger import Costs

PLAN = Plan(checkpoint_steps=STEPS_AN_UPDATE)
ASYNC = replace(PLAN, mode="async")
TRIALS = 6

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


@pytest.fixture(scope="module")
def market():
    return random_market(130, 6, gaps=0.02, seed=5)


def run(market, out, plan=PLAN, **changes):
    """Three agents in two rounds of two updates."""
    return tiny_train(market, out, **{"agents": 3, "seed": 7, "plan": plan, **changes})


def interrupted(market, out, after=4, **changes):
    """The same, left alone after some trials; the folder of what is unfinished."""

    def watch(status):
        if len(status.board.log) >= after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(market, out, watch=watch, **changes)
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


def refusal(act, *arguments, **changes):
    with pytest.raises(InputError) as raised:
        act(*arguments, **changes)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def begun(place):
    """The header of its log."""
    return json.loads((place / "seed-7" / "log.jsonl").read_text().split("\n")[0][9:])["header"]


def count_pieces(monkeypatch):
    """The slices that are trained from now on."""
    from finpod.tournament import training

    pieces, run_slice = [], training.run_slice
    monkeypatch.setattr(training, "run_slice", lambda setup, piece: pieces.append(piece) or run_slice(setup, piece))
    return pieces


# --- killed and resumed


@pytest.mark.parametrize(("mode", "scheme", "stay"), [("rounds", "", 4), ("async", "local://", 3)], ids=str)
def test_d06_a_driver_that_is_killed_is_gone_on_with_and_ends_the_same(market, tmp_path, whole, mode, scheme, stay):
    """By SIGKILL, once it stays where it is; meanwhile no second driver comes in."""
    out = tmp_path / "tiny"
    storage = f"{scheme}{tmp_path}/place" if scheme else ""
    with process(CHILD, out, mode, storage, stay) as child:
        for line in child.stdout:
            if int(line) >= stay:
                break
        for changes in ({"resume": True}, {"overwrite": True}):
            told = refusal(run, market, out, replace(PLAN, mode=mode), storage=storage or None, **changes)
            assert f"is being driven by process {child.pid} on {socket.gethostname()}" in told
        child.kill()
        child.wait()
    assert not out.exists()
    assert "is an unfinished run; go on with it with resume=True" in refusal(run, market, out, storage=storage or None)
    said = []
    run(
        market,
        out,
        replace(PLAN, mode=mode),
        storage=storage or None,
        resume=True,
        progress=lambda text, _: said.append(text),
    )
    assert hash_of(out) == whole[mode]
    assert len(verify_log(out / "log-7.jsonl").log) == TRIALS
    assert [path.name for path in tmp_path.iterdir() if path.name != "place"] == ["tiny"]
    assert not list((tmp_path / "place").rglob("*.pt"))


def test_d06_nothing_that_was_finished_is_done_again(market, out, whole, monkeypatch):
    known = verify_log(out.with_name("tiny.unfinished") / "seed-7" / "log.jsonl")
    pieces = count_pieces(monkeypatch)
    run(market, out, resume=True)
    assert len(known.log) == 4
    assert len(pieces) == (TRIALS - len(known.log)) * 2
    assert hash_of(out) == whole["rounds"]
    assert lines(verify_log(out / "log-7.jsonl"))[:4] == lines(known)
    assert [path.name for path in out.parent.iterdir()] == ["tiny"]


@pytest.mark.parametrize("plan", [PLAN, ASYNC], ids=["rounds", "async"])
def test_a_whole_run_lives_at_a_url_and_is_gone_on_with_there(market, tmp_path, whole, plan):
    storage = f"memory://{tmp_path.name}/run"
    interrupted(market, tmp_path / "tiny", plan=plan, storage=storage)
    place = Store(storage)
    assert place.folders("seed-") == ["seed-7"]
    assert len(place.names("seed-7/log.jsonl.parts")) > 6
    assert list(tmp_path.iterdir()) == []
    assert "is an unfinished run" in refusal(run, market, tmp_path / "tiny", plan, storage=storage)
    run(market, tmp_path / "tiny", plan, storage=storage, resume=True)
    assert hash_of(tmp_path / "tiny") == whole[plan.mode]
    assert place.folders("seed-") == place.names() == []


def test_several_seeds_go_on_where_they_were(market, tmp_path, monkeypatch):
    expected = run(market, tmp_path / "whole" / "tiny", seeds=2)
    assert expected.trials == 2 * TRIALS
    interrupted(market, tmp_path / "tiny", after=2, seeds=2, plan=replace(PLAN, stop=Stop(trials=99)))
    seen = []

    def watch(status):
        seen.append((status.plan.seed, len(status.board.log)))
        if seen[-1] == (8, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(market, tmp_path / "tiny", seeds=2, watch=watch, resume=True)
    pieces = count_pieces(monkeypatch)
    run(market, tmp_path / "tiny", seeds=2, resume=True)
    done = {(f"8-{i}", until) for i in (0, 1) for until in (STEPS_AN_UPDATE, 2 * STEPS_AN_UPDATE)}
    assert not done & {(piece.settings.agent_id, piece.until) for piece in pieces}
    assert {piece.settings.agent_id.split("-")[0] for piece in pieces} == {"8"}
    assert hash_of(tmp_path / "tiny") == hash_of(tmp_path / "whole" / "tiny")


# --- what may change


def changed(market, out, **changes):
    """What a resume under other settings is told; the unfinished run is as it was."""
    place = Store(out.with_name(out.name + ".unfinished"))
    before = place.read("seed-7/log.jsonl"), place.names("seed-7/agents")
    told = refusal(run, market, out, resume=True, **changes)
    assert (place.read("seed-7/log.jsonl"), place.names("seed-7/agents")) == before
    assert not out.exists()
    return told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"agents": 4}, "plan.agents was 3 and is 4"),
        ({"steps": 6 * STEPS_AN_UPDATE}, "plan.steps was 128 and is 192"),
        ({"rounds": 3}, "plan.rounds was 2 and is 3"),
        ({"plan": replace(PLAN, mode="async")}, "plan.mode was 'rounds' and is 'async'"),
        ({"plan": replace(PLAN, search=EvolutionConfig(fresh=0.5))}, "plan.search.fresh was 0.25 and is 0.5"),
        ({"config": replace(CONFIG, gamma=0.8)}, "config.gamma was 0.9 and is 0.8"),
    ],
)
def test_other_settings_are_refused_by_name_and_may_be_forked(market, out, changes, told):
    found = changed(market, out, **changes)
    assert told in found
    assert "was begun with other settings" in found
    assert "fork it under another name with fork=" in found


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"features": ["return_5"]}, "task.features was ['return_5', 'volatility_21'] and is ['return_5']"),
        ({"costs": Costs(fee_bps=3)}, "task.trading.costs.fee_bps was 10.0 and is 3"),
        ({"hold": 3}, "task.trading.hold was 2 and is 3"),
        ({"fill": "close"}, "task.fill was 'open' and is 'close'"),
        ({"threads": 2}, "task.threads was 1 and is 2"),
    ],
)
def test_another_task_is_refused_and_cannot_be_forked(market, out, tmp_path, changes, told):
    found = changed(market, out, **changes)
    assert told in found
    assert "its scores would not compare" in found
    assert told in refusal(run, market, tmp_path / "fork", fork=out, **changes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.unfinished"]


def test_other_data_are_refused_with_both_hashes_named(market, out):
    found = changed(random_market(130, 6, gaps=0.02, seed=6), out)
    assert "was begun with other data" in found
    assert "give the market it was begun with" in found
    known = begun(out.with_name("tiny.unfinished"))["task"]["training_data_hash"]
    assert f"task.training_data_hash was '{known}' and is '" in found
    close = market.close.copy()
    close[VALIDATION[1] + 1 :] *= 2
    later = replace(market, close=close)
    run(later, out, resume=True)  # what comes after validation is no part of it


def test_what_no_agent_depends_on_may_change_and_is_told(market, out):
    said = []
    plan = replace(PLAN, stop=Stop(trials=5), alike=0.5, retries=1, checkpoint_steps=None)
    ensemble = run(market, out, plan, keep=1, resume=True, progress=lambda text, _: said.append(text))
    assert ensemble.trials == 5
    assert len(ensemble.members) == 1
    told = next(text for text in said if text.startswith("settings changed: "))
    assert "plan.alike 0.95 -> 0.5" in told
    assert len(verify_log(out / "log-7.jsonl").log) == 5


def test_another_seed_is_no_way_to_go_on(market, out):
    place = out.with_name("tiny.unfinished")
    for seeds in ([8], [8, 9], [0]):
        told = refusal(RunFolder.of(out).drive(resume=True, overwrite=False, seeds=seeds).__enter__)
        assert f"has a tournament of seed 7, and seed {seeds[0]}" in told
    assert (place / "seed-7" / "log.jsonl").exists()
    with RunFolder.of(out).drive(resume=True, overwrite=False, seeds=[6, 7]):
        pass
    assert not place.exists()


# --- forks


def test_a_fork_goes_on_under_other_settings_and_leaves_its_source_alone(market, out, tmp_path, half):
    plan = replace(PLAN, search=EvolutionConfig(fresh=1))
    fork = run(market, tmp_path / "fork", plan, agents=4, rounds=3, steps=6 * STEPS_AN_UPDATE, fork=out)
    assert fork.trials == TRIALS + 4  # a third round, of four agents
    begun = [
        line
        for line in fork.log
        if line["generation"] == 2 and line["agent"] not in {one["agent"] for one in fork.log[:6]}
    ]
    assert len(begun) == 2
    assert [line["parent"] for line in begun] == [None, None]
    board = verify_log(tmp_path / "fork" / "log-7.jsonl")
    assert lines(board)[:4] == lines(verify_log(half / "seed-7" / "log.jsonl"))
    before = {path.relative_to(half): path.read_bytes() for path in half.rglob("*") if path.is_file()}
    place = out.with_name("tiny.unfinished")
    assert {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "fork.unfinished").exists()


def test_a_fork_comes_from_and_goes_to_urls(market, out, tmp_path, whole):
    url = f"memory://{tmp_path.name}/fork"
    interrupted(market, tmp_path / "there" / "tiny", after=5, storage=url, fork=out)
    run(market, tmp_path / "back" / "tiny", fork=url)
    assert hash_of(tmp_path / "back" / "tiny") == whole["rounds"]
    run(market, tmp_path / "there" / "tiny", storage=url, resume=True)
    assert hash_of(tmp_path / "there" / "tiny") == whole["rounds"]


def test_a_fork_does_not_move_the_levels_at_which_agents_are_compared(market, out, tmp_path):
    for changes in ({"steps": 6 * STEPS_AN_UPDATE}, {"rounds": 3}, {"config": replace(CONFIG, num_steps=16)}):
        assert "levels of experience at [64, 128] steps" in refusal(run, market, tmp_path / "fork", fork=out, **changes)
    assert "3 rounds that share them take steps=192" in refusal(run, market, tmp_path / "fork", fork=out, rounds=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.unfinished"]
    longer = run(market, tmp_path / "fork", rounds=3, steps=6 * STEPS_AN_UPDATE, fork=out)
    assert sorted({line["steps"] for line in longer.log}) == [64, 128, 192]
    assert len(verify_log(tmp_path / "fork" / "log-7.jsonl").log) == 9


def test_a_fork_may_change_how_the_tournament_is_run(market, out, tmp_path):
    changed = run(market, tmp_path / "fork" / "tiny", replace(ASYNC, stop=Stop(trials=9)), fork=out)
    assert changed.trials == 9
    assert len(verify_log(tmp_path / "fork" / "tiny" / "log-7.jsonl").log) == 9
    interrupted(market, tmp_path / "back" / "tiny", plan=ASYNC, after=3)
    back = run(
        market, tmp_path / "again" / "tiny", rounds=3, steps=6 * STEPS_AN_UPDATE, fork=tmp_path / "back" / "tiny"
    )
    assert len(verify_log(tmp_path / "again" / "tiny" / "log-7.jsonl").log) == back.trials >= 6


def test_a_fork_of_nothing_and_one_over_another_run_are_refused(market, out, tmp_path):
    assert "there is no unfinished run at" in refusal(run, market, tmp_path / "fork", fork=tmp_path / "nothing")
    assert "there is no unfinished run at memory://" in refusal(run, market, tmp_path / "fork", fork="memory://nothing")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.unfinished"]
    for overwrite in (False, True):
        assert "cannot be forked onto itself" in refusal(run, market, out, fork=out, overwrite=overwrite)
    shutil.copytree(out.with_name("tiny.unfinished"), tmp_path / "other.unfinished")
    assert "exists already; fork under another name" in refusal(run, market, tmp_path / "other", fork=out)


def test_a_place_whose_agents_are_gone_ends_the_run_until_they_are_back(market, out, tmp_path, whole):
    """A disk that is not mounted is no failure of the agents, and must not be written down as one."""
    place = out.with_name("tiny.unfinished") / "seed-7"
    log = (place / "log.jsonl").read_bytes()
    (place / "agents").rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match=r"\.pt is missing"):
        run(market, out, resume=True)
    assert (place / "log.jsonl").read_bytes() == log
    (tmp_path / "away").rename(place / "agents")
    run(market, out, resume=True)
    assert hash_of(out) == whole["rounds"]


@pytest.fixture(scope="module")
def trained(market, tmp_path_factory):
    """The folder of a run that was left alone when all its trials had ended."""
    return interrupted(market, tmp_path_factory.mktemp("trained") / "tiny", after=TRIALS)


def best_of(log):
    """The trial with the best score, as it is to be kept, and its agent."""
    best = max(verify_log(log).log, key=lambda trial: trial.score)
    return best.number, best.agent


@pytest.mark.parametrize("how", ["missing", "damaged"])
@pytest.mark.parametrize("watched", [False, True])
def test_an_agent_that_cannot_be_read_is_named_and_the_ensemble_is_made_of_the_others(
    market, trained, tmp_path, how, watched
):
    shutil.copytree(trained, tmp_path / "tiny.unfinished")
    out, place = tmp_path / "tiny", tmp_path / "tiny.unfinished" / "seed-7"
    trial, agent = best_of(place / "log.jsonl")
    path, said = place / "agents" / f"{trial}.pt", []
    path.unlink() if how == "missing" else path.write_bytes(path.read_bytes()[:-99])
    tell = (
        {"watch": lambda status: said.append(status.remark)}
        if watched
        else {"progress": lambda text, _: said.append(text)}
    )
    ensemble = run(market, out, resume=True, keep=2, **tell)
    told = [text for text in said if text.startswith(f"agent {agent} cannot be kept: ")]
    assert len(told) == 1
    assert str(path) in told[0]
    (lost,) = ensemble.provenance["unread"]
    assert (lost["agent"], told[0]) == (agent, f"agent {agent} cannot be kept: {lost['reason']}")
    assert len(load_ensemble(out).members) == 2
    level = verify_log(out / "log-7.jsonl").log[trial].level - 1
    assert (agent, level) not in {(one["agent"], one["generation"]) for one in ensemble.provenance["members"]}
    assert ensemble.provenance["failed"] == 0
    assert len(ensemble.tried[0].T) == ensemble.trials == TRIALS  # it was tried all the same
    assert any(lost["reason"] in note for note in read_history(out).notes)


def test_where_none_can_be_read_at_the_end_one_line_says_so_and_the_run_stays(market, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "tiny.unfinished")
    agents = tmp_path / "tiny.unfinished" / "seed-7" / "agents"
    agents.rename(tmp_path / "away")
    with pytest.raises(FinpodError, match="no agent that has a validation score can be read any more; restore their"):
        run(market, tmp_path / "tiny", resume=True)
    (tmp_path / "away").rename(agents)
    assert run(market, tmp_path / "tiny", resume=True).provenance["unread"] == []


def test_an_overwrite_that_cannot_begin_leaves_what_was_there(market, out):
    place = out.with_name("tiny.unfinished")
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    refusal(run, market, out, overwrite=True, features=["retrun_5"])
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_a_fork_of_a_log_that_was_cut_short_is_gone_on_with(market, out, tmp_path, whole):
    log = out.with_name("tiny.unfinished") / "seed-7" / "log.jsonl"
    log.write_bytes(log.read_bytes()[:-9])
    run(market, tmp_path / "fork" / "tiny", fork=out)
    assert hash_of(tmp_path / "fork" / "tiny") == whole["rounds"]


# --- what there is, and what stays


def test_a_run_that_is_not_there_is_not_gone_on_with(market, tmp_path):
    for storage in (None, f"memory://{tmp_path.name}"):
        assert "there is no unfinished run at" in refusal(run, market, tmp_path / "tiny", storage=storage, resume=True)
    assert list(tmp_path.iterdir()) == []
    assert not is_unfinished(str(tmp_path / "tiny"), None)
    assert "there is no unfinished run" in refusal(find, tmp_path / "tiny")


def test_an_unfinished_run_is_not_begun_anew_unless_it_is_allowed(market, out, whole):
    assert "is an unfinished run; go on with it with resume=True, or begin anew with overwrite=True" in refusal(
        run, market, out
    )
    assert is_unfinished(str(out), None)
    assert find(out).where == find(out.with_name("tiny.unfinished")).where == str(out.with_name("tiny.unfinished"))
    ensemble = run(market, out, seed=8, overwrite=True)
    assert ensemble.provenance["seeds"] == [8]
    assert [path.name for path in out.parent.iterdir()] == ["tiny"]


def test_a_run_that_fails_before_anything_was_learnt_leaves_nothing(market, tmp_path, monkeypatch):
    from finpod.tournament import training

    def fails(setup, piece):
        raise InputError("no such data")

    monkeypatch.setattr(training, "run_slice", fails)
    assert refusal(run, market, tmp_path / "tiny") == "no such data"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("after", ["checkpoint", "resume"])
def test_a_run_that_fails_later_can_be_gone_on_with(market, tmp_path, whole, monkeypatch, after):
    from finpod.tournament import training

    run_slice, count = training.run_slice, []

    def fails(setup, piece):
        count.append(piece)
        if len(count) > (1 if after == "checkpoint" else 0):
            raise InputError("no such data")
        return run_slice(setup, piece)

    if after == "resume":
        interrupted(market, tmp_path / "tiny", after=0)
    monkeypatch.setattr(training, "run_slice", fails)
    assert refusal(run, market, tmp_path / "tiny", resume=after == "resume") == "no such data"
    monkeypatch.undo()
    run(market, tmp_path / "tiny", resume=True)
    assert hash_of(tmp_path / "tiny") == whole["rounds"]


def test_nothing_of_a_users_own_is_removed_from_the_place_of_a_run(market, tmp_path):
    place = tmp_path / "mine"
    for name in ("notes.txt", "seed-data/prices.csv", "seed-9/agents/old.pt"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("keep me")
    before = sorted(path.relative_to(place).as_posix() for path in place.rglob("*"))
    run(market, tmp_path / "tiny", storage=str(place))
    assert sorted(path.relative_to(place).as_posix() for path in place.rglob("*")) == before
    assert load_ensemble(tmp_path / "tiny").trials == TRIALS


def _unreachable(self, name):
    raise InputError("cannot read s3://runs")


def test_g18_the_log_records_what_the_next_driver_needs(market, tmp_path, monkeypatch):
    """Options that no agent depends on are those of the last driver; a market from memory has no path."""
    place = interrupted(market, tmp_path / "tiny", asked={"tensorboard": "/events"})
    where, recorded = recorded_of(str(tmp_path / "tiny"), None)
    assert where == recorded.where == str(place)
    assert recorded.plan == replace(PLAN, agents=3, keep=2, seed=7, steps=4 * STEPS_AN_UPDATE)
    assert (recorded.config, recorded.header["task"]["threads"], recorded.run.seeds) == (CONFIG, 1, [7])
    task, entry = recorded.header["task"], recorded.run
    assert (task["trading"]["hold"], task["trading"]["num_envs"], task["fill"]) == (2, 8, "open")
    days = [f"{day!s:.10}" for day in market.dates]
    assert (tuple(task["windows"]["train"]), tuple(task["windows"]["validation"])) == (
        (days[TRAIN[0]], days[TRAIN[1]]),
        (days[VALIDATION[0]], days[VALIDATION[1]]),
    )
    assert (entry.features, entry.functions) == (["return_5", "volatility_21"], [])
    assert (entry.market, recorded.header["data_title"]) == ({}, market.title)
    assert (entry.out, entry.storage) == (str(tmp_path / "tiny"), None)
    assert entry.asked == {"tensorboard": "/events"}
    named = replace(market, origin={"path": "/data/sim"})
    interrupted(named, tmp_path / "tiny", after=5, resume=True, plan=replace(PLAN, alike=0.5))
    _, recorded = recorded_of(str(place), None)
    assert (recorded.plan.alike, recorded.run.market, recorded.run.asked) == (
        0.5,
        {"path": "/data/sim"},
        {"tensorboard": "/events"},
    )
    interrupted(market, tmp_path / "fork", after=5, fork=place)
    _, recorded = recorded_of(str(tmp_path / "fork"), None)
    assert (recorded.run.out, recorded.run.market) == (str(tmp_path / "fork"), {"path": "/data/sim"})
    monkeypatch.setattr(Store, "read", _unreachable)
    assert refusal(recorded_of, str(place), None) == "cannot read s3://runs"
    monkeypatch.undo()
    run(market, tmp_path / "tiny", resume=True)
    assert "there is nothing to go on with" in refusal(recorded_of, str(tmp_path / "tiny"), None)


def test_g18_a_log_without_a_header_records_nothing(tmp_path):
    place = Store(tmp_path / "tiny.unfinished")
    for content in (b"", b'1a2b3c4d {"n":0,"kind":"beg'):
        place.write("seed-0/log.jsonl", content)
        assert recorded_of(str(tmp_path / "tiny"), None) == (str(tmp_path / "tiny.unfinished"), None)


# --- one driver at a time


def test_a_folder_is_for_one_driver_and_its_mark_is_gone_with_it(tmp_path):
    place = Store(tmp_path / "run")
    with lock(place):
        assert f"is being driven by process {os.getpid()} on" in refusal(lock(place).__enter__)
        assert (tmp_path / "run" / "lock").exists()
    assert list(tmp_path.iterdir()) == []
    with lock(place):
        place.write("notes.txt", b"")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["notes.txt"]


def test_a_folder_whose_file_system_has_no_locks_keeps_a_second_driver_out_too(tmp_path, monkeypatch):
    import fcntl

    def without(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without)
    place = Store(str(tmp_path / "run"))
    with lock(place):
        assert f"is being driven by process {os.getpid()} on" in refusal(lock(place).__enter__)
        assert (tmp_path / "run" / "lock").exists()  # the first driver's mark outlives the refusal
    assert not (tmp_path / "run").exists()
    with lock(place):
        pass


def test_a_url_is_for_one_driver_whose_mark_is_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "LEASE", 1.0)
    place = Store(f"memory://{tmp_path.name}")
    with lock(place):
        first = place.read("lock")
        wait_until(lambda: place.read("lock") != first, 10)
        time.sleep(1.1)  # longer than a mark counts, were it not renewed
        assert f"is being driven by process {os.getpid()} on" in refusal(lock(place).__enter__)
    assert place.names() == []


def test_the_mark_of_a_driver_that_is_gone_does_not_count(tmp_path):
    place = Store(f"memory://{tmp_path.name}")
    with process("") as dead:
        dead.wait()
    here, elsewhere = f"process {dead.pid} on {socket.gethostname()}", "process 1 on another-machine"
    for mark, held in (
        (f"{here}|abc|{time.time()}", False),
        (f"{elsewhere}|abc|{time.time() - run_folder.LEASE - 1}", False),
        ("nonsense", False),
        (f"{elsewhere}|abc|{time.time()}", True),
    ):
        place.write("lock", mark.encode())
        if held:
            assert f"is being driven by {elsewhere}; wait for it, or end it and 120 s more" in refusal(
                lock(place).__enter__
            )
            assert place.read("lock").decode() == mark
        else:
            with lock(place):
                assert place.read("lock").decode().startswith(f"process {os.getpid()} on ")


def test_of_two_drivers_that_begin_at_once_at_a_url_one_gives_way(tmp_path, monkeypatch):
    place = Store(f"memory://{tmp_path.name}")
    other = f"process 1 on another-machine|abc|{time.time()}".encode()
    monkeypatch.setattr(run_folder.time, "sleep", lambda seconds: place.write("lock", other))
    assert "is being driven by process 1 on another-machine" in refusal(lock(place).__enter__)
    assert place.read("lock") == other


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot write" in refusal(lock(Store(tmp_path / "file" / "run")).__enter__)
