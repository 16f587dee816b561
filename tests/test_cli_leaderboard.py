"""`finpod leaderboard`: what it prints of finished and unfinished runs, and how it fails."""

import json
import math
import shutil
from types import SimpleNamespace

import fsspec
import pytest
from made_logs import write_run

from finpod.cli import main
from finpod.tournament.history import read_history
from finpod.tournament.leaderboard import ranked
from finpod.tournament.ranking import lineage, luck, sentences


@pytest.fixture
def run(capsys):
    """Run one command line; what it printed and its exit code."""

    def call(line):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        printed = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code, out=printed.out, err=printed.err)

    return call


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A working folder with a finished run of one seed, one of two seeds, and an unfinished one."""
    folder = tmp_path_factory.mktemp("work")
    write_run(folder / "strategies" / "one", agents=6, lost=[2], failed=[5])
    write_run(folder / "strategies" / "two", seeds=2)
    with pytest.raises(KeyboardInterrupt):
        write_run(folder / "strategies" / "cut", finished=False, die_after=5, pods=3)
    return folder


@pytest.fixture
def work(made, tmp_path, monkeypatch):
    """A copy of it that a test may change."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(text, head="rank"):
    """The rows of the first table that begins so, as mappings of text."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.split()[:1] == [head])
    names = lines[first].replace("pods lost", "pods-lost").split()
    rows = []
    for line in lines[first + 1 :]:
        if not line or line.startswith("and "):
            break
        rows.append(dict(zip(names, line.replace("as asked", "as-asked").split(), strict=False)))
    return rows


def words(text):
    return " ".join(text.split())


def test_a_finished_run_is_ranked(work, run):
    ended = run("leaderboard one")
    history = read_history("strategies/one")
    order = [trial for trial in ranked(history.trials) if trial.state == "ended"]
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0] == (
        f"one: 18 trials of {len({trial.agent for trial in order}) + 1} agents, 1 failed; finished, all trials done"
    )
    rows = table(ended.out)
    assert [row["rank"] for row in rows] == [str(i) for i in range(1, 18)]
    assert [row["agent"] for row in rows] == [trial.agent for trial in order]
    assert [row["parent"] for row in rows] == [trial.parent or "-" for trial in order]
    assert [int(row["level"]) for row in rows] == [trial.level for trial in order]
    assert [float(row["score"]) for row in rows] == pytest.approx([trial.score for trial in order], rel=1e-3)
    assert [row["steps"] for row in rows] == [str(trial.steps) for trial in order]
    assert {"learning_rate", "gamma", "hidden", "inputs"} <= set(rows[0])
    assert "num_steps" not in rows[0]


def test_luck_stands_beside_the_winner(work, run):
    out = words(run("leaderboard one").out)
    said = sentences(luck(read_history("strategies/one").trials))
    assert len(said) == 2
    assert all(words(sentence) in out for sentence in said)


def test_the_top_alone_is_printed_on_request(work, run):
    out = run("leaderboard one --top 3").out
    assert len(table(out)) == 3
    assert "and 14 more; --top 17 shows all" in out
    assert "--top" not in run("leaderboard one --top 17").out
    assert words(sentences(luck(read_history("strategies/one").trials))[0]) in words(out)  # of all trials all the same


def test_troubles_are_told_with_their_reasons(work, run):
    out = run("leaderboard one").out
    rows = table(out, "trial")
    assert [(row["trial"], row["agent"], row["state"], row["pods-lost"]) for row in rows] == [
        ("2", "0-2", "ended", "1"),
        ("5", "0-5", "failed", "0"),
    ]
    assert "WorkerCrashedError: made up" in out
    assert "ValueError: trial 5 made up a failure" in out
    assert "failed, or begun again" not in run("leaderboard two").out


def test_the_lineage_is_an_indented_tree(work, run):
    plain, out = run("leaderboard one").out, run("leaderboard one --lineage").out
    assert "lineage" not in plain
    lines = out[out.index("lineage:") :].split("\n\n")[0].splitlines()[1:]
    tree = lineage(read_history("strategies/one").trials)
    assert [line.split()[0] for line in lines] == [branch.agent for branch in tree]
    assert [(len(line) - len(line.lstrip())) // 2 for line in lines] == [branch.depth for branch in tree]
    kept = next(trial for trial in read_history("strategies/one").trials if trial.kept)
    assert any(f"{kept.level}: {kept.score:.3f} kept" in line for line in lines if line.split()[0] == kept.agent)
    assert any(line == "0-5  1: failed" for line in lines)


def test_an_unfinished_run_is_shown_as_it_stands(work, run):
    before = (work / "strategies" / "cut.unfinished" / "seed-0" / "log.jsonl").read_bytes()
    for name in ("cut", "strategies/cut", "strategies/cut.unfinished", "cut.unfinished"):
        ended = run(f"leaderboard {name}")
        assert ended.code == 0
        history = read_history("strategies/cut")
        still = sum(trial.state == "open" for trial in history.trials)
        assert ended.out.splitlines()[0].endswith(f", {still} not ended; unfinished")
        assert len(table(ended.out)) == len(history.trials) - still
        assert "kept" not in table(ended.out)[0]
    assert (work / "strategies" / "cut.unfinished" / "seed-0" / "log.jsonl").read_bytes() == before


def test_a_run_without_an_ensemble_is_not_finished_though_all_its_trials_have_ended(work, run):
    place = write_run(work / "strategies" / "ended", finished=False)
    out = run("leaderboard ended").out
    assert out.splitlines()[0].endswith("agents; all trials done, no ensemble yet; finpod train --resume ended")
    assert json.loads(run("leaderboard ended --json").out)["finished"] is False
    shutil.copytree(place, work / "elsewhere" / "ended.unfinished")
    assert "; finpod train --resume elsewhere/ended\n" in run("leaderboard elsewhere/ended").out
    log = (place / "seed-0" / "log.jsonl").read_bytes()
    fsspec.filesystem("memory").pipe("/shelf/ended/seed-0/log.jsonl", log)
    first = run("leaderboard memory://shelf/ended").out.splitlines()[0]
    assert first.endswith("; finpod train --resume ended --storage memory://shelf/ended")


def test_a_run_without_any_score_yet_is_shown(work, run):
    with pytest.raises(KeyboardInterrupt):
        write_run(work / "strategies" / "young", finished=False, die_after=0)
    ended = run("leaderboard young")
    assert ended.code == 0
    assert ended.out.strip() == "young: 4 trials of 4 agents, 4 not ended; unfinished"
    assert json.loads(run("leaderboard young --json").out)["luck"]["best"] is None


def test_several_seeds_are_ranked_together_or_apart(work, run):
    both = table(run("leaderboard two").out)
    assert {row["seed"] for row in both} == {"0", "1"}
    assert len(both) == 20
    alone = table(run("leaderboard two --seed 1").out)
    assert "seed" not in alone[0]
    assert len(alone) == 12
    assert all(row["agent"].startswith("1-") for row in alone)


def test_json_holds_everything(work, run):
    stored = json.loads(run("leaderboard one --json --top 2").out)
    history = read_history("strategies/one")
    order = ranked(history.trials)
    assert [entry["trial"] for entry in stored["board"]] == [trial.number for trial in order]
    assert stored["board"][0]["rank"] == 1
    assert stored["board"][0]["score"] == order[0].score
    assert stored["board"][0]["settings"] == dict(order[0].settings)
    assert stored["board"][-1]["reason"] == "ValueError: trial 5 made up a failure"
    assert stored["board"][-1]["score"] is None
    assert [entry["lost"] for entry in stored["board"] if entry["trial"] == 2] == [["WorkerCrashedError: made up"]]
    assert sum(entry["kept"] for entry in stored["board"]) == 2
    assert stored["luck"] == {
        name: None if math.isnan(value) else value for name, value in luck(history.trials)._asdict().items()
    }
    assert (stored["name"], stored["finished"], stored["trials"], stored["ended"]) == (
        "one", True, 18, {"0": "all trials done"}
    )  # fmt: skip
    cut = json.loads(run("leaderboard cut --json").out)
    assert cut["ended"] == {"0": None}
    assert len(cut["open"]) == 3


def test_the_report_is_written_on_request(work, run):
    ended = run("leaderboard one --report")
    assert ended.out.endswith("\n\nreports/one-training.html\n")
    assert "<h1>Training of one</h1>" in (work / "reports" / "one-training.html").read_text()
    ended = run("leaderboard two --seed 0 --out pages/a.html --json")
    assert ended.err == "pages/a.html\n"
    json.loads(ended.out)
    assert "12 trials" in (work / "pages" / "a.html").read_text()
    assert run("leaderboard cut.unfinished --report").out.endswith("reports/cut-training.html\n")


def test_a_report_is_replaced_on_request_only(work, run):
    assert run("leaderboard one --report").code == 0
    before = (work / "reports" / "one-training.html").read_bytes()
    ended = run("leaderboard one --report")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "error: reports/one-training.html exists already; choose another name, or pass --overwrite\n"
    assert run("leaderboard one --report --overwrite").code == 0
    assert (work / "reports" / "one-training.html").read_bytes() == before


def test_a_run_at_a_url_is_found(work, run):
    log = (work / "strategies" / "cut.unfinished" / "seed-0" / "log.jsonl").read_bytes()
    fsspec.filesystem("memory").pipe("/shelf/cut/seed-0/log.jsonl", log)
    assert run("leaderboard memory://shelf/cut").out.replace("memory", "") == run("leaderboard cut").out


def test_notes_of_a_run_are_printed(work, run):
    shutil.copytree(work / "strategies" / "cut.unfinished", work / "strategies" / "one.unfinished")
    assert "an unfinished run of the same name lies in strategies/one.unfinished" in words(run("leaderboard one").out)


def spoil(path):
    path.write_text(path.read_text().replace('"kind":"submit"', '"kind":"sumbit"', 1))


@pytest.mark.parametrize(
    ("line", "fragments"),
    [
        ("leaderboard", ["NAME", "finpod leaderboard --help"]),
        ("leaderboard nosuch", ["nosuch does not exist", "finpod train"]),
        ("leaderboard strategies", ["strategies holds no log of a tournament"]),
        ("leaderboard .", [". holds no log of a tournament"]),
        ("leaderboard one --top 0", ["--top is 0", "1 on"]),
        ("leaderboard one --seed 4", ["no tournament of seed 4", "it has 0"]),
        ("leaderboard hurt", ["strategies/hurt/log-0.jsonl is damaged", "line"]),
        ("leaderboard memory://nowhere", ["no run at memory://nowhere"]),
        ("leaderboard nosuch://x/y", ["cannot open nosuch://x/y"]),
        ("leaderboard one --out strategies", ["strategies is a folder"]),
        ("leaderboard one --out /proc/nowhere/a.html", ["/proc/nowhere"]),
    ],
)
def test_e08_mistakes_are_one_line(work, run, line, fragments):
    shutil.copytree(work / "strategies" / "one", work / "strategies" / "hurt")
    spoil(work / "strategies" / "hurt" / "log-0.jsonl")
    before = sorted(work.rglob("*"))
    ended = run(line)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert all(fragment in ended.err for fragment in fragments)
    assert sorted(work.rglob("*")) == before
