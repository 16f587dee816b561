"""Fixtures shared by all tests, and the count of tests skipped without the shared data."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("MPLBACKEND", "Agg")

GOLDEN = Path(__file__).parent / "golden"
NO_SHARED = "shared data absent: set FINPOD_SHARED to the folder that holds data/"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the real data, `$FINPOD_SHARED` or `../shared`; skips where it is absent."""
    folder = Path(os.environ.get("FINPOD_SHARED") or Path(__file__).parents[2] / "shared")
    if not (folder / "data").is_dir():
        pytest.skip(NO_SHARED)
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write the files in tests/golden anew instead of comparing")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], str]:
    """A function (file name, text of this run) -> text of the file in tests/golden; `--golden` writes the text first."""

    def expected(name: str, text: str) -> str:
        if request.config.getoption("--golden"):
            (GOLDEN / name).write_text(text)
        return (GOLDEN / name).read_text()

    return expected


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = sum(NO_SHARED in str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    terminalreporter.write_line(f"skipped for want of the shared data: {skipped}")


@pytest.fixture(params=["open", "close"])
def fill(request):
    """Each fill in turn: the price at which orders are filled."""
    return request.param


@pytest.fixture
def one_thread():
    """torch on one thread, so that sums do not depend on the number of cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A working folder with the snapshot data/sim."""
    from made_commands import SIMULATED

    from finpod.market.load import save_snapshot

    monkeypatch.chdir(tmp_path)
    save_snapshot(SIMULATED, tmp_path / "data" / "sim")
    return tmp_path


@pytest.fixture
def apart(tmp_path, monkeypatch):
    """An empty folder as the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def market():
    """A random market to train on; many files have another one of their own."""
    from made_markets import random_market

    return random_market(130, 6, gaps=0.02, seed=5)


@pytest.fixture(scope="module")
def unaudited():
    """Backtests without their look-ahead audit, which starts a process; for modules that test something else."""
    from finpod.records import Audit

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("finpod.backtesting.engine.quick_audit", lambda *_: Audit(True))
        yield


@pytest.fixture
def slices(monkeypatch):
    """The setup and the piece of every slice that is trained."""
    from finpod.tournament import scheduler

    noted, train = [], scheduler.run_slice
    monkeypatch.setattr(scheduler, "run_slice", lambda *given: noted.append(given) or train(*given))
    return noted


@pytest.fixture(scope="session")
def history(tmp_path_factory):
    """A finished run of two seeds: six agents, three rounds, one pod lost and one agent failed in each."""
    from made_logs import write_run

    from finpod.tournament.history import read_history

    return read_history(write_run(tmp_path_factory.mktemp("runs") / "six", seeds=2, agents=6, lost=[2], failed=[5]))


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """The file of the task in strategies/README.md."""
    from made_toy import TOY

    file = tmp_path_factory.mktemp("toy") / "toy.py"
    file.write_text(TOY)
    return file


@pytest.fixture(scope="session")
def task(toy):
    """The task in strategies/README.md."""
    from finpod.loading import load_task

    return load_task(f"{toy}:Toy")
