"""The commands `python -m finpod.bench.NAME`: a mistake ends in one line and exit code 2, and help says what is the default."""

import sys
from importlib import import_module

import pytest

from finpod.bench import skill
from finpod.market.snapshots import save_snapshot
from finpod.synthetic import simulate_market


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """Runs a command within an empty folder; returns the exit code, what it printed and what it said of mistakes."""
    monkeypatch.chdir(tmp_path)

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *words])
        code = 0
        try:
            import_module(f"finpod.bench.{name}").main()
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("skill sac", "unknown rule 'sac'"),
        ("skill -r no.parquet apg", "no.parquet"),
        ("skill -n 0", "argument -n: '0' is not a whole number from 1 on"),
        ("skill -n -3", "argument -n: '-3'"),
        ("skill -j 0", "argument -j: '0'"),
        ("skill -j two", "argument -j: 'two'"),
        ("skill -o taken informed", "taken: File exists"),
        ("agents", "the following arguments are required: prices, members"),
        ("agents no.parquet no.csv", "no.parquet"),
        ("agents prices taken", "leave members out"),
        ("learning chess", "unknown task 'chess'"),
        ("learning -s -1", "argument -s: '-1' is not a whole number from 0 on"),
        ("calibrate 5", "unrecognized arguments: 5"),
    ],
)
def test_a_mistake_ends_in_one_line(call, tmp_path, line, said):
    (tmp_path / "taken").write_text("no table")
    save_snapshot(simulate_market(names=2, days=30), tmp_path / "prices")
    code, printed, told = call(*line.split())
    assert (code, printed) == (2, "")
    assert told.startswith("error: ")
    assert told.count("\n") == 1
    assert said in told


@pytest.mark.parametrize("name", ["skill", "agents", "learning", "calibrate"])
def test_help_names_every_argument_and_its_default(call, name):
    code, printed, _ = call(name, "--help")
    assert code == 0
    assert (
        " ".join(printed.split()).count("(default: ") == {"skill": 5, "agents": 2, "learning": 3, "calibrate": 0}[name]
    )


def test_only_a_table_that_has_rows_is_printed(call, monkeypatch):
    row = {"world": "1.0", "rule": skill.INFORMED, "code": "worse", "ratio": 1.0, "seconds": 0.3}
    monkeypatch.setattr(skill, "play", lambda cell, real: row)
    _, printed, _ = call("skill", skill.INFORMED, "-n", "1", "-j", "1", "-o", "rows")
    assert printed.startswith("| net ratio |")
    assert "without signal" not in printed
