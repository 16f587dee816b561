"""`finpod leaderboard`: output for finished and unfinished runs, and errors."""

import json
import shutil
from itertools import dropwhile, takewhile
from pathlib import Path

import fsspec
import pytest
from made_commands import run
from made_logs import write_run

from finpod.tournament.analysis import luck
from finpod.tournament.history import read_history
from finpod.tournament.leaderboard import ranked


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A working folder with a finished run of one seed, one of two seeds, and an unfinished one."""
    folder = tmp_path_factory.mktemp("work")
    write_run(folder / "strategies" / "one", agents=6, lost=[2], failed=[5])
    write_run(folder / "strategies" / "two", seeds=2)
    with pytest.raises(KeyboardInterrupt):
        write_run(folder / "strategies" / "cut", finished=False, die_after=5, pods=3)
    return folder


@pytest.fixture(autouse=True)
def work(made, apart):
    """A copy of it that a test may change."""
    shutil.copytree(made, apart, dirs_exist_ok=True)
    return apart


def table(text, head="rank"):
    """The rows of the first table that begins so, as mappings of text."""
    lines = dropwhile(lambda line: line.split()[:1] != [head], text.replace("pods lost", "pods-lost").splitlines())
    names, *rows = map(str.split, takewhile(lambda line: line and not line.startswith("and "), lines))
    return [dict(zip(names, row, strict=False)) for row in rows]


def words(text):
    return " ".join(text.split())


def test_a_finished_run_is_ranked():
    ended = run("leaderboard one")
    history = read_history("strategies/one")
    order = [trial for trial in ranked(history.trials) if trial.state == "ended"]
    assert (ended.code, ended.err) == (0, "")
    first = f"one: 18 trials of {len({trial.agent for trial in order}) + 1} agents, 1 failed; finished, all trials done"
    assert ended.out.splitlines()[0] == first
    rows = table(ended.out)
    assert [(row["rank"], row["agent"], row["parent"], row["round"], row["steps"]) for row in rows] == [
        (str(rank), trial.agent, trial.parent or "-", str(trial.level), str(trial.steps))
        for rank, trial in enumerate(order, start=1)
    ]
    assert ("learning_rate" in rows[0], "num_steps" in rows[0]) == (True, False)
    found = luck(history.trials)
    assert all(part in words(ended.out) for part in (f"{found.alike:.3f}", f" {found.overfitting:.0%} of"))
    troubles = table(ended.out, "trial")
    assert [tuple(row[name] for name in ("trial", "agent", "state", "pods-lost")) for row in troubles] == [
        ("2", "0-2", "ended", "1"), ("5", "0-5", "failed", "0")
    ]  # fmt: skip
    assert "ValueError: trial 5 made up a failure" in ended.out
    short = run("leaderboard one --top 3").out
    assert (len(table(short)), "and 14 more; --top 17 shows all" in short) == (3, True)


def test_an_unfinished_run_is_shown_as_it_stands(work):
    log = work / "strategies" / "cut.unfinished" / "seed-0" / "log.jsonl"
    before = log.read_bytes()
    history = read_history("strategies/cut")
    still = sum(trial.state == "open" for trial in history.trials)
    for name in ("cut", "strategies/cut.unfinished"):
        out = run(f"leaderboard {name}").out
        assert out.splitlines()[0].endswith(f", {still} not ended; unfinished")
        assert len(table(out)) == len(history.trials) - still
    assert log.read_bytes() == before
    fsspec.filesystem("memory").pipe("/shelf/cut/seed-0/log.jsonl", before)
    assert run("leaderboard memory://shelf/cut").out.replace("memory", "") == run("leaderboard cut").out
    shutil.copytree(work / "strategies" / "cut.unfinished", work / "strategies" / "one.unfinished")
    assert "of the same name in strategies/one.unfinished" in words(run("leaderboard one").out)


def test_a_run_without_an_ensemble_is_not_finished_though_all_its_trials_have_ended(work):
    write_run(work / "strategies" / "ended", finished=False)
    assert run("leaderboard ended").out.splitlines()[0].endswith("; finpod train --resume strategies/ended")


def test_several_seeds_are_ranked_together():
    rows = table(run("leaderboard two").out)
    assert ({row["seed"] for row in rows}, len(rows)) == ({"0", "1"}, 20)


def test_json_holds_everything():
    stored = json.loads(run("leaderboard one --json --top 2").out)
    order = ranked(read_history("strategies/one").trials)
    assert [entry["trial"] for entry in stored["board"]] == [trial.number for trial in order]
    best, last = stored["board"][0], stored["board"][-1]
    assert (best["rank"], best["score"], best["settings"]) == (1, order[0].score, dict(order[0].settings))
    assert (last["reason"], last["score"]) == ("ValueError: trial 5 made up a failure", None)
    cut = json.loads(run("leaderboard cut --json").out)
    assert (cut["ended"], len(cut["open"])) == ({"0": None}, 3)


def test_the_report_is_written_and_replaced_on_request_only():
    assert run("leaderboard one --report").out.endswith("\n\nreports/one-training.html\n")
    before = Path("reports/one-training.html").read_bytes()
    assert "reports/one-training.html" in run("leaderboard one --report").error
    ended = run("leaderboard one --report --overwrite --json")
    assert (ended.err, json.loads(ended.out)["trials"]) == ("reports/one-training.html\n", 18)
    assert Path("reports/one-training.html").read_bytes() == before


def test_a_damaged_log_is_named(work):
    hurt = shutil.copytree(work / "strategies" / "one", work / "strategies" / "hurt") / "log-0.jsonl"
    hurt.write_text(hurt.read_text().replace('"kind":"submit"', '"kind":"sumbit"', 1))
    assert "strategies/hurt/log-0.jsonl" in run("leaderboard hurt").error
