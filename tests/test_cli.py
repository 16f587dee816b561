"""The command line as a whole: errors, exit codes, and options built from settings."""

import dataclasses
import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from made_commands import ENVIRONMENT, run
from made_results import make_result
from test_package import HEAVY
from typer.main import get_command

import finpod
from finpod.cli import _command, app, console, deploy, options, settings
from finpod.errors import InputError
from finpod.market.load import save_snapshot

BACKTEST = "backtest equal-weight --market sim"
TRAIN = "train stocks --market sim --train 2010-02-01:2010-06-30 --validation 2010-07-01:2010-09-30"
NEW = f"{TRAIN} --out strategies/x"
WALK = "walkforward stocks --market sim --train 120 --validation 40 --test 60 --out strategies/wf --start"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the snapshot data/sim, the runs one and two, and files that are nobody's."""
    folder = tmp_path_factory.mktemp("work")
    save_snapshot(finpod.simulate_market(names=5, days=300, signal=0.1, seed=1), folder / "data" / "sim")
    for seed, name in enumerate(("one", "two")):
        make_result(days=60, names=3, seed=seed).save(folder / "backtests" / name)
    for file in ("photos/a.jpg", "backtests/photos/result.json", "backtests/photos/notes.txt"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("precious")
    return folder


@pytest.fixture
def work(made, tmp_path, monkeypatch):
    """A copy of it, as the current folder."""
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "work"))
    return Path.cwd()


