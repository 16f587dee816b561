"""Architecture rules: layers, import cycles, sizes, decisions by wording, command line options in the library.

All imports count: at the top of a module, inside functions, and under TYPE_CHECKING. `known.toml` has the sizes of packages above
their budgets, which may only shrink, and the words that may be looked for.
"""

import ast
import re
import statistics
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import finpod

PACKAGE = Path(finpod.__file__).parent
KNOWN = tomllib.loads((Path(__file__).parent / "known.toml").read_text())
MODULE_LINES, BODY_LINES = 350, 40
READS_USERS_FILES = {f"market.{name}" for name in ("columns", "layouts", "parsing", "readers", "tidy")}
"""Modules that may look for words in texts, for the texts are those of users' files."""
KNOWS_OPTIONS = {"cli", "deploy"}
"""Packages that may name options of the command line."""
BUDGETS = {
    "top level": 3220,
    "market features": 3540,
    "trading": 1115,
    "lookahead": 990,
    "envs": 1370,
    "rl": 2590,
    "workers": 1030,
    "evidence backtesting": 2505,
    "tournament walkforward training": 2620,
    "report": 1600,
    "deploy bench cli __main__": 2850,
    "spine": 6500,
}
"""Packages -> most lines that they may have together. known.toml says what the larger ones may have until they shrink."""
MEDIAN_LINES = 240
SPINE = (
    "measures market.data features trading strategy weights result backtesting.engine envs rl tasks ensemble tournament"
)
"""Packages and modules to read first, but for those in `BESIDE_THE_SPINE`."""
BESIDE_THE_SPINE = (
    *("envs.locomotion", "tournament.run_folder", "tournament.analysis"),
    *("rl.apg", "trading.anchors", "trading.caps", "trading.relaxation"),
)
"""Modules in these packages that are not part of the spine. Its budget leaves out what the budgets of `rl` and `trading`
reserve lines for: `rl.apg`, anchors and caps, which were added later, and `trading.relaxation`, which stands in for compiled
kernels."""
WHOLE = ast.Dict | ast.Tuple | ast.List | ast.Set | ast.BinOp | ast.JoinedStr | ast.IfExp | ast.Starred
"""Expressions that are made of the texts in them."""

LAYERS = """
errors figures measures periods significance risk_figures files storage | pickling devices
market
features
trading | active
strategy weights rules synthetic result | records
lookahead
envs
rl
tasks | locomotion environments
workers
evidence
backtesting
tournament
ensemble | training
walkforward
loading
report
api
bench
deploy
cli | __main__
"""
"""A module imports from its own layer and from those above it. Behind the bar: modules that will move to the layer."""
UPWARD = {
    "records": {"__str__"},
    "result": {"__str__", "save", "to_json", "report"},
    "backtesting.comparison": {"__str__", "to_json", "report"},
}
"""Methods of values that call what words, draws or writes them: their imports count for neither layers nor circles."""
PARTS = {
    part: number for number, line in enumerate(LAYERS.split("\n")) for part in line.replace("|", " ").split() if part
}
TASK_BLIND = ("rl", "workers", "tournament")
"""Packages that serve any task, and therefore import nothing of the packages below."""
OF_STOCKS = """
market features trading backtesting report strategy envs.actions envs.market_env envs.gym envs.locomotion tasks locomotion
environments
"""


def module_name(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))} | {"": PACKAGE / "__init__.py"}


@cache
def tree(module):
    return ast.parse(MODULES[module].read_text())


def nodes(module, *kinds):
    return (node for node in ast.walk(tree(module)) if isinstance(node, kinds))


@cache
def imports(module):
    """The modules of finpod that a module imports anywhere in its text; a public name counts as its home."""
    targets = set()
    methods = [node for node in nodes(module, ast.FunctionDef) if node.name in UPWARD.get(module, ())]
    upward = {id(node) for method in methods for node in ast.walk(method)}
    for node in nodes(module, ast.Import, ast.ImportFrom):
        if id(node) in upward:
            continue
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
            continue
        assert node.level == 0, f"{module} has a relative import"
        for alias in node.names:
            home = finpod._HOME.get(alias.name) if node.module == "finpod" else None
            inner = f"{node.module}.{alias.name}".removeprefix("finpod.")
            targets.add(f"finpod.{home}" if home else f"finpod.{inner}" if inner in MODULES else node.module)
    return {name.removeprefix("finpod.") for name in targets if name.startswith("finpod.")} - {module}


def part_of(module, packages):
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def edges():
    return [(module, target) for module in MODULES if module for target in sorted(imports(module))]


def layer(module):
    prefixes = [module.rsplit(".", cut)[0] for cut in range(module.count(".") + 1)]
    place = next((PARTS[prefix] for prefix in prefixes if prefix in PARTS), None)
    assert place is not None, f"{module} is in no layer: add it to LAYERS"
    return place


def test_imports_go_to_the_own_layer_or_a_lower_one():
    assert [f"{module} -> {target}" for module, target in edges() if layer(target) > layer(module)] == []


