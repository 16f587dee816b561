"""The public names, the cost of importing them, the dependencies, and the tree in finpod/README.md."""

import ast
import json
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_architecture import MODULES

import finpod
from finpod import errors

PACKAGE = Path(finpod.__file__).parent
HEAVY = {"torch", "ray", "pyfolio", "pandas", "matplotlib", "scipy", "gymnasium", "yfinance", "skfolio", "sklearn"}


def fresh(code):
    """What `code` prints as JSON in a new Python process."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_all_is_complete():
    assert sorted(finpod.__all__) == sorted(finpod._HOME)
    assert list(finpod.__all__) == sorted(finpod.__all__)
    assert set(finpod.__all__) <= set(dir(finpod))
    stub = next(node for node in ast.parse((PACKAGE / "__init__.py").read_text()).body if isinstance(node, ast.If))
    typed = {a.name: n.module for n in stub.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert typed == {name: f"finpod.{place}" for name, place in finpod._HOME.items()}


def test_public_names_are_no_submodules_and_resolve_after_every_submodule_is_imported():
    assert all(find_spec(f"finpod.{name}") is None for name in finpod.__all__)
    code = f"""
import importlib, inspect, json, finpod
for name in {sorted(MODULES)!r}:
    importlib.import_module(f"finpod.{{name}}".rstrip("."))
print(json.dumps([n for n in finpod.__all__ if inspect.ismodule(getattr(finpod, n)) or not callable(getattr(finpod, n))]))
"""
    assert fresh(code) == []


@pytest.mark.parametrize("code", ["import finpod.devices", "import finpod.rules; finpod.Strategy, finpod.top_k"])
def test_importing_finpod_and_the_rules_loads_nothing_heavy(code):
    assert not HEAVY & set(fresh(f"import json, sys; {code}; print(json.dumps(sorted(sys.modules)))"))


def test_every_module_says_what_it_is_for():
    texts = {name: path.read_text() for name, path in MODULES.items()}
    assert [name for name, text in texts.items() if text and not ast.get_docstring(ast.parse(text))] == []


def test_d22_dependencies_have_lower_bounds_and_no_exact_pins():
    with (PACKAGE.parent / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    extras = [one for group in project["optional-dependencies"].values() for one in group]
    for dependency in [*project["dependencies"], *extras]:
        assert ">=" in dependency, dependency
        assert "==" not in dependency, dependency


def test_d22_training_and_backtest_need_neither_ray_nor_the_other_optional_packages():
    """As in an image with torch and pandas alone; also what a platform without ray runs."""
    absent = ("ray", "gymnasium", "yfinance", "pyfolio", "skfolio", "scipy", "matplotlib", "index_constitution")
    code = f"""
import json, sys
for name in {absent!r}:
    sys.modules[name] = None
import tempfile, pathlib, finpod
market = finpod.simulate_market(names=3, days=400, seed=0)
day = [str(d)[:10] for d in market.dates]
with tempfile.TemporaryDirectory() as folder:
    out = pathlib.Path(folder) / "agent"
    finpod.train("stocks", market=market, train=(day[260], day[330]), validation=(day[331], day[360]), out=out,
                 agents=1, rounds=1, keep=1, steps=1, num_envs=8, device="cpu")
    print(json.dumps(str(finpod.backtest(finpod.load_strategy(out), market, start=day[361]))))
"""
    assert "Sharpe" in fresh(code)


def test_the_tree_in_the_readme_names_every_module():
    tree = (PACKAGE / "README.md").read_text().split("## The tree")[1].split("```")[1]
    named, folders = set(), []
    for line in tree.strip().splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        folders[depth:] = [name.rstrip("/")]
        if name.endswith(".py"):
            assert len(line.split()) > 1, f"{name} has no purpose"
            named.add("/".join(folders[1:]))
    modules = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    assert named == {name for name in modules if not name.endswith("/__init__.py")}


def test_errors_of_input_and_data_are_value_errors():
    kinds = [getattr(errors, name) for name in finpod.__all__ if name.endswith("Error")]
    assert all(issubclass(kind, errors.FinpodError) for kind in kinds)
    assert {kind.__name__ for kind in kinds if issubclass(kind, ValueError)} == {"InputError", "DataError"}
