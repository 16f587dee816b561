import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_agents import FEATURES, STEPS_AN_UPDATE, TRAIN, VALIDATION, alike, tiny_train
from made_errors import refused

import finpod
from finpod.ensemble import load_ensemble
from finpod.errors import FinpodError, InputError
from finpod.lookahead.perturbation import with_noise_after
from finpod.report.provenance import members
from finpod.rl.checkpoint import Checkpoint
from finpod.tasks import make_stock_task, trading_of
from finpod.tournament import scheduler
from finpod.tournament.pod import Pod
from finpod.tournament.setup import Plan
from finpod.workers.executor import Pods

pytestmark = pytest.mark.usefixtures("unaudited")


@pytest.fixture(scope="module")
def trained(market, tmp_path_factory):
    """Four agents in two rounds."""
    out = tmp_path_factory.mktemp("strategies") / "four"
    sizes = {"agents": None, "keep": None, "steps": None, "plan": Plan(agents=4, keep=2, seed=7, alike=1.0, steps=128)}
    return tiny_train(market, out, **sizes)


def task_of(market):
    """The task as `train` would lay it out."""
    days = market.dates
    trading = trading_of(hold=2, num_envs=8, start_groups=4, horizon=5)
    return make_stock_task(market, days[list(TRAIN)], days[list(VALIDATION)], trading, features=FEATURES)


def files_of(folder):
    """Text of ensemble.json, and the weights of each member."""
    checkpoints = [Checkpoint.load(path) for path in sorted(folder.glob("*.pt"))]
    return (folder / "ensemble.json").read_text(), [checkpoint.weights for checkpoint in checkpoints], checkpoints


def refusal(market, folder, kind=InputError, **changes):
    """The one line that training with `changes` ends in; nothing may be left behind."""
    before = sorted(folder.iterdir())
    raised = refused("", tiny_train, market, error=kind, **{"out": folder / "refused", **changes})
    assert sorted(folder.iterdir()) == before
    return str(raised)


def test_d01_nothing_depends_on_or_touches_the_global_seeds(market, tmp_path):
    torch.manual_seed(1)
    np.random.seed(1)
    expected = torch.rand(2), np.random.random()
    torch.manual_seed(1)
    np.random.seed(1)
    first = tiny_train(market, tmp_path / "first", agents=1, keep=1)
    assert torch.equal(torch.rand(2), expected[0])
    assert np.random.random() == expected[1]
    again = tiny_train(market, tmp_path / "again", agents=1, keep=1)
    assert alike(first.members[0].weights, again.members[0].weights)


def test_d03_members_start_apart_and_alike_in_every_run(market, tmp_path, slices):
    for name in ("first", "again"):
        tiny_train(market, tmp_path / name, agents=4, rounds=1, steps=STEPS_AN_UPDATE, seed=7)
    starts = [Pod(setup, piece.settings).policy.names.weight for setup, piece in slices]
    assert len(starts) == 8
    for i in range(4):
        assert torch.equal(starts[i], starts[i + 4])
        assert not any(torch.equal(starts[i], starts[j]) for j in range(i))
    content = json.loads((tmp_path / "first" / "ensemble.json").read_text())
    assert {line["seed"] for line in content["provenance"]["board"]} == {piece.settings.seed for _, piece in slices}


def test_d12_what_comes_after_validation_changes_nothing(market, tmp_path):
    later = with_noise_after(market, VALIDATION[1])
    assert not np.array_equal(later.last_bar, market.last_bar)
    assert later.content_hash != market.content_hash
    within = with_noise_after(market, VALIDATION[1] - 5)
    for name, one in (("first", market), ("later", later), ("within", within)):
        tiny_train(one, tmp_path / name / "tiny", seed=3)
    folders = [tmp_path / name / "tiny" for name in ("first", "later", "within")]
    (text, weights, checkpoints), (same, same_again, others), (changed, _, _) = map(files_of, folders)
    assert text == same
    assert all(map(alike, weights, same_again))
    assert [one.task_spec for one in checkpoints] == [one.task_spec for one in others]
    assert text != changed


def test_d14_the_device_is_told_and_a_missing_one_refused(market, trained, tmp_path, monkeypatch):
    assert trained.provenance["device"] == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "cuda" in refusal(market, tmp_path, device="cuda")
    refused("", Pods, gpus=0.5, about="pods.gpus")  # without Ray