def test_only_the_top_layers_import_the_package_as_a_whole():
    whole = [a for a in MODULES for node in nodes(a, ast.Import) if "finpod" in {alias.name for alias in node.names}]
    assert [module for module in whole if layer(module) < PARTS["bench"]] == []


def test_what_serves_any_task_knows_nothing_of_stocks():
    assert [f"{a} -> {b}" for a, b in edges() if part_of(a, TASK_BLIND) and part_of(b, OF_STOCKS.split())] == []


def test_imports_form_no_circle():
    TopologicalSorter({module: imports(module) for module in MODULES if module}).prepare()  # CycleError names a circle


def test_modules_are_short_and_packages_keep_to_their_budgets():
    lines = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert {module: count for module, count in lines.items() if count > MODULE_LINES} == {}
    tops = {module for module, path in MODULES.items() if path.parent == PACKAGE} - set(" ".join(BUDGETS).split())
    groups = {name: set(name.split()) for name in BUDGETS} | {"top level": tops, "spine": set(SPINE.split())}
    sizes = {name: sum(lines[m] for m in MODULES if part_of(m, group)) for name, group in groups.items()}
    sizes["spine"] -= sum(lines[m] for m in MODULES if part_of(m, BESIDE_THE_SPINE))
    assert not {m for m in MODULES if not any(part_of(m, groups[name]) for name in BUDGETS if name != "spine")}
    allowed = {name: max(budget, KNOWN["package_lines"].get(name, 0)) for name, budget in BUDGETS.items()}
    assert {name: size for name, size in sizes.items() if size > allowed[name]} == {}, "has grown"
    counted = [lines[m] for m, path in MODULES.items() if path.stem not in ("__init__", "__main__")]
    assert statistics.median(counted) <= MEDIAN_LINES


def test_functions_are_short():
    long = {}
    for module in MODULES:
        for function in nodes(module, ast.FunctionDef, ast.AsyncFunctionDef):
            body = function.body[1:] if ast.get_docstring(function) is not None else function.body
            count = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            if count > BODY_LINES:
                long[f"{module}.{function.name}"] = count
    assert long == {}


def literals(node, module, depth=4):
    """Texts in an expression, of dictionaries the keys: written there, or behind names of constants and of loops over them."""
    if isinstance(node, ast.Constant):
        yield from [node.value] if isinstance(node.value, str) else []
    elif isinstance(node, ast.Name):
        for value, home in bound(node.id, module) if depth else []:
            yield from literals(value, home, depth - 1)
    elif isinstance(node, WHOLE):
        for part in node.keys if isinstance(node, ast.Dict) else ast.iter_child_nodes(node):
            yield from literals(part, module, depth)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("items", "keys"):
        yield from literals(node.func.value, module, depth)
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("tuple", "set", "frozenset"):
        for part in node.args:
            yield from literals(part, module, depth)


@cache
def bound(name, module):
    """What a name is bound to in a module, by assignments of constants and loops, each with the module of its names."""
    values = []
    for node in nodes(module, ast.Assign, ast.AnnAssign, ast.For, ast.comprehension):
        value = node.iter if isinstance(node, ast.For | ast.comprehension) else node.value
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            first = target.elts[0] if isinstance(target, ast.Tuple) else target
            if isinstance(first, ast.Name) and first.id == name and not isinstance(value, ast.JoinedStr | ast.IfExp):
                values.append((value, module))
    for node in nodes(module, ast.ImportFrom):
        home = (node.module or "").removeprefix("finpod.")
        if home in MODULES and home != module:
            values += [pair for alias in node.names if alias.name == name for pair in bound(name, home)]
    return values


def prose_tests(module):
    """Texts with a space that a module looks for in other texts: startswith, endswith, `in` and regular expressions."""
    for node in nodes(module, ast.Compare, ast.Call):
        parts = []
        if isinstance(node, ast.Compare):
            for operator, text, whole in zip(node.ops, [node.left, *node.comparators], node.comparators, strict=False):
                parts += [text, whole] if isinstance(operator, ast.In | ast.NotIn) else []
        elif isinstance(node.func, ast.Attribute):
            regular = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            parts = node.args if regular or node.func.attr in ("startswith", "endswith") else []
        for part in parts:
            yield from {text for text in literals(part, module) if " " in text and re.search("[a-z]", text, re.I)}


def test_nothing_is_decided_by_the_wording_of_a_sentence():
    marks = set(KNOWN["not_our_sentences"])
    checked = set(MODULES) - READS_USERS_FILES
    found = {(module, text) for module in checked for text in prose_tests(module)}
    assert [f"{module}: {text!r}" for module, text in found if text not in marks] == []
    assert marks == {text for _, text in found}, "no longer there, so take it off tests/known.toml"


def test_the_library_names_no_options_of_the_command_line():
    options = []
    for module in MODULES:
        prose = {id(node.value) for node in nodes(module, ast.Expr)}
        texts = [str(node.value) for node in nodes(module, ast.Constant) if id(node) not in prose]
        options += [(module, option) for text in texts for option in re.findall(r"(?<!var\()--[a-z][a-z-]*", text)]
    assert [(module, option) for module, option in options if module.split(".")[0] not in KNOWS_OPTIONS] == []
