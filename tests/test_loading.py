"""`load_strategy`: names, files and folders; other input is an error of one line."""

import copy
import pickle
import sys

import pytest
from made_errors import refused

from finpod import FinpodError, InputError, Strategy, StrategyError
from finpod.loading import load_features, load_strategy

GOOD = """
import finpod
from finpod.rules import Momentum

class Half(finpod.Strategy):
    def decide(self, view):
        return [0.5] + [0] * (len(view.tickers) - 1)
"""


@pytest.fixture
def write(tmp_path):
    def written(text: str, name: str = "mine.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return written


def test_a_file_with_several_needs_a_name(write):
    path = write(GOOD + "\nclass Other(Half):\n    name = 'other one'\n")
    assert load_strategy(f"{path}:Other").name == "other one"
    for spec, message in (
        (path, r"mine.py defines several classes: Half, Other; .*mine.py:Half"),
        (f"{path}:Othr", "Othr; did you mean Other"),
        (f"{path}:Momentum", "Momentum; it defines Half, Other"),
    ):
        refused(message, load_strategy, spec, error=StrategyError)


@pytest.mark.parametrize(("text", "message"), [
    ("from finpod.rules import Momentum\n", "mine.py defines no strategy"),
    ("x = 1\ndef f(:\n", "mine.py cannot be run: line 2: SyntaxError: invalid syntax"),
    ("def f():\n    raise ValueError('two\\nlines')\nf()\n", "line 2: ValueError: two"),
    ("import sys\nsys.exit('bye')\n", "line 2: SystemExit: bye"),
    (
        "import finpod\nclass A(finpod.Strategy):\n    def __init__(self):\n        self.k = 1 / 0\n",
        r"(line 4: ZeroDivisionError: division by zero)",
    ),
    (
        "import finpod\nclass A(finpod.Strategy):\n    def __init__(self):\n        finpod.load_market('gone.csv')\n",
        "there is no market gone.csv",
    ),
])  # fmt: skip
def test_a_file_that_is_no_strategy_is_one_line(write, text, message):
    raised = refused("", load_strategy, write(text), error=FinpodError)
    assert isinstance(raised, InputError if "gone.csv" in message else StrategyError)
    assert message in str(raised)


def test_loading_leaves_no_junk_and_what_is_loaded_can_be_copied_and_pickled(write, tmp_path):
    path_before, modules_before = list(sys.path), set(sys.modules)
    strategy = load_strategy(str(write(GOOD)))
    refused("", load_strategy, write("1 / 0", "broken.py"), error=StrategyError)
    assert sys.path == path_before
    assert [name.split("_")[:3] for name in set(sys.modules) - modules_before] == [["finpod", "strategy", "mine"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.py", "mine.py"]
    assert (strategy.name, type(strategy).__name__, isinstance(strategy, Strategy)) == ("Half", "Half", True)
    assert type(copy.deepcopy(strategy)) is type(pickle.loads(pickle.dumps(strategy))) is type(strategy)


def test_feature_functions_of_a_file(write, tmp_path):
    path = write(
        "from os.path import join\nimport numpy as np\n\ndef mine(market):\n    return market.close\n\n"
        "def _helper(market):\n    return 1\n\ndef return_5(market):\n    return market.close\n\nother = mine\n"
    )
    assert [function.__name__ for function in load_features(path)] == ["mine"]
    refused("defines no feature function", load_features, write("x = 1\n"), error=StrategyError)
    refused("cannot be run: line 1: SystemExit", load_features, write("raise SystemExit(0)\n"), error=StrategyError)
    for wrong in (tmp_path / "gone.py", tmp_path):
        refused("there is no Python file", load_features, wrong)
