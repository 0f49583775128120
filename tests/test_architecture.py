"""Rules of the code: directions of imports, sizes of files and functions, forbidden constructs."""

from __future__ import annotations

import ast
import collections
import functools
import graphlib
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[1]
PACKAGES = ("tools", "envs", "agents", "rl")
"""Each imports only what stands to its left."""
OUTSIDE = ("examples", "benchmarks", "tests")
MAX_FILE, MAX_FUNCTION, MAX_PARAMETERS, MAX_MODULES = 600, 60, 8, 12
MAX_FOLDER_EDGES = 397
"""Pairs of folders of which the first imports from the second. Lower it when the number falls."""
GLOBAL_RANDOM_STATE = {
    *(f"random.{name}" for name in ("seed", "random", "randint", "choice", "shuffle", "sample")),
    *(f"np.random.{name}" for name in ("seed", "rand", "randn", "randint", "choice", "shuffle")),
    *("np.random.permutation", "np.random.random", "torch.seed", "torch.cuda.manual_seed"),
    *("torch.manual_seed", "torch.cuda.manual_seed_all", "torch.random.manual_seed"),
    *("transformers.set_seed", "set_seed"),
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((HOME / package).rglob("*.py"))]


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def module(path: Path) -> str:
    return ".".join(path.relative_to(HOME).with_suffix("").parts).removesuffix(".__init__")


def location(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(HOME)}:{node.lineno}"  # type: ignore[attr-defined]


def imports(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Every import with its top-level package, including imports inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            yield node, (node.module or "").split(".")[0] if node.level == 0 else "."
        elif isinstance(node, ast.Call) and dotted(node.func) == "importlib.import_module":
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant):
                yield node, str(first.value).split(".")[0]


def dotted(node: ast.AST) -> str:
    """``a.b.c`` for such an expression, else a string that equals no name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def wrong_way(package: str, tree: ast.AST) -> list[tuple[ast.AST, str]]:
    forbidden = {*PACKAGES[PACKAGES.index(package) + 1 :], *OUTSIDE}
    return [(node, name) for node, name in imports(tree) if name in forbidden]


def functions(tree: ast.AST) -> Iterator[Function]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def num_lines(function: Function) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def num_parameters(function: Function) -> int:
    a = function.args
    names = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"])) + bool(a.vararg) + bool(a.kwarg)


def silences(handler: ast.ExceptHandler) -> bool:
    """Every bare ``except``, and every one that catches all exceptions and does nothing."""
    if handler.type is None:
        return True
    caught = {dotted(n) for n in ast.walk(handler.type)}
    nothing = all(
        isinstance(statement, ast.Pass | ast.Continue)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in handler.body
    )
    return nothing and bool(caught & {"Exception", "BaseException"})


def suppresses_everything(call: ast.Call) -> bool:
    caught = {dotted(argument) for argument in call.args}
    return dotted(call.func).endswith("suppress") and bool(caught & {"Exception", "BaseException"})


def global_randomness(tree: ast.AST) -> list[ast.Call]:
    """Calls that use a global random generator."""
    borrowed: set[ast.AST] = set()
    for function in functions(tree):
        if any(dotted(node).endswith(("setstate", "set_state")) for node in ast.walk(function)):
            borrowed.update(ast.walk(function))
    for node in ast.walk(tree):
        if isinstance(node, ast.With) and any(
            isinstance(item.context_expr, ast.Call)
            and dotted(item.context_expr.func).endswith("fork_rng")
            for item in node.items
        ):
            borrowed.update(ast.walk(node))
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and dotted(node.func).replace("numpy.", "np.") in GLOBAL_RANDOM_STATE
        and node not in borrowed
    ]


def test_there_are_sources():
    """The rules below have files to check."""
    assert len(sources()) > 80


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package):
    assert not [
        f"{location(path, node)} imports {name}"
        for path in sorted((HOME / package).rglob("*.py"))
        for node, name in wrong_way(package, parse(path))
    ]


def named(tree: ast.AST) -> Iterator[str]:
    """Every module and name that a module imports, also in functions and for annotations."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def import_graph(trees: Mapping[str, ast.AST]) -> dict[str, set[str]]:
    """By module, the other modules of ``trees`` that it imports.

    ``from package import name`` counts as an import of the module ``package.name`` if it exists,
    else of ``package``.
    """

    def owner(name: str) -> str:
        while name and name not in trees:
            name = name.rpartition(".")[0]
        return name

    return {
        module: {owner(name) for name in named(tree)} - {module, ""}
        for module, tree in trees.items()
    }


def test_no_modules_import_each_other_in_a_circle():
    """Imports in functions and for annotations count, because they hide a missing object, too."""
    graph = import_graph({module(path): parse(path) for path in sources()})
    assert graph["rl.runtime.tiny"] >= {"rl.settings.groups", "rl.runtime.imitation"}
    graphlib.TopologicalSorter(graph).prepare()


