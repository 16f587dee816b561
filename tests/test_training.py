import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_agents import CONFIG, FEATURES, STEPS_AN_UPDATE, TRAIN, VALIDATION, tiny_train
from made_markets import random_market
from made_tournaments import records_of

import finpod
from finpod.ensemble import load_ensemble
from finpod.errors import FinpodError, InputError
from finpod.lookahead.audit import with_noise_after
from finpod.report.provenance import members
from finpod.rl.checkpoint import Checkpoint
from finpod.rl.ppo import BOUNDS, PPOConfig
from finpod.rl.task import Score
from finpod.storage import Store
from finpod.tasks import make_stock_task, trading_of
from finpod.tournament import pod, training
from finpod.tournament.evolution import EvolutionConfig, vary
from finpod.tournament.log import TrialLog
from finpod.tournament.pod import Pod
from finpod.tournament.setup import STEPS, Plan, Stop, TournamentSetup
from finpod.tournament.training import Pods
from finpod.workers.executor import InlineExecutor


@pytest.fixture(scope="module")
def market():
    return random_market(130, 6, gaps=0.02, seed=5)


@pytest.fixture(scope="module")
def trained(market, tmp_path_factory):
    """Four agents in two rounds."""
    return tiny_train(
        market, tmp_path_factory.mktemp("strategies") / "four", agents=4, keep=2, seed=7, plan=Plan(alike=1.0)
    )


@pytest.fixture
def slices(monkeypatch):
    """Note the setup, settings and checkpoint of every slice that is trained."""
    noted, run_slice = [], training.run_slice

    def spy(setup, piece):
        noted.append((setup, piece.settings, piece.start))
        return run_slice(setup, piece)

    monkeypatch.setattr(training, "run_slice", spy)
    return noted


@pytest.fixture
def play(tmp_path):
    """Run a tournament in this process, in a folder of its own."""

    def run(task, plan, config=CONFIG, say=lambda doing, share: None):
        setup = TournamentSetup(task=task, num_envs=task.num_envs, config=config, plan=plan)
        store = Store(tmp_path / f"{plan.seed}-{len(list(tmp_path.iterdir()))}")
        engine = InlineExecutor(training.run_slice, setup)
        return training.tournament(setup, say, TrialLog(store), engine).board

    return run


def task_of(market):
    """The task as `train` would lay it out."""
    days = market.dates
    trading = trading_of(hold=2, num_envs=8, start_groups=4, horizon=5)
    return make_stock_task(market, days[list(TRAIN)], days[list(VALIDATION)], trading, features=FEATURES)


def files_of(folder):
    """Text of ensemble.json, and the weights of each member."""
    checkpoints = [Checkpoint.load(path) for path in sorted(folder.glob("*.pt"))]
    return (folder / "ensemble.json").read_text(), [checkpoint.weights for checkpoint in checkpoints], checkpoints


def same_weights(first, second):
    return all(torch.equal(one[name], two[name]) for one, two in zip(first, second, strict=True) for name in one)


def refusal(market, folder, kind=InputError, **changes):
    """The one line that training with `changes` ends in; nothing may be left behind."""
    before = sorted(folder.iterdir())
    with pytest.raises(kind) as raised:
        tiny_train(market, **{"out": folder / "refused", **changes})
    assert "\n" not in str(raised.value)
    assert sorted(folder.iterdir()) == before
    return str(raised.value)


def test_d01_the_same_seed_gives_the_same_agents(market, tmp_path):
    for name in ("first", "again"):
        tiny_train(market, tmp_path / name / "tiny", seed=3)
    tiny_train(market, tmp_path / "other" / "tiny", seed=4)
    (text, weights, _), (same, same_again, _), (different, others, _) = (
        files_of(tmp_path / name / "tiny") for name in ("first", "again", "other")
    )
    assert text == same
    assert same_weights(weights, same_again)
    assert text != different
    assert not same_weights(weights, others)


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
    assert same_weights([first.members[0].weights], [again.members[0].weights])


def test_d03_members_start_apart_and_alike_in_every_run(market, tmp_path, slices):
    for name in ("first", "again"):
        tiny_train(market, tmp_path / name, agents=4, rounds=1, steps=STEPS_AN_UPDATE, seed=7)
    starts = [Pod(setup, settings).policy.names.weight for setup, settings, _ in slices]
    assert len(starts) == 8
    for i in range(4):
        assert torch.equal(starts[i], starts[i + 4])
        assert not any(torch.equal(starts[i], starts[j]) for j in range(i))
    seeds = [settings.seed for _, settings, _ in slices]
    assert seeds[:4] == seeds[4:]
    assert len(set(seeds[:4])) == 4
    content = json.loads((tmp_path / "first" / "ensemble.json").read_text())
    assert {line["seed"] for line in content["provenance"]["board"]} == set(seeds)
    assert content["provenance"]["seeds"] == [7]