def everything(folder):
    """Paths below a folder, files with their content and time of change."""
    paths = sorted(folder.rglob("*"))
    return {path: path.is_file() and (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


@pytest.mark.parametrize(("line", "values"), [
    ("backtest equal-weight --market nosuch.parquet", ["nosuch.parquet"]),
    ("backtest nosuch --market sim", ["nosuch", "equal-weight"]), (f"{BACKTEST} --fee-bps -5", ["--fee-bps is -5"]),
    (f"{BACKTEST} --fee-bps 9000 --slippage-bps 2000", ["--fee-bps 9000.0", "--slippage-bps 2000.0"]),
    (f"{BACKTEST} --cash much", ["--cash", "'much'", "finpod backtest --help"]),
    (f"{BACKTEST} --name photos --overwrite", ["backtests/photos", "notes.txt"]),
    ("backtest equal-weight --fe-bps 5", ["--fe-bps", "did you mean --fee-bps?"]),
    ("backtest equal-weight --bogus", ["--bogus", "finpod backtest --help"]),
    ("train stocks --hold 5", ["--hold", "--rebalance-every"]), ("backtset", ["'backtset'", "'backtest'"]),
    ("leaderboard nosuch", ["nosuch"]),
    ("leaderboard photos/a.jpg", ["photos/a.jpg has no log", "the output folder or the storage"]),
    ("train --resume photos/a.jpg", ["there is no unfinished run at photos/a.jpg.unfinished"]),
    ("leaderboard nosuch://x/y", ["nosuch://x/y"]), ("leaderboard one --top 0", ["--top", "'0'"]),
    ("compare one", ["two or more"]), ("compare one backtests/one", ["one"]),
    ("export one --format xls", ["'--format': 'xls' is not one of 'csv', 'parquet' (see"]),
    ("train bonds --train 1:2 --validation 3:4 --out strategies/x", ["'bonds'", "stocks"]),
    (f"{TRAIN} --overwrite --out photos", ["photos", "a.jpg"]),
    (f"{NEW.replace('2010-02-01:2010-06-30', '2010')}", ["--train is '2010'"]),
    *((f"{NEW} --{option} {value}", [f"--{option} is {value}"]) for option, value in {
        "agents": 0, "seeds": 0, "rebalance-every": 0, "stop-trials": 0, "stop-minutes": 0.0, "max-weight": 3.0,
    }.items()),
    (f"{NEW} --ray --pods many", ["--pods is 'many'"]), (f"{NEW} --pods 2", ["--pods needs --ray"]),
    (f"{NEW} --resume some --fork other", ["--resume", "--fork"]),
    ("train stocks --out x", ["--train is missing", "needs --train and --validation"]),
    ("train hopper --out x --fee-bps 1", ["--fee-bps is for stocks"]),
    ("train ant --out x --market sample", ["--market"]),
    ("train hopper --out x --variant full", ["hopper has no variant 'full'; choose one of standard, fast"]),
    ("train hopper --out x --envs 0", ["--envs is 0;"]), (f"{NEW} --variant fast", ["--variant"]),
    (f"{WALK} 2010-09-15 --purge 1 --check", ["--purge is 1 sessions"]),
    (f"{WALK} 2010-09-15 --features retrun_5 --check", ["retrun_5", "return_5"]),
])  # fmt: skip
def test_e08_mistakes_end_in_one_line_and_leave_all_as_it_was(work, line, values):
    before = everything(work)
    error = run(line).error
    assert all(value in error for value in values), error
    assert everything(work) == before


@pytest.mark.parametrize("line", [BACKTEST, f"{TRAIN} --out photos", f"{WALK} 2010-09-15 --device cpu"])
def test_e08_what_cannot_end_well_does_not_begin(work, monkeypatch, line):
    """Outputs and options are checked before anything is read or computed."""
    for name in ("load_market", "backtest", "train"):
        monkeypatch.setattr(finpod, name, lambda *a, **k: pytest.fail("worked before the command line was checked"))
    shutil.rmtree(work / "backtests")
    for occupied in ("backtests", "strategies"):
        (work / occupied).write_text("a file where the folder should be")
    assert run(line).error


LONG = """
import sys
from finpod.cli import console, main
console.show_json = lambda value: print('x' * 10_000_000)
main(sys.argv[1:])
"""


def test_output_that_nobody_reads_ends_the_command_in_silence(work):
    words = [sys.executable, "-c", LONG, "data", "show", "sim", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as child:
        child.stdout.read(1000)
        child.stdout.close()
        assert (child.wait(60), child.stderr.read()) == (141, b"")


def test_output_that_cannot_be_written_is_an_error(work):
    command = [sys.executable, "-m", "finpod", "data", "show", "sim"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=ENVIRONMENT)
    assert (done.returncode, done.stderr) == (2, "error: the system: No space left on device; --debug shows where\n")


@pytest.mark.parametrize(("raised", "code", "line"), [
    (KeyboardInterrupt(), 130, "error: interrupted"),
    (KeyError("gone"), 1, "error: unexpected KeyError: 'gone'; --debug shows where"),
    (OSError(5, "Input/output error", "disk"), 2, "error: disk: Input/output error; --debug shows where"),
    (BrokenPipeError(32, "Broken pipe"), 2, "error: the system: Broken pipe; --debug shows where"),
    (
        SystemExit(0),
        2,
        "error: the strategy or a feature ended the program (SystemExit: 0); remove its call of exit()",
    ),
])  # fmt: skip
def test_whatever_ends_a_command_is_one_line(work, monkeypatch, raised, code, line):
    def broken(*_args, **_options):
        raise raised

    monkeypatch.setattr(finpod, "backtest", broken)
    ended = run(BACKTEST)
    assert (ended.code, ended.out, ended.err.splitlines()[-1]) == (code, "", line)
    assert not (work / "backtests" / "equal-weight").exists()


def test_debug_shows_the_traceback(work):
    for line in ("--debug data show nosuch.csv", "data show nosuch.csv --debug"):
        ended = run(line)
        assert (ended.code, "Traceback" in ended.err) == (2, True)


@pytest.mark.parametrize("command", ["train", "bench"])
def test_d14_the_device_is_said_and_never_changed_in_silence(work, monkeypatch, command):
    used = []

    def train(task, **given):
        used.append(given["device"])
        raise InputError("enough")

    monkeypatch.setattr("finpod.bench.machine.run", lambda **sizes: used.append(sizes["device"]) or {"env": 1.0})
    monkeypatch.setattr(finpod, "train", train)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    line = NEW if command == "train" else "bench"
    assert run(line).err.splitlines()[0] == "no GPU found: computing on the CPU"
    assert "computing" not in run(line, "--device cpu").err
    assert "'cuda'" in run(line, "--device cuda").error
    assert "'tpu'" in run(line, "--device tpu").error
    assert used == ["auto", "cpu"]


def test_help_loads_nothing_heavy_and_names_every_command():
    code = "import json, sys\nfrom finpod.cli import main\ntry:\n    main({})\nexcept SystemExit as end:\n    "
    code += "print(json.dumps([end.code, sorted(sys.modules)]))"
    for line in ("--help", "train --help-advanced", "--version"):
        words = [sys.executable, "-c", code.format(line.split())]
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=ENVIRONMENT)
        exit_code, loaded = json.loads(done.stdout.splitlines()[-1])
        assert exit_code == 0
        assert not HEAVY & set(loaded)
    assert all(f"\n  {name} " in run("--help").out for name in get_command(app).commands)


def test_help_fits_on_two_screens_and_all_options_on_request(monkeypatch):
    monkeypatch.setenv("TERMINAL_WIDTH", "100")
    for name in ("train", "walkforward"):
        short, long = (run(f"{name} {flag}").out for flag in ("--help", "--help-advanced"))
        assert len(short.splitlines()) <= 100
        assert "--stop-trials" not in short
        assert all(option in long for option in ("--anchor", "--impact", "--max-weight"))


SETTINGS = {
    "trading.ledger.Costs": options.COSTS,
    "trading.simulate.Terms": options.TERMS,
    "envs.actions.TradingConfig": settings.TRADING,
    "tournament.setup.Plan": settings.PLAN,
    "tournament.setup.Stop": settings.STOP,
    "workers.executor.Pods": settings.PODS,
    "deploy.kuberay.Cluster": deploy.CLUSTER,
}


@pytest.mark.parametrize("name", SETTINGS)
def test_options_are_the_fields_of_their_settings(name):
    module, _, kind = f"finpod.{name}".rpartition(".")
    known = {field.name: field.default for field in dataclasses.fields(getattr(import_module(module), kind))}
    for option, field in SETTINGS[name].items():
        default = known[field.name]
        assert field.help
        if option != "steps":
            assert field.default == (... if default is dataclasses.MISSING else default), option


@pytest.mark.parametrize(("text", "argument", "line", "shown"), [
    ("fee_bps is -5; give 0 or more", "fee_bps", "backtest", "--fee-bps is -5; give 0 or more"),
    ("cash is 0; give more", "cash", "train", "cash is 0; give more"),
    ("'x' is not a date", "start", "backtest", "--start: 'x' is not a date"),
    ("x is there; pass overwrite=True", None, "backtest", "x is there; pass --overwrite"),
    ("no opens; choose fill='close'", "fill", "backtest", "no opens; choose --fill close"),
    ("give another out= and storage=", None, "train", "give another --out and --storage"),
    ("in the way out of out/fee_bps.csv", "cash", "backtest", "--cash: in the way out of out/fee_bps.csv"),
    ("day_first=True or day_first=False", None, "data import", "--day-first or --month-first"),
    ("leave it out with calendar=None", None, "data import", "leave it out with --calendar none"),
    (
        "keep both with renames={'FB':'FB'}",
        None,
        "backtest",
        "keep both with --renames FILE, a CSV of the lines old,new and FB,FB",
    ),
    ("stop.seconds is 0", "stop.seconds", "train", "--stop-minutes is 0"),
    ("pods.gpus is -1; pass ray=True", "pods.gpus", "train", "--pod-gpus is -1; pass --ray"),
    ("plan.agents was 3 and is 5", None, "train", "--agents was 3 and is 5"),
    ("no strategy is x", "strategy", "backtest", "no strategy is x"),
])  # fmt: skip
def test_errors_name_options(text, argument, line, shown):
    assert console.explain(InputError(text, argument=argument), _command(line.split())) == (shown, 2)


def test_a_market_is_a_file_or_a_name_in_data(work):
    (work / "here").mkdir()
    names = {"sample": "sample", "sim": "data/sim", "bars.csv": "bars.csv", "some/where": "some/where", "here": "here"}
    assert {name: options.market_path(name) for name in names} == names
    (work / "sim").write_text("a file of that name")
    assert options.market_path("sim") == "sim"