def folder_edges(graph: Mapping[str, set[str]], folders: Mapping[str, str]) -> set[tuple[str, str]]:
    """The pairs of different folders of which the first imports from the second."""
    pairs = {(folders[name], folders[other]) for name, others in graph.items() for other in others}
    return {(folder, other) for folder, other in pairs if folder != other}


def test_few_folders_import_each_other():
    """A new pair often shows a module in the wrong folder; its imports are the message."""
    graph = import_graph({module(path): parse(path) for path in sources()})
    folders = {module(path): str(path.parent.relative_to(HOME)) for path in sources()}
    edges = folder_edges(graph, folders)
    assert len(edges) <= MAX_FOLDER_EDGES, sorted(edges)


def test_only_commands_errors_and_files_are_at_the_top_of_rl():
    tops = {path.stem: path.read_text(encoding="utf-8") for path in (HOME / "rl").glob("*.py")}
    others = {name for name, text in tops.items() if '__name__ == "__main__"' not in text}
    assert others == {"__init__", "errors", "files"}


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("tools", ["torch", "transformers", "vllm", "ray", "matplotlib", "envs", "agents", "rl"]),
        ("envs", ["torch", "transformers", "vllm", "ray", "matplotlib", "agents", "rl"]),
        ("agents", ["vllm", "ray", "rl"]),
    ],
)
def test_importing_a_package_loads_little(package, forbidden):
    program = (
        f"import sys; import {package}; "
        f"print(len(sys.modules), *sorted({set(forbidden)!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=HOME,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    modules, *loaded = done.stdout.split()
    assert loaded == []
    # The number of modules measures the cost of an import on every machine: 420 modules take
    # 0.3 s, most of them gymnasium's and NumPy's.
    assert package == "agents" or int(modules) < 500


MODEL_TYPES = re.compile(r"\b(PreTrainedModel|nn\.Module|ScoringModel)\b")
"""Types of models: a run sees its learner's facts and handles instead (docs/architecture.md)."""
HOLD_MODELS = (
    "rl/learner/",
    "agents/local/",
    # What the learner computes packed rows with; the models are the learner's.
    *("rl/packing/attention.py", "rl/packing/models.py"),
    # Count memory by running a model without data.
    *("rl/planning/learner.py", "rl/planning/scorers.py"),
    # Commands that train or average a model without a learner.
    *("rl/runtime/imitation.py", "rl/preferences/", "rl/merge.py"),
)


def test_only_the_learner_and_the_local_policy_hold_a_model():
    holders = {
        str(path.relative_to(HOME))
        for path in sources()
        if MODEL_TYPES.search(path.read_text(encoding="utf-8"))
    }
    assert not {name for name in holders if not name.startswith(HOLD_MODELS)}
    assert holders >= {"rl/learner/local.py", "agents/local/policy.py"}


def test_files_are_small():
    lengths = {p.relative_to(HOME): len(p.read_text().splitlines()) for p in sources()}
    assert not {str(path): length for path, length in lengths.items() if length > MAX_FILE}


def crowded(root: Path) -> dict[str, int]:
    """Folders with too many modules; commands at the top of rl do not count."""
    counts = collections.Counter(
        path.parent
        for path in root.rglob("*.py")
        if path.stem not in ("__init__", "__main__")
        and not (path.parent == HOME / "rl" and '__name__ == "__main__"' in path.read_text())
    )
    return {
        str(folder.relative_to(HOME)): count
        for folder, count in counts.items()
        if count > MAX_MODULES
    }


@pytest.mark.parametrize("root", [*PACKAGES, "benchmarks", "examples"])
def test_folders_hold_few_modules(root):
    assert not crowded(HOME / root)


def test_functions_are_small():
    assert not [
        f"{location(path, function)} {function.name}: {num_lines(function)} lines"
        for path in sources()
        for function in functions(parse(path))
        if num_lines(function) > MAX_FUNCTION
    ]


def test_functions_take_few_parameters():
    assert not [
        f"{location(path, function)} {function.name}: {num_parameters(function)} parameters"
        for path in sources()
        for function in functions(parse(path))
        if num_parameters(function) > MAX_PARAMETERS
    ]


def test_no_file_is_called_utils():
    vague = ("utils.py", "util.py", "helpers.py", "misc.py", "common.py")
    assert not [str(path.relative_to(HOME)) for path in sources() if path.name in vague]


def test_pages_name_files_that_exist():
    named = re.compile(rf"`((?:{'|'.join(PACKAGES + OUTSIDE)})/[\w/]+\.py)`")
    pages = [*HOME.glob("*.md"), *(HOME / "docs").rglob("*.md")]
    files = [file for page in pages for file in named.findall(page.read_text(encoding="utf-8"))]
    assert len(files) > 80
    assert not [file for file in files if not (HOME / file).is_file()]


def test_library_code_does_not_print():
    assert not [
        location(path, node)
        for path in sources()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and dotted(node.func) in ("print", "pprint", "pprint.pprint")
    ]


def test_no_error_is_silenced():
    assert not [
        location(path, node)
        for path in sources()
        for node in ast.walk(parse(path))
        if (isinstance(node, ast.ExceptHandler) and silences(node))
        or (isinstance(node, ast.Call) and suppresses_everything(node))
    ]


def test_no_global_random_state():
    # In a sandbox the generator belongs to the program; a fork must seed it again.
    hooks = HOME / "tools/sandbox/inside/program/fork_hooks.py"
    # The library draws in a process of its own, whose generators each draw seeds.
    draws = HOME / "envs/adapters/reasoning_gym_tasks.py"
    outside = [path for path in sources() if path not in (hooks, draws)]
    assert not [location(path, call) for path in outside for call in global_randomness(parse(path))]
    assert len(global_randomness(parse(hooks))) == 1
    assert len(global_randomness(parse(draws))) == 2


def test_each_rule_detects_a_violation():
    """Each rule on a minimal violation."""
    tree = ast.parse("def f():\n    from rl.x import y\n    import envs.z\n    import tools")
    assert [name for _, name in wrong_way("tools", tree)] == ["rl", "envs"]
    assert [name for _, name in wrong_way("agents", tree)] == ["rl"]
    assert wrong_way("rl", ast.parse("import tests.x, agents.y"))[0][1] == "tests"
    program = "import a.b\nif TYPE_CHECKING:\n    from a.c import D\ndef f():\n    from a import e"
    trees = {"a": ast.parse(""), "a.b": ast.parse("import x"), "a.c": ast.parse("import m")}
    graph = import_graph(trees | {"m": ast.parse(program)})
    assert graph == {"a": set(), "a.b": set(), "a.c": {"m"}, "m": {"a", "a.b", "a.c"}}
    places = {"a": "a", "a.b": "a", "a.c": "a/c", "m": "m"}
    assert folder_edges(graph, places) == {("a/c", "m"), ("m", "a"), ("m", "a/c")}
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(graph).prepare()
    (function,) = functions(ast.parse("def f(self, a, b, *c, d=1, **e):\n    pass\n"))
    assert (num_parameters(function), num_lines(function)) == (5, 2)
    for text, bad in (
        ("except: raise", True),
        ("except Exception: pass", True),
        ("except (ValueError, Exception): ...", True),
        ("except ValueError: pass", False),
        ("except Exception: raise", False),
    ):
        (attempt,) = ast.parse(f"try:\n    f()\n{text}").body
        assert silences(attempt.handlers[0]) == bad, text
    call = ast.parse("contextlib.suppress(Exception)", mode="eval").body
    assert suppresses_everything(call)
    seeding = "{}torch.manual_seed(0)\nnp.random.seed(0)\nnumpy.random.default_rng(0)"
    assert len(global_randomness(ast.parse(seeding.format("")))) == 2
    inside = "with torch.random.fork_rng(devices=[]):\n    torch.manual_seed(0)"
    assert global_randomness(ast.parse(inside)) == []
    restoring = "def f():\n    random.seed(0)\n    random.setstate(state)"
    assert global_randomness(ast.parse(restoring)) == []


def test_tests_are_no_packages_and_their_names_are_unique():
    tests = HOME / "tests"
    assert not list(tests.rglob("__init__.py"))
    names = collections.Counter(path.name for path in tests.rglob("test_*.py"))
    assert not [name for name, count in names.items() if count > 1]


def test_the_distribution_names_the_four_packages():
    project = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))
    tool = project["tool"]
    include = tool["setuptools"]["packages"]["find"]["include"]
    assert sorted(include) == sorted(f"{p}{rest}" for p in PACKAGES for rest in ("", ".*"))
    data = {package: ["py.typed"] for package in PACKAGES}
    data["rl"].append("viewer/page/*")
    assert tool["setuptools"]["package-data"] == data
    assert sorted(tool["mypy"]["packages"]) == sorted(PACKAGES)
    assert tool["pytest"]["ini_options"]["filterwarnings"] == ["error"]


def test_the_wheel_holds_the_four_packages_and_nothing_else(turnwise_wheel):
    with zipfile.ZipFile(turnwise_wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    held = {name for name in names if name.endswith(".py")}
    assert held == {str(path.relative_to(HOME)) for path in sources()}
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    page = {str(path.relative_to(HOME)) for path in (HOME / "rl/viewer/page").iterdir()}
    assert page == {name for name in names if name.startswith("rl/viewer/page/")}