def test_d12_what_comes_after_validation_changes_nothing(market, tmp_path):
    later = with_noise_after(market, VALIDATION[1])
    assert not np.array_equal(later.last_bar, market.last_bar)
    assert later.content_hash != market.content_hash
    within = with_noise_after(market, VALIDATION[1] - 5)
    for name, one in (("first", market), ("later", later), ("within", within)):
        tiny_train(one, tmp_path / name / "tiny", seed=3)
    (text, weights, checkpoints), (same, same_again, others), (changed, _, _) = (
        files_of(tmp_path / name / "tiny") for name in ("first", "later", "within")
    )
    assert text == same
    assert same_weights(weights, same_again)
    assert [one.task_spec for one in checkpoints] == [one.task_spec for one in others]
    assert text != changed


def test_d12_the_test_window_is_not_in_the_task(market):
    task = task_of(market)
    assert task.market.dates[-1] == market.dates[VALIDATION[1]]
    assert len(task.panel.features) == len(task.execution.mark) == VALIDATION[1] + 1
    known = task.market.last_bar[~np.isnat(task.market.last_bar)]
    assert (known <= task.market.dates[-1]).all()


def test_d12_the_number_of_contenders_is_told(market, trained):
    assert trained.trials == len(trained.log) == 8
    result = finpod.backtest(trained, market, start=market.dates[VALIDATION[1] + 1])
    assert result.trials == 8
    assert "8 trials" in str(result)


def test_d14_the_device_is_told_and_a_missing_one_refused(market, trained, tmp_path, monkeypatch):
    assert trained.provenance["device"] == "cpu"
    tiny_train(market, tmp_path / "told" / "tiny")
    assert records_of(tmp_path / "told" / "tiny" / "log-0.jsonl")[0]["run"]["device"] == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "cuda" in refusal(market, tmp_path, device="cuda")


def test_d14_pods_with_gpus_are_refused_without_ray(market, tmp_path):
    with pytest.raises(InputError, match="pods with GPUs need Ray; pass ray=True") as raised:
        tiny_train(market, tmp_path / "refused", pods=Pods(gpus=0.5))
    assert "\n" not in str(raised.value)
    assert Pods(gpus=0.5, ray=True).gpus == 0.5
    assert list(tmp_path.iterdir()) == []


def test_d24_mean_spread_and_count_over_the_agents_are_told(market, trained):
    result = finpod.backtest(trained, market, start=market.dates[VALIDATION[1] + 1])
    tables = dict(members(result))
    board = tables["All trials, ranked on validation"]
    assert len(board.rows) == 8
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
    assert same_weights([several.members[1].weights], [alone.members[0].weights])
    result = finpod.backtest(several, market, start=market.dates[VALIDATION[1] + 1])
    assert list(result.variants) == ["seed 11", "seed 12", "seed 13"]
    assert result.spread["count"]["sharpe"] == 3


def test_parents_and_children_have_the_same_experience(trained):
    board = trained.provenance["board"]
    for generation in (0, 1):
        assert {line["steps"] for line in board if line["generation"] == generation} == {(generation + 1) * 64}
    children = [line for line in board if line["parent"] != "-"]
    assert len(children) == 2
    first = {line["agent"]: line for line in board if line["generation"] == 0}
    strong = {line["agent"] for line in sorted(first.values(), key=lambda line: -line["score"])[:2]}
    assert {line["parent"] for line in children} == strong
    assert {line["agent"] for line in board if line["generation"] == 1 and line["parent"] == "-"} == strong
    for child in children:
        parent = first[child["parent"]]
        assert child["agent"] not in first
        assert child["seed"] != parent["seed"]
        assert child["learning_rate"] / parent["learning_rate"] in (pytest.approx(0.8), pytest.approx(1.25))


def test_the_best_on_validation_are_kept_and_every_trial_is_logged(trained):
    best = {}
    for line in trained.log:
        assert len(line["returns"]) == VALIDATION[1] - VALIDATION[0]
        assert line["metrics"]["ratio_less_error"] == line["score"]
        best[line["agent"]] = max(best.get(line["agent"], -math.inf), line["score"])
    kept = [line["score"] for line in trained.provenance["members"]]
    assert kept == sorted(best.values(), reverse=True)[:2]
    assert [line["trial"] for line in trained.log] == list(range(8))
    scores = [line["score"] for line in trained.log]
    assert [line["score"] for line in trained.provenance["board"]] == sorted(scores, reverse=True)