def test_d12_d24_the_number_of_contenders_and_the_spread_over_the_agents_are_told(market, trained):
    assert trained.trials == len(trained.log) == 8
    result = finpod.backtest(trained, market, start=market.dates[VALIDATION[1] + 1], examine=False)
    board = dict(members(result))["All trials, ranked on validation"]
    assert len(board.rows) == result.trials == 8
    assert [row[0] for row in board.foot] == ["mean", "standard deviation", "count"]
    scores = [line["score"] for line in trained.provenance["board"]]
    column = board.head.index("Score")
    assert [row[column] for row in board.foot] == [f"{np.mean(scores):.5g}", f"{np.std(scores, ddof=1):.5g}", "8"]
    assert result.spread["count"]["sharpe"] == 2


def test_d24_several_seeds_are_whole_tournaments_side_by_side(market, tmp_path):
    several = tiny_train(market, tmp_path / "several", seeds=3, seed=11, agents=2, keep=1, rounds=1)
    alone = tiny_train(market, tmp_path / "alone", seed=12, agents=2, keep=1, rounds=1)
    assert several.runs == (11, 12, 13)
    assert several.provenance["seeds"] == [11, 12, 13]
    assert several.trials == 6
    assert alike(several.members[1].weights, alone.members[0].weights)
    result = finpod.backtest(several, market, start=market.dates[VALIDATION[1] + 1], examine=False)
    assert list(result.variants) == ["seed 11", "seed 12", "seed 13"]
    assert result.spread["count"]["sharpe"] == 3


def test_where_every_agent_fails_one_line_says_why_and_nothing_is_left(market, tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler, "run_slice", lambda setup, piece: 1 / 0)
    assert "ZeroDivisionError: division by zero" in refusal(market, tmp_path, FinpodError)


def test_names_that_are_never_members_are_left_out(market):
    member = market.member.copy()
    member[: VALIDATION[1] + 1, 2] = False
    assert task_of(replace(market, member=member)).market.tickers == ("A", "B", "D", "E", "F")
    refused("no member has a price", task_of, replace(market, member=np.zeros_like(market.member)))


@pytest.mark.parametrize(("changes", "told"), [
    ({"learner": "sac9"}, "'sac9'"), ({"colour": "red"}, "'colour'"),
    ({"features": ["retrun_5"]}, "'retrun_5'; did you mean return_5?"), ({"device": "abacus"}, "'abacus'"),
    ({"hold": 70}, "train has 55 bars"), ({"hold": 30}, "validation has 19 bars"),
    ({"seeds": 0}, "seeds is 0"), ({"pods": 3}, "pods is 3"), ({"plan": "x"}, "plan is 'x'"),
    ({"costs": 10.0}, "costs is 10.0"), ({"threads": 0}, "threads is 0"), ({"num_envs": None}, "num_envs is None"),
    ({"train": (25, 85), "validation": (81, 100)}, "training ends only"), ({"train": "1991:1992"}, "train is '1991:1992'"),
])  # fmt: skip
def test_what_is_invalid_is_refused_in_one_line(market, tmp_path, changes, told):
    windows = {name: tuple(market.dates[list(changes[name])]) for name in changes if isinstance(changes[name], tuple)}
    assert told in refusal(market, tmp_path, **{**changes, **windows})


def test_a_folder_is_replaced_only_when_allowed_and_by_a_training_that_ends(market, tmp_path, slices, monkeypatch):
    folder = tmp_path / "tiny"
    tiny_train(market, folder)
    slices.clear()
    assert "exists already" in refusal(market, tmp_path, out=folder)
    assert slices == []
    before = (folder / "ensemble.json").read_bytes()
    monkeypatch.setattr(Checkpoint, "save", lambda self, path: (_ for _ in ()).throw(InputError("the disk is full")))
    refused("full", tiny_train, market, folder, seed=9, overwrite=True)
    assert (folder / "ensemble.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny", "tiny.unfinished"]
    monkeypatch.undo()
    assert tiny_train(market, folder, seed=9, overwrite=True, resume=True).provenance["seeds"] == [9]
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_settings_from_numpy_are_as_good_as_plain_ones(market, tmp_path):
    plain = tiny_train(market, tmp_path / "plain" / "tiny", hold=2, seed=3)
    tiny_train(market, tmp_path / "numpy" / "tiny", hold=np.int64(2), seed=np.int64(3), tilt=np.float64(1.0))
    assert load_ensemble(tmp_path / "numpy" / "tiny").members[0].task_spec == plain.members[0].task_spec
    one, other = (tmp_path / name / "tiny" / "ensemble.json" for name in ("numpy", "plain"))
    assert one.read_text() == other.read_text()


@pytest.mark.parametrize("hold", [1, 5])
def test_the_discount_is_stated_a_session(market, hold):
    days = market.dates
    task = make_stock_task(market, (days[0], days[40]), (days[41], days[60]), trading_of(hold=hold, num_envs=4))
    assert task.defaults("ppo")["gamma"] == pytest.approx(0.87**hold)
    assert task.defaults("apg") == {}
