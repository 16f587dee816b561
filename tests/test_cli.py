"""The command line: what it prints, what it writes, and how it fails."""

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import finpod
from finpod.cli import _command, console, main, options
from finpod.cli import bench as demo
from finpod.errors import DataError, InputError
from finpod.files import new_folder
from finpod.market.snapshots import save_snapshot

HEAVY = {"torch", "ray", "pyfolio", "pandas", "matplotlib", "scipy", "gymnasium", "yfinance", "skfolio"}
START, END = "2010-06-01", "2010-12-31"
WINDOW = f"--start {START} --end {END}"


@pytest.fixture(scope="session")
def simulated():
    return finpod.simulate_market(names=5, days=300, signal=0.1, seed=1)


@pytest.fixture
def work(tmp_path, monkeypatch, simulated):
    """A working folder with the snapshot data/sim."""
    monkeypatch.chdir(tmp_path)
    save_snapshot(simulated, tmp_path / "data" / "sim")
    return tmp_path


@pytest.fixture
def run(capsys):
    """Run one command line, given in pieces; what it printed and its exit code."""

    def call(*pieces):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([word for piece in pieces for word in piece.split()])
        printed = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code, out=printed.out, err=printed.err)

    return call


def tree(folder):
    """Every file under a folder with its content and time of change."""
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(Path(folder).rglob("*")) if p.is_file()}


def assert_one_line(ended, *fragments):
    """The error is the last line; before it there is nothing but progress."""
    assert ended.code == 2
    assert ended.out == ""
    *progress, last = ended.err.splitlines()
    assert all(re.fullmatch(r"[^:]+ \(\d+%\)", line) for line in progress)
    assert last.startswith("error: ")
    for fragment in fragments:
        assert fragment in last


@pytest.mark.parametrize(
    ("line", "fragments"),
    [
        ("backtest equal-weight --market nosuch.parquet", ["nosuch.parquet", "give a parquet or CSV file"]),
        ("backtest equal-weight --market nosuch", ["data/nosuch", "snapshot"]),
        ("backtest nosuch --market sim", ["nosuch", "equal-weight"]),
        ("backtest nosuch.py --market sim", ["nosuch.py"]),
        ("backtest equal-weight --market sim --start 2010-12-31 --end 2010-06-01", ["2010-06-01", "before it starts"]),
        ("backtest equal-weight --market sim --start yesterday", ["'yesterday'", "YYYY-MM-DD"]),
        ("backtest equal-weight --market sim --start 2030-01-01", ["2030-01-01", "2010-01-04"]),
        ("backtest equal-weight --market sim --fee-bps -5", ["--fee-bps is -5"]),
        ("backtest equal-weight --market sim --cash 0", ["--cash is 0", "positive"]),
        ("backtest equal-weight --market sim --cash much", ["--cash", "'much'", "finpod backtest --help"]),
        ("backtest equal-weight --market sim --fill opn", ["'opn'", "open", "close"]),
        ("backtest equal-weight --market sim --name a/b", ["'a/b'", "plain word"]),
        ("backtest equal-weight --market sim --members nasdaq100", ["sim", "members"]),
        ("backtest equal-weight --fe-bps 5", ["--fe-bps", "--fee-bps"]),
        ("backtest equal-weight --bogus", ["--bogus", "finpod backtest --help"]),
        ("backtest", ["strategy", "finpod backtest --help"]),
        ("backtset", ["'backtset'", "'backtest'"]),
        ("data", ["command", "finpod data --help"]),
        ("data show sim --tickers S1,ZZZ", ["ZZZ", "S1"]),
        ("data import nosuch.csv", ["nosuch.csv"]),
        ("data fetch AAPL --start 2020-13-01", ["2020-13-01", "YYYY-MM-DD"]),
        ("data fetch AAPL --start 2020-02-01 --end 2020-01-01", ["2020-01-01", "2020-02-01"]),
        ("data fetch AAPL --universe nasdaq100", ["'AAPL'", "--universe 'nasdaq100'"]),
        ("data fetch --universe A;B --name x", ["'A;B'", "not a symbol"]),
        ("report backtests/nosuch", ["backtests/nosuch", "holds no backtest result"]),
        ("train stocks --train 2010 --validation 2011:2012 --out strategies/x", ["--train", "'2010'", "FIRST:LAST"]),
        ("train bonds --train 1:2 --validation 3:4 --out strategies/x", ["'bonds'", "stocks"]),
        ("audit nosuch --market sim", ["nosuch", "equal-weight"]),
    ],
)
def test_e08_typing_errors_end_in_one_line(work, run, line, fragments):
    before = tree(work)
    assert_one_line(run(line), *fragments)
    assert tree(work) == before
    assert sorted(path.name for path in work.iterdir()) == ["data"]