def test_agents_without_a_score_are_replaced_and_never_kept(market, monkeypatch, play):
    judge, lost = pod.judge, []

    def blind(setup, settings, checkpoint):
        score = judge(setup, settings, checkpoint)
        if not lost or checkpoint.seed == lost[0]:  # the first agent to be judged, in every round
            lost[:] = [checkpoint.seed]
            score = score._replace(metrics={**score.metrics, "ratio_less_error": math.nan})
        return score

    monkeypatch.setattr(pod, "judge", blind)
    board = play(task_of(market), Plan(agents=3, rounds=2, steps=64, seed=2, search=EvolutionConfig(fresh=0)))
    second = [entry for entry in board.log if entry.level == 2]
    assert board.ranked()[-1].agent_settings["seed"] == lost[0]
    assert lost[0] not in {entry.agent_settings["seed"] for entry in second}
    assert len([entry for entry in second if entry.parent]) == 1
    assert lost[0] not in {entry.agent_settings["seed"] for entry in board.best(9)}
    assert len(board.best(9)) == 3


def test_no_agent_with_a_score_is_an_error_and_leaves_nothing(market, tmp_path, monkeypatch):
    monkeypatch.setattr(pod, "judge", lambda *given: Score({"ratio_less_error": math.nan}, np.zeros(19)))
    assert "no agent has a validation score" in refusal(market, tmp_path, FinpodError)


@pytest.mark.parametrize("mode", ["rounds", "async"])
def test_a_rule_to_stop_that_comes_before_any_trial_is_named(market, tmp_path, mode):
    told = refusal(market, tmp_path, plan=Plan(mode=mode, stop=Stop(seconds=6e-9)))
    assert "no trial began: the rule to stop after 6e-09 seconds came before the first" in told
    assert "raise stop.seconds" in told


def test_the_first_agent_has_the_settings_asked_for(market, slices, play):
    play(task_of(market), Plan(agents=3, rounds=1, steps=32))
    assert slices[0][1].config == CONFIG
    assert slices[1][1].config != CONFIG
    assert slices[1][1].config != slices[2][1].config


def test_a_variation_moves_every_bounded_setting_by_a_factor_and_stays_in_bounds():
    random, config = np.random.default_rng(0), PPOConfig()
    seen = set()
    for _ in range(200):
        moved = vary(config, BOUNDS, random)
        for name, (low, high) in BOUNDS.items():
            assert low <= getattr(moved, name) <= high
            assert type(getattr(moved, name)) is float
        seen.add(round(moved.learning_rate / config.learning_rate, 6))
        assert moved.gamma in (pytest.approx(1 - 0.1 * 0.8), pytest.approx(1 - 0.1 * 1.25))  # the horizon moves
        assert replace(moved, **{name: getattr(config, name) for name in BOUNDS}) == config
    assert seen == {0.8, 1.25}
    for _ in range(40):
        config = vary(config, BOUNDS, random)
        assert all(low <= getattr(config, name) <= high for name, (low, high) in BOUNDS.items())


def test_progress_runs_from_0_to_1(market, tmp_path):
    told = []
    tiny_train(market, tmp_path / "tiny", seeds=2, keep=1, progress=lambda doing, share: told.append((doing, share)))
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] == 1
    assert ("seed 1, round 2 of 2, agent 1 of 2", 0.75) in told


def test_names_that_are_never_members_are_left_out(market):
    member = market.member.copy()
    member[: VALIDATION[1] + 1, 2] = False
    task = task_of(replace(market, member=member))
    assert task.market.tickers == ("A", "B", "D", "E", "F")
    nobody = replace(market, member=np.zeros_like(market.member))
    with pytest.raises(InputError, match="no asset is a member"):
        task_of(nobody)