@pytest.mark.parametrize("occupied", ["backtests", "reports"])
def test_e08_unwritable_output_folder(work, run, occupied, monkeypatch):
    (work / occupied).write_text("a file where the folder should be")
    monkeypatch.setattr(finpod, "backtest", lambda *a, **k: pytest.fail("computed before the outputs were checked"))
    assert_one_line(run("backtest equal-weight --market sim"), occupied, "not a folder")
    assert sorted(path.name for path in work.iterdir()) == sorted(["data", occupied])


def test_e08_holds_in_a_process_of_its_own(work):
    command = [sys.executable, "-m", "finpod.cli", "backtest", "equal-weight", "--market", "nosuch.parquet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def unread(*words, cwd, read=0):
    """A command in a process of its own whose reader goes away after so many bytes; its exit code and its stderr."""
    reader, writer = os.pipe()
    with subprocess.Popen([sys.executable, *words], stdout=writer, stderr=subprocess.PIPE, text=True, cwd=cwd,
                          env={**os.environ, "PYTHONPATH": str(Path(finpod.__file__).parents[1])}) as child:  # fmt: skip
        os.close(writer)
        if read:
            os.read(reader, read)
        os.close(reader)
        told = child.communicate(timeout=60)[1]
    return child.returncode, told


LONG = "import sys\nfrom finpod.cli import main\n{}\nmain(sys.argv[1:])"


@pytest.mark.parametrize("buffering", [[], ["-u"]])
def test_output_that_nobody_reads_ends_the_command_in_silence(work, buffering):
    assert unread(*buffering, "-m", "finpod.cli", "data", "show", "sim", cwd=work) == (141, "")
    assert unread(*buffering, "-m", "finpod.cli", "train", "--help", cwd=work) == (141, "")


def test_more_output_than_is_read_ends_the_command_in_silence(work):
    many = LONG.format("from finpod.cli import console\nconsole.show_json = lambda value: print('x' * 10_000_000)")
    assert unread("-c", many, "data", "show", "sim", "--json", cwd=work, read=1000) == (141, "")


def test_output_that_cannot_be_written_is_an_error(work):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "finpod.cli", "data", "show", "sim"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: the system: No space left on device; --debug shows where\n")


def test_another_pipe_that_breaks_is_an_error_of_its_own(work, run, monkeypatch):
    def broken(*_args, **_options):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(finpod, "backtest", broken)
    assert_one_line(run("backtest equal-weight --market sim"), "the system: Broken pipe")


@pytest.mark.parametrize("line", ["--debug data show nosuch.csv", "data show nosuch.csv --debug"])
def test_debug_shows_the_traceback(work, run, line):
    ended = run(line)
    assert ended.code == 2
    assert "Traceback" in ended.err
    assert ended.err.splitlines()[-1].startswith("error: there is no market nosuch.csv")


def test_an_interrupted_command_ends_in_one_line(work, run, monkeypatch):
    def interrupt(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(finpod, "backtest", interrupt)
    ended = run("backtest equal-weight --market sim")
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.splitlines()[-1] == "error: interrupted"
    assert sorted(path.name for path in work.iterdir()) == ["data"]


def test_a_fault_of_finpods_own_is_one_line_and_code_1(work, run, monkeypatch):
    monkeypatch.setattr(finpod, "backtest", lambda *a, **k: {}["gone"])
    ended = run("backtest equal-weight --market sim")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines()[-1] == "error: unexpected KeyError: 'gone'; --debug shows where"


@pytest.mark.parametrize("line", ["--help", "backtest --help", "data fetch --help", "--version"])
def test_help_loads_nothing_heavy(line):
    code = f"""
import json, sys
from finpod.cli import main
try:
    main({line.split()!r})
except SystemExit as ended:
    print(json.dumps([ended.code, sorted(sys.modules)]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    exit_code, loaded = json.loads(done.stdout.splitlines()[-1])
    assert exit_code == 0
    assert not HEAVY & set(loaded)


def test_help_names_every_command(run):
    ended = run()
    assert ended.code == 0
    for command in ("data", "train", "backtest", "report", "audit", "bench", "demo"):
        assert f"\n  {command} " in ended.out
    assert run("--version").out == f"finpod {finpod.__version__}\n"


@pytest.mark.parametrize("name", ["benchmark-hold", "equal-weight", "buy-and-hold", "momentum"])
def test_backtest_of_the_built_in_strategies(work, run, name):
    ended = run("backtest", name, "--market sim", WINDOW, "--no-report")
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == f"backtests/{name}"
    assert sorted(path.name for path in (work / "backtests" / name).iterdir()) == [
        "SHA256SUMS",
        *(["fan.parquet"] if name != "benchmark-hold" else []),
        "result.json",
        "returns.csv",
        "run.json",
        "trades.csv",
        "weights.parquet",
    ]
    assert not (work / "reports").exists()


def test_backtest_on_the_sample_writes_both_outputs(work, run):
    ended = run("backtest equal-weight --start 2021-01-04 --end 2021-06-30 --name short")
    assert ended.code == 0
    assert ended.out.splitlines()[-2:] == ["backtests/short", "reports/short.html"]
    assert "S&P 500 price index" in ended.out
    content = json.loads((work / "backtests" / "short" / "result.json").read_text())
    assert (content["start"], content["end"], content["fill"]) == ("2021-01-04", "2021-06-30", "close")
    assert "S&amp;P 500 price index" in (work / "reports" / "short.html").read_text()
    run_facts = json.loads((work / "backtests" / "short" / "run.json").read_text())
    assert run_facts["command"].startswith("finpod backtest equal-weight --start 2021-01-04")
    assert set(run_facts["versions"]) >= {"python", "finpod", "torch", "numpy", "pandas"}
    assert run_facts["started"] <= run_facts["finished"]
    assert run_facts["seconds"] > 0


def test_options_reach_the_backtest(work, run):
    line = f"backtest equal-weight --market sim {WINDOW} --no-report --json"
    more = "--fee-bps 3 --slippage-bps 2 --impact 1 --fill close --cash 5000 --whole-shares --risk-free 0.02 --opened 2"
    content = json.loads(run(line, more).out)
    assert content["costs"] == {"fee_bps": 3.0, "slippage_bps": 2.0, "per_share": 0.0, "impact": 1.0}
    assert (content["fill"], content["cash"], content["whole_shares"], content["risk_free"]) == (
        "close",
        5000,
        True,
        0.02,
    )
    assert content["opened"] == content["significance"]["candidates"] == 2


def test_a_strategy_file_is_backtested_under_its_own_name(work, run):
    (work / "first.py").write_text(
        "import finpod\n\n\nclass First(finpod.Strategy):\n    def decide(self, view):\n        return {'S1': 0.5}\n"
    )
    ended = run("backtest first.py --market sim", WINDOW, "--no-report")
    assert ended.out.splitlines()[-1] == "backtests/first"
    weights = finpod.load_result("backtests/first").weights
    assert weights["S1"].iloc[-1] == pytest.approx(0.5, abs=0.05)


def test_the_example_strategy_is_the_built_in_momentum(simulated):
    example = finpod.load_strategy(Path(__file__).parents[1] / "strategies" / "momentum.py")
    own, built_in = (finpod.backtest(s, simulated).equity for s in (example, finpod.load_strategy("momentum")))
    np.testing.assert_array_equal(own, built_in)


def test_progress_is_told_where_there_is_no_terminal_and_stdout_stays_clean(work, run):
    ended = run(f"backtest equal-weight --market sim {WINDOW} --json")
    told = [line for line in ended.err.splitlines() if re.search(r"\(\d+%\)$", line)]
    assert told[0] == "backtest of equal-weight (10%)"
    assert "writing (90%)" in told
    assert json.loads(ended.out)["strategy"] == "equal-weight"
    assert "%)" in run("report backtests/equal-weight").err


def test_json_on_stdout_is_the_content_of_result_json(work, run):
    line = f"backtest equal-weight --market sim {WINDOW} --no-report --json"
    ended = run(line)
    assert ended.code == 0
    assert ended.out == (work / "backtests" / "equal-weight" / "result.json").read_text()
    assert run(line, "--overwrite").out == ended.out


def test_a30_table_json_and_python_show_the_same_figures(work, run, simulated):
    line = f"backtest momentum --market sim {WINDOW} --no-report"
    table, content = run(line).out, json.loads(run(line, "--overwrite --json").out)
    result = finpod.backtest(finpod.load_strategy("momentum"), simulated, start=START, end=END, examine=True)
    assert table.startswith(str(result))
    assert content == json.loads(result.to_json())
    for own, shown in ((result.metrics, content["metrics"]), (result.benchmark_metrics, content["benchmark_metrics"])):
        assert shown == {key: None if np.isnan(value) else value for key, value in vars(own).items()}
    own, other = content["metrics"]["total_return"], content["benchmark_metrics"]["total_return"]
    assert content["relative"]["excess"] == own - other
    row = next(line for line in table.splitlines() if line.startswith("Total return"))
    assert row.split()[2:4] == [f"{own:.2%}", f"{other:.2%}"]


def test_an_existing_run_is_refused_and_left_untouched(work, run, monkeypatch):
    line = f"backtest equal-weight --market sim {WINDOW}"
    assert run(line).code == 0
    before = tree(work)
    with monkeypatch.context() as patch:
        patch.setattr(finpod, "backtest", lambda *a, **k: pytest.fail("computed before the outputs were checked"))
        assert_one_line(run(line), "backtests/equal-weight exists already", "--overwrite")
        assert_one_line(run(line, "--name equal-weight"), "exists already")
    assert tree(work) == before
    (work / "backtests" / "equal-weight").rename(work / "elsewhere")
    assert_one_line(run(line), "reports/equal-weight.html exists already")
    assert run(line, "--fee-bps 0 --overwrite").code == 0
    assert finpod.load_result("backtests/equal-weight").costs.fee_bps == 0


def test_a_report_that_fails_leaves_the_run_and_a_run_that_fails_leaves_nothing(work, run, monkeypatch):
    def files():
        return sorted({path.parent.name for path in work.rglob("*") if path.is_file() and "data" not in path.parts})

    def full(*_args, **_options):
        raise InputError("disk full; make room")

    with monkeypatch.context() as patch:
        patch.setattr(finpod.BacktestResult, "save", full)
        assert run("backtest equal-weight --market sim", WINDOW).code == 2
    assert files() == []
    monkeypatch.setattr(finpod.BacktestResult, "report", full)
    ended = run("backtest equal-weight --market sim", WINDOW)
    message = "error: disk full; make room; the run is saved in backtests/equal-weight"
    assert (ended.code, ended.err.splitlines()[-1]) == (2, message)
    assert files() == ["equal-weight"]


def test_report_draws_a_saved_run_again(work, run):
    assert run("backtest equal-weight --market sim", WINDOW).code == 0
    first = (work / "reports" / "equal-weight.html").read_bytes()
    page = work / "reports" / "equal-weight.html"
    page.write_bytes(first + b"<!-- of an older version -->")
    ended = run("report backtests/equal-weight")
    assert (ended.code, ended.out) == (0, "reports/equal-weight.html\n")
    assert (work / "reports" / "equal-weight.html").read_bytes() == first
    assert run("report backtests/equal-weight/ --out own/page.html").out == "own/page.html\n"
    assert (work / "own" / "page.html").read_bytes() == first


def test_fetch_keeps_a_snapshot(work, run, monkeypatch, simulated):
    asked = {}

    def fetch(universe, start, end, **terms):
        asked.update(terms, universe=universe, start=start, end=end)
        return simulated

    monkeypatch.setattr(finpod, "fetch_market", fetch)
    ended = run("data fetch AAPL,MSFT --start 2020-01-02 --end 2020-02-03 --benchmark SPY --name two --deadline 60")
    assert ended.out.endswith("data/two\n")
    assert (asked.pop("patience").deadline, callable(asked.pop("report"))) == (60.0, True)
    assert asked == {
        "universe": ["AAPL", "MSFT"],
        "start": "2020-01-02",
        "end": "2020-02-03",
        "benchmark": "SPY",
        "calendar": "auto",
        "allow_missing": False,
        "partial": Path("data/.two.partial"),
        "base_url": None,
    }
    assert finpod.load_market("data/two").content_hash == simulated.content_hash


def test_market_names(work):
    assert options.market_path("sample") == "sample"
    assert options.market_path("sim") == "data/sim"
    assert options.market_path("bars.csv") == "bars.csv"
    assert options.market_path("some/where") == "some/where"
    (work / "sim").write_text("a file of that name")
    assert options.market_path("sim") == "sim"
    (work / "here").mkdir()
    assert options.market_path("here") == "here"


def test_windows():
    assert options.window("2009-01-02:2018-12-31", "--train") == ("2009-01-02", "2018-12-31")
    for text in ("", ":", "2009-01-02", "2009-01-02:", "a:b:c"):
        with pytest.raises(InputError, match="--train is"):
            options.window(text, "--train")


def test_train_passes_its_options_and_prints_the_board(work, run, monkeypatch):
    asked = {}
    board = [
        {"agent": "a0", "parent": "-", "seed": 0, "generation": 1, "score": 1.25},
        {"agent": "a1", "parent": "a0", "seed": 1, "generation": 1, "score": np.nan},
    ]

    found = {"board": board, "device": "cpu", "failed": 0, "figures": []}

    def train(task, **settings):
        asked.update(settings, task=task)
        settings["progress"]("round 1", 0.5)
        return SimpleNamespace(name="first", trials=8, provenance=found)

    monkeypatch.setattr(finpod, "train", train)
    monkeypatch.setattr("finpod.tournament.history.read_history", lambda folder: folder)
    monkeypatch.setattr("finpod.report.training.write_training_report", lambda history, page: page)
    line = "train stocks --market sim --train 2010-02-01:2010-06-30 --validation 2010-07-01:2010-09-30 --out strategies/first"
    more = "--features return_5,beta_252 --fee-bps 3 --agents 2 --steps 1000 --seed 7 --device cpu"
    ended = run(line, more)
    assert ended.code == 0
    assert asked["train"] == ("2010-02-01", "2010-06-30")
    assert asked["validation"] == ("2010-07-01", "2010-09-30")
    assert asked["features"] == ["return_5", "beta_252"]
    assert asked["costs"] == finpod.Costs(fee_bps=3)
    expected = {
        "task": "stocks",
        "agents": 2,
        "rounds": 2,
        "keep": 3,
        "steps": 1000,
        "seed": 7,
        "hold": 5,
        "action": "tilt",
        "fill": None,
        "device": "cpu",
        "overwrite": False,
        "learner": "ppo",
    }
    assert {key: asked[key] for key in expected} == expected
    assert str(asked["out"]) == "strategies/first"
    assert "chosen among 8 trials" in ended.out
    assert ["a0", "-", "2", "0", "1.25"] in [line.split() for line in ended.out.splitlines()]
    assert ended.out.endswith("strategies/first\nreports/first-training.html\n")
    assert "round 1" in ended.err
    content = json.loads(run(line, "--json").out)
    assert content["board"][1]["score"] is None
    assert content["path"] == "strategies/first"
    assert asked["features"] is None


def test_a_trained_folder_is_backtested_like_any_strategy(work, run):
    line = "train stocks --market sim --train 2010-02-01:2010-06-30 --validation 2010-07-01:2010-09-30 --out strategies/tiny"
    size = "--agents 2 --rounds 1 --keep 1 --steps 512 --features return_5 --device cpu"
    trained = run(line, size)
    assert (trained.code, trained.out.splitlines()[-2:]) == (0, ["strategies/tiny", "reports/tiny-training.html"])
    test = "backtest strategies/tiny --market sim --end 2010-12-31 --no-report"
    assert_one_line(run(test, "--start 2010-09-30"), "2010-09-30", "--allow-in-sample")
    judged = run(test, "--start 2010-10-01 --json")
    content = json.loads(judged.out)
    assert (content["strategy"], content["trials"], content["trained_until"]) == ("tiny", 2, "2010-09-30")
    assert content["agent"]["device"] == "cpu"
    assert run(test, "--start 2010-10-01 --name again --json").out == judged.out


@pytest.mark.parametrize("command", ["train", "bench"])
def test_d14_the_device_is_said_and_never_changed_in_silence(work, run, monkeypatch, command):
    used = []
    trained = SimpleNamespace(name="first", trials=1, provenance={"board": [], "failed": 0, "figures": []})
    monkeypatch.setattr("finpod.bench.machine.run", lambda **sizes: used.append(sizes["device"]) or {"env": 1.0})
    monkeypatch.setattr(finpod, "train", lambda task, **settings: used.append(settings["device"]) or trained)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("finpod.tournament.history.read_history", lambda folder: folder)
    monkeypatch.setattr("finpod.report.training.write_training_report", lambda history, page: page)
    options = {
        "bench": "",
        "train": "stocks --market sim --train 2010-02-01:2010-06-30 --validation 2010-07-01:2010-09-30 --out strategies/x",
    }
    line = f"{command} {options[command]}"
    assert run(line).err.splitlines() == ["no GPU found: computing on the CPU"]
    assert run(line, "--device cpu").err == ""
    assert_one_line(run(line, "--device cuda"), "'cuda'", "no GPU")
    assert_one_line(run(line, "--device tpu"), "'tpu'", "cuda")
    assert used == ["auto", "cpu"]


def test_train_refuses_an_existing_folder_before_anything_is_read(work, run, monkeypatch):
    (work / "strategies" / "first").mkdir(parents=True)
    monkeypatch.setattr(finpod, "load_market", lambda *a, **k: pytest.fail("read before the output was checked"))
    line = "train stocks --market sim --train 2010-02-01:2010-06-30 --validation 2010-07-01:2010-09-30 --out strategies/first"
    assert_one_line(run(line), "strategies/first exists already", "--overwrite")


def test_audit_finds_who_looks_ahead(work, run):
    honest = run("audit momentum --market sim --days 3")
    assert honest.code == 0
    assert honest.out.startswith("strategy momentum: no look-ahead found on 3 days")
    (work / "seer.py").write_text(
        "import finpod\nimport numpy as np\n\n\nclass Seer(finpod.Strategy):\n    def decide(self, view):\n"
        "        return np.eye(5)[int(np.nanargmax(view._market.close[-1] / view.closes(1)[-1]))]\n"
    )
    caught = run("audit seer.py --market sim --json")
    verdict = json.loads(caught.out)
    assert (caught.code, verdict["passed"], len(verdict["days"])) == (1, False, 12)
    assert verdict["findings"][0]["kind"] == "cut"


def test_bench_prints_its_lines(run, monkeypatch):
    asked = {}

    def measure(**sizes):
        asked.update(sizes)
        return {"env steps/s": 819200.0, "hardware": "2 cores"}

    monkeypatch.setattr("finpod.bench.machine.run", measure)
    assert json.loads(run("bench --device cpu --json").out) == {"env steps/s": 819200.0, "hardware": "2 cores"}
    assert asked == {"device": "cpu", "what": None}
    assert "819,200" in run("bench").out
    run("bench env --device cpu --envs 8 --names 3 --seconds 0.1")
    assert asked == {"device": "cpu", "what": "env", "envs": 8, "names": 3, "seconds": 0.1}
    monkeypatch.undo()
    assert_one_line(run("bench gpu --device cpu"), "'gpu'", "env steps/s", "tournament", "halfcheetah")


@pytest.fixture
def short_demo(work, monkeypatch):
    """The demo with equal weight in the place of the trained ensemble, on two months."""

    def train(task, *, out, overwrite, progress, **settings):
        with new_folder(Path(out), overwrite=overwrite) as fresh:
            (fresh / "ensemble.json").write_text(f"{task} {settings['train']} {settings['validation']}")
        progress("training", 1.0)
        chosen = finpod.load_strategy("equal-weight")
        chosen.provenance = {"device": "cpu"}
        return chosen

    monkeypatch.setattr(finpod, "train", train)
    monkeypatch.setattr("finpod.tournament.history.read_history", lambda folder: folder)
    monkeypatch.setattr("finpod.report.training.write_training_report", lambda history, page: page)
    monkeypatch.setattr(demo, "TEST", ("2015-01-02", "2015-02-27"))
    return work


def test_demo_goes_the_whole_way_and_replaces_only_its_own(short_demo, run):
    ended = run("demo")
    assert ended.code == 0
    assert "survivors" in ended.out.splitlines()[0]
    assert "S&P 500 price index" in ended.out.splitlines()[0]
    assert ended.out.splitlines()[1] == "Device: cpu"
    assert "Total return" in ended.out
    assert ended.out.splitlines()[-1] == str(short_demo / "reports" / "demo.html")
    assert (short_demo / "reports" / "demo.html").is_file()
    assert json.loads((short_demo / "backtests/demo/run.json").read_text())["command"] == "finpod demo"
    assert (short_demo / "strategies/demo/ensemble.json").read_text() == f"stocks {demo.TRAIN} {demo.VALIDATION}"
    assert demo.TRAIN[1] < demo.VALIDATION[0] < demo.VALIDATION[1] < demo.TEST[0]
    assert run("demo").code == 0
    (short_demo / "backtests/demo/run.json").write_text('{"command": "finpod backtest mine --name demo"}')
    before = tree(short_demo)
    assert_one_line(run("demo"), "backtests/demo exists already", "--overwrite")
    assert tree(short_demo) == before
    assert run("demo --overwrite").code == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--market sim --fee-bps -3", "--fee-bps is -3"),
        ("--market nosuch.csv", "there is no market nosuch.csv"),
        ("--market sim --members nosuch.csv", "nosuch.csv"),
        ("--market sim --start 2010-06-01 --end 2010-05-01", "before it starts"),
        ("--market sim --cash 0", "--cash is 0"),
        ("--market sim --risk-free 5", "0.05 is 5 %"),
        ("--market sim", "backtests/equal-weight exists already"),
    ],
)
def test_what_is_wrong_with_the_line_is_told_before_that_its_output_exists(work, run, options, told):
    (work / "backtests/equal-weight").mkdir(parents=True)
    assert_one_line(run("backtest equal-weight", options), told)


def test_a_strategy_that_is_not_there_is_told_before_that_its_output_exists(work, run):
    (work / "backtests/nosuch").mkdir(parents=True)
    assert_one_line(run("backtest nosuch.py --market sim"), "nosuch.py")
    assert_one_line(run("compare nosuch other --name x"), "nosuch")


# --- what a careless user must not lose, and what a careless strategy must not spoil ------------------------------


@pytest.fixture
def no_work(monkeypatch):
    """Fails if anything is read or computed."""
    for name in ("load_market", "backtest", "train"):
        monkeypatch.setattr(finpod, name, lambda *a, **k: pytest.fail("worked before the command line was checked"))


TRAIN = "train stocks --market sim --train 2010-02-01:2010-06-30 --validation 2010-07-01:2010-09-30"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"{TRAIN} --overwrite --out photos", "photos is not a trained folder (it holds 'a.jpg')"),
        (f"{TRAIN} --overwrite --out .", ". is the current folder"),
        (f"{TRAIN} --overwrite --out ..", ".. is the current folder or one above it"),
        (f"{TRAIN} --overwrite --out data/sim", "data/sim is not a trained folder"),
        (f"{TRAIN} --out /proc/x", "cannot write /proc/x"),
        (f"{TRAIN} --agents 0 --out strategies/x", "--agents is 0"),
        (f"{TRAIN} --seeds 0 --out strategies/x", "--seeds is 0"),
        (f"{TRAIN} --seed -1 --out strategies/x", "--seed is -1"),
        (f"{TRAIN} --rebalance-every 0 --out strategies/x", "--rebalance-every is 0"),
        (f"{TRAIN} --fee-bps -1 --out strategies/x", "--fee-bps is -1"),
        (f"{TRAIN.replace('2010-02-01', 'May')} --out strategies/x", "'May' is not a date"),
        ("backtest equal-weight --market sim --overwrite --name photos", "backtests/photos holds 'notes.txt'"),
        ("backtest equal-weight --market sim --overwrite --name page", "reports/page.html is a folder, not a file"),
        (f"backtest equal-weight --market sim --name {'x' * 300}", "cannot be a name, for it has 300 letters"),
        ("backtest equal-weight --market sim --cash 0", "--cash is 0"),
        ("backtest equal-weight --market sim --opened 0", "--opened is 0"),
        (
            "backtest equal-weight --market sim --max-turnover inf",
            "--max-turnover is inf; give a finite number above 0",
        ),
        ("backtest equal-weight --market sim --risk-free 5", "0.05 is 5 %"),
        ("backtest equal-weight --market sim --start yesterday", "'yesterday' is not a date"),
        ("audit equal-weight --market sim --start yesterday", "'yesterday' is not a date"),
        ("backtest equal-weight --market sim --start 2010-06-01 --end 2010-05-01", "before it starts"),
        ("backtest momentum --market sim --features-from own.py", "--features-from is for a trained folder"),
        ("report photos --out reports/page.html", "photos holds no backtest result"),
    ],
)
def test_what_cannot_end_well_does_not_begin(work, run, no_work, line, told):
    for file in (
        "photos/a.jpg",
        "backtests/photos/result.json",
        "backtests/photos/notes.txt",
        "reports/page.html/b.jpg",
    ):
        (work / file).parent.mkdir(parents=True, exist_ok=True)
        (work / file).write_text("precious")
    before = sorted(work.rglob("*")), tree(work)
    assert_one_line(run(line), told)
    assert (sorted(work.rglob("*")), tree(work)) == before


@pytest.mark.parametrize("name", ["", " "])
def test_a_blank_name_is_refused(work, no_work, capsys, name):
    with pytest.raises(SystemExit) as ended:
        main(["backtest", "equal-weight", "--market", "sim", "--name", name])
    assert ended.value.code == 2
    assert f"{name!r} cannot be a name" in capsys.readouterr().err


def test_a_working_folder_that_cannot_be_written_is_refused(run, no_work, monkeypatch):
    monkeypatch.chdir("/proc")
    assert_one_line(run("backtest equal-weight"), "cannot write backtests/equal-weight")


def test_an_error_of_the_system_is_one_line_and_code_2(work, run, monkeypatch):
    def broken(*_args, **_options):
        raise OSError(5, "Input/output error", "disk")

    monkeypatch.setattr(finpod, "backtest", broken)
    assert_one_line(run("backtest equal-weight --market sim"), "disk: Input/output error")


def test_a_report_replaces_only_the_report_of_its_run(work, run):
    assert run("backtest equal-weight --market sim", WINDOW).code == 0
    for foreign in (
        "my own page",
        (work / "reports/equal-weight.html").read_text().replace("2010-06-01", "2010-06-02"),
    ):
        (work / "reports/equal-weight.html").write_text(foreign)
        assert_one_line(run("report backtests/equal-weight"), "is no report of backtests/equal-weight", "--out")
        assert (work / "reports/equal-weight.html").read_text() == foreign
    assert run("report backtests/equal-weight --overwrite").code == 0
    shown = json.loads(run("report backtests/equal-weight --json").out)
    assert shown["report"] == "reports/equal-weight.html"
    assert shown["result"] == json.loads((work / "backtests/equal-weight/result.json").read_text())


def test_report_of_a_damaged_run_is_one_line(work, run):
    assert run("backtest equal-weight --market sim", WINDOW).code == 0
    (work / "backtests/equal-weight/returns.csv").unlink()
    before = tree(work)
    assert_one_line(run("report backtests/equal-weight"), "backtests/equal-weight is damaged", "returns.csv")
    assert tree(work) == before


def test_demo_prints_json(short_demo, run):
    shown = json.loads(run("demo --json").out)
    assert shown["report"] == "reports/demo.html"
    assert shown["result"] == json.loads((short_demo / "backtests/demo/result.json").read_text())


NOISY = """
import finpod
print("loading")
class Noisy(finpod.Strategy):
    def __init__(self):
        print("made")
    def decide(self, view):
        print("deciding")
        return {"S1": 0.5}
"""


def test_a_strategy_that_prints_does_not_spoil_the_json(work, run):
    (work / "noisy.py").write_text(NOISY)
    for line in ("backtest noisy.py --no-report --json", "audit noisy.py --days 2 --json"):
        ended = run(line, "--market sim")
        assert ended.code == 0
        assert isinstance(json.loads(ended.out), dict)
        assert all(word in ended.err for word in ("loading", "made", "deciding"))


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("loading", "leaves.py cannot be run"),
        ("made", "Noisy() failed"),
        ("deciding", "strategy Noisy failed on 2010-"),
    ],
)
@pytest.mark.parametrize("command", ["backtest", "audit"])
def test_a_strategy_that_exits_is_an_error(work, run, printed, told, command):
    (work / "leaves.py").write_text(NOISY.replace(f'print("{printed}")', "raise SystemExit(0)"))
    ended = run(f"{command} leaves.py --market sim")
    assert (ended.code, ended.out) == (2, "")
    last = ended.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert told in last
    assert last.count("SystemExit: 0") == 1
    assert sorted(path.name for path in work.iterdir()) == ["data", "leaves.py"]


def test_no_command_ends_well_without_its_output(work, run, monkeypatch):
    def leave(*_args, **_options):
        raise SystemExit(0)

    monkeypatch.setattr(finpod, "audit", leave)
    assert_one_line(run("audit momentum --market sim"), "SystemExit: 0")


def test_agents_with_own_features_are_judged_on_the_command_line(work, run, simulated):
    (work / "own.py").write_text(
        "import numpy as np\n\ndef reversal(market):\n    table = np.full(market.shape, np.nan)\n"
        "    table[1:] = -(market.close[1:] / market.close[:-1] - 1)\n    return table\n"
    )
    (reversal,) = options.features(".", Path("own.py"))
    size = {"agents": 1, "rounds": 1, "keep": 1, "steps": 512, "device": "cpu"}
    windows = {"train": ("2010-02-01", "2010-06-30"), "validation": ("2010-07-01", "2010-09-30")}
    finpod.train(market=simulated, out="strategies/own", features=["return_5", reversal], **windows, **size)
    line = "backtest strategies/own --market sim --start 2010-10-01 --no-report"
    assert_one_line(run(line), "reversal", "with --features-from")
    assert run(line, "--features-from own.py").code == 0
    audited = run("audit strategies/own --market sim --days 2 --features-from own.py")
    assert audited.code == 0
    assert "day 1 of 2" in audited.err
    assert "not checked: " in audited.out
    assert_one_line(run(line, "--name again --features-from gone.py"), "gone.py")


def test_messages_name_options_as_typed(work, run):
    assert_one_line(run("backtest momentum --market sim --risk-free -2"), "--risk-free is -2")
    assert_one_line(run("audit momentum --market sim --days 0"), "--days is 0")


@pytest.mark.parametrize(
    ("text", "argument", "line", "shown"),
    [
        ("fee_bps is -5; give 0 or more", "fee_bps", "backtest", "--fee-bps is -5; give 0 or more"),
        ("cash is 0; give more", "cash", "backtest", "--cash is 0; give more"),
        ("cash is 0; give more", "cash", "train", "cash is 0; give more"),
        ("'x' is not a date", "start", "backtest", "--start: 'x' is not a date"),
        ("x is there; pass overwrite=True", None, "backtest", "x is there; pass --overwrite"),
        ("no opens; choose fill='close'", "fill", "backtest", "no opens; choose --fill close"),
        ("b goes with a; leave it out=", "out", "train", "b goes with a; leave it --out"),
        ("in the way out of out/fee_bps.csv", "cash", "backtest", "--cash: in the way out of out/fee_bps.csv"),
        ("day_first=True or day_first=False", None, "data import", "--day-first or --month-first"),
        ("x is free; leave overwrite=False", None, "backtest", "x is free; leave overwrite=False"),
        ("stop.trials is 0", "stop.trials", "train", "--stop-trials is 0"),
        ("stop.patience is 0", "stop.patience", "train", "--patience is 0"),
        ("pods.gpus is -1; pass ray=True", "pods.gpus", "train", "--pod-gpus is -1; pass --ray"),
        ("give the functions with features=", "features", "backtest", "give the functions with --features-from"),
        ("features is 3", "features", "train", "--features is 3"),
        ("no strategy is x", "strategy", "backtest", "no strategy is x"),
    ],
)
def test_errors_name_options(text, argument, line, shown):
    for kind in (InputError, DataError):
        assert console.explain(kind(text, argument=argument), _command(line.split())) == (shown, 2)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("--start 2010-13-01", "--start: '2010-13-01' is not a date"),
        ("--start 2010-06-01 --end 1990-01-01", "the window ends on 1990-01-01, before it starts on 2010-06-01"),
        ("--end 2090-01-01", "--end: 2090-01-01 lies outside the data"),
        ("--fee-bps -1", "--fee-bps is -1"),
        ("--fee-bps 9000 --slippage-bps 2000", "--fee-bps 9000.0 and --slippage-bps 2000.0 make 110%"),
    ],
)
def test_errors_of_a_backtest_name_its_options(work, run, line, shown):
    assert_one_line(run("backtest equal-weight --market sim", line), shown)


def test_an_error_keeps_its_argument_on_its_way_from_another_process():
    error = pickle.loads(pickle.dumps(InputError("cash is 0", argument="cash")))
    assert (str(error), error.argument) == ("cash is 0", "cash")
    assert InputError("all is wrong").argument is None