def test_defaults(monkeypatch):
    trading = trading_of()
    assert (trading.num_envs, trading.groups, trading.hold, trading.action, trading.costs.fee_bps) == (
        512,
        32,
        5,
        "tilt",
        10,
    )
    assert trading_of(num_envs=100).groups == 4
    assert trading_of(reward="value", cash=5000.0).reward_scale == 0.02
    assert Plan().steps == STEPS


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"task": "hopper-but-wrong"}, "unknown task 'hopper-but-wrong'"),
        ({"learner": "sac9"}, "unknown learner 'sac9'"),
        ({"colour": "red"}, "no setting 'colour'"),
        ({"features": ["retrun_5"]}, "unknown feature 'retrun_5'; did you mean return_5?"),
        ({"features": []}, "features is empty"),
        ({"action": "guess"}, "action is 'guess'"),
        ({"fill": "noon"}, "fill is 'noon'"),
        ({"device": "abacus"}, "'abacus'"),
        ({"hold": 70}, "the training window has 55 sessions to trade, fewer than hold=70"),
        ({"hold": 30}, "the validation window has 19 sessions to trade, fewer than hold=30"),
        ({"hold": 0}, "hold is 0"),
        ({"agents": 0}, "agents is 0"),
        ({"agents": 1.5}, "agents is 1.5"),
        ({"rounds": "2"}, "rounds is '2'"),
        ({"keep": -1}, "keep is -1"),
        ({"steps": 0}, "steps is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seeds": 0}, "seeds is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"num_envs": "8"}, "num_envs is 8"),
        ({"num_envs": None}, "num_envs is None"),
        ({"start_groups": 3}, "start_groups is 3"),
        ({"tilt": -1.0}, "tilt is -1.0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(market, tmp_path, changes, told):
    assert told in refusal(market, tmp_path, **changes)


@pytest.mark.parametrize(
    ("train", "validation", "told"),
    [
        ((25, 85), (81, 100), "before training ends"),
        ((25, 81), (81, 100), "before training ends"),
        ((81, 100), (25, 80), "before training ends"),
        ((80, 25), (81, 100), "before it starts"),
        ((25, 80), (90, 90), "the validation window has 0 sessions"),
    ],
)
def test_windows_that_overlap_or_are_empty_are_refused(market, tmp_path, train, validation, told):
    days = market.dates
    text = refusal(market, tmp_path, train=tuple(days[list(train)]), validation=tuple(days[list(validation)]))
    assert told in text


def test_windows_outside_the_data_are_refused(market, tmp_path):
    assert "lies outside the data" in refusal(market, tmp_path, validation=("2031-01-01", "2031-12-31"))
    assert "lies outside the data" in refusal(market, tmp_path, train=("1999-01-01", "1999-12-31"))
    assert "is not a date" in refusal(market, tmp_path, train=("yesterday", "2024-03-01"))


def test_an_output_that_exists_is_refused_before_training_and_replaced_when_allowed(market, tmp_path, slices):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    assert "exists already" in refusal(market, tmp_path, out=tmp_path / "mine")
    assert slices == []
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep me"
    assert "notes.txt" in refusal(market, tmp_path, out=tmp_path / "mine", overwrite=True)
    assert slices == []
    (tmp_path / "mine" / "notes.txt").unlink()
    tiny_train(market, tmp_path / "mine", overwrite=True)
    assert load_ensemble(tmp_path / "mine").name == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_training_that_fails_half_way_leaves_an_existing_folder_alone(market, tmp_path, monkeypatch):
    folder = tmp_path / "tiny"
    tiny_train(market, folder)
    before = (folder / "ensemble.json").read_bytes()
    monkeypatch.setattr(Checkpoint, "save", lambda self, path: (_ for _ in ()).throw(InputError("the disk is full")))
    with pytest.raises(InputError, match="full"):
        tiny_train(market, folder, seed=9, overwrite=True)
    assert (folder / "ensemble.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny", "tiny.unfinished"]
    monkeypatch.undo()
    trained = tiny_train(market, folder, seed=9, overwrite=True, resume=True)
    assert trained.provenance["seeds"] == [9]
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_settings_from_numpy_are_as_good_as_plain_ones(market, tmp_path):
    plain = tiny_train(market, tmp_path / "plain" / "tiny", hold=2, seed=3)
    tiny_train(market, tmp_path / "numpy" / "tiny", hold=np.int64(2), seed=np.int64(3), tilt=np.float64(1.0))
    loaded = load_ensemble(tmp_path / "numpy" / "tiny")
    assert loaded.members[0].task_spec == plain.members[0].task_spec
    assert (tmp_path / "numpy" / "tiny" / "ensemble.json").read_text() == (
        tmp_path / "plain" / "tiny" / "ensemble.json"
    ).read_text()


def test_a_market_with_closes_alone_trains_and_names_what_is_left_out(market, tmp_path):
    close_only = replace(market, open=None)
    trained = tiny_train(close_only, tmp_path / "tiny", features=["return_5", "volume_shock_5", "intraday_return_21"])
    assert trained.provenance["fill"] == "close"
    assert trained.provenance["features"] == ["return_5"]
    assert trained.provenance["left_out"] == ["volume_shock_5", "intraday_return_21"]


def test_the_task_is_laid_out_once(market, slices, play):
    task = task_of(market)
    play(task, Plan(agents=2, rounds=2, steps=64))
    assert {id(setup.task) for setup, _, _ in slices} == {id(task)}


@pytest.mark.parametrize("hold", [1, 5])
def test_the_discount_is_stated_a_session(market, hold):
    days = market.dates
    task = make_stock_task(market, (days[0], days[40]), (days[41], days[60]), trading_of(hold=hold, num_envs=4))
    assert task.defaults("ppo")["gamma"] == pytest.approx(0.87**hold)
    assert task.defaults("apg") == {}
