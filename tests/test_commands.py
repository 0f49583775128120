"""Every command line in the README, the docs, recipes and docstrings is valid.

The tests run no command: they parse its words into a checked configuration.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
from importlib import import_module
from pathlib import Path

import pytest

import envs
from envs.command.main import _parser
from envs.command.options import read_options
from rl.pipeline import read_stages
from rl.settings.parsing.command_line import parse

HOME = Path(__file__).resolve().parents[1]
COMMAND = re.compile(r"python -m (rl\.\w+|envs)(?= |$)([^`#\n;|&)]*)")
ELSEWHERE = {
    "dice-sums": "a package that `python -m envs new` writes; test_plugin_wheel.py runs it",
    "dice_sums": "the same package",
    "rank-learning": "the package of the page on plug-ins; test_algorithm_plugin.py installs it",
    "=squared": "the same package",
    "learner=far": "a package of a user; test_second_learner.py has a learner from outside",
    "policy=copied": "a package of a user; test_policy_plugin.py has an engine from outside",
    "$": "a shell's or a template's variable",
    "--help": "a help text; test_cli.py has it",
    "=value": "the form of a command",
    "NAME": "the form of a command",
    "info, check": "several commands",
    "list|": "several commands",
    "resume=": "needs a run; test_run_folders.py has one",
    "mcp(": "needs a server; the tests of tools/mcp have one",
    "{": "a message's or a pipeline's own text",
}
"""Words of command lines that cannot be parsed here, with the reason."""


def sources() -> list[Path]:
    pages = [HOME / "README.md", HOME / "CONTRIBUTING.md", *(HOME / "docs").rglob("*.md")]
    code = [path for name in ("rl", "envs", "agents") for path in (HOME / name).rglob("*.py")]
    return [*pages, *(HOME / "recipes").glob("*.toml"), *code]


def shown_in(path: Path) -> str:
    """The text of a page or a recipe, or a module's docstring."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    return re.sub(r" *\\\n[# ]*", " ", text)


def commands(path: Path) -> list[tuple[str, str]]:
    """Modules and words of a file's commands, with continued lines joined."""
    found = []
    for module, rest in COMMAND.findall(shown_in(path)):
        words = [w for w in rest.rstrip(" .:,\n").split(" ") if w and not w.endswith("...")]
        line = " ".join(words)
        if words and line.count('"') % 2 == 0 and not any(sign in line for sign in ELSEWHERE):
            found.append((module, line))
    return found


SHOWN = sorted(
    {
        (str(path.relative_to(HOME)), module, words)
        for path in sources()
        for module, words in commands(path)
    }
)


@pytest.fixture
def beside_a_run_file(tmp_path, monkeypatch):
    """Folder with the files that the commands name."""
    page = (HOME / "README.md").read_text(encoding="utf-8")
    (toml,) = re.findall(r"```toml\n# run\.toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "run.toml").write_text(toml)
    shutil.copytree(HOME / "recipes", tmp_path / "recipes")
    page = (HOME / "docs" / "python.md").read_text(encoding="utf-8")
    (environment,) = re.findall(r"```python\n(import envs\n.*?class Parity.*?)```", page, re.DOTALL)
    (tmp_path / "my_env.py").write_text(environment)
    adapter = tmp_path / "runs" / "search" / "checkpoints" / "best"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    monkeypatch.setenv("ENVIRONMENT_VARIABLE", "secret")
    monkeypatch.chdir(tmp_path)


def test_commands_are_found():
    files = {file for file, _, _ in SHOWN}
    assert {"README.md", "docs/vllm.md", "docs/algorithms.md", "rl/train.py"} <= files
    assert {f"recipes/{path.name}" for path in (HOME / "recipes").iterdir()} <= files
    assert len(SHOWN) > 60


@pytest.mark.parametrize(("file", "module", "words"), SHOWN, ids=[f"{f}:{w}" for f, _, w in SHOWN])
@pytest.mark.usefixtures("beside_a_run_file")
def test_a_documented_command_is_valid(monkeypatch, file, module, words):
    argv = shlex.split(words)
    if module == "envs":
        chosen = _parser().parse_args(argv)
        if getattr(chosen, "options", None):
            read_options(envs.env_type(chosen.name).Options, chosen.options)
    elif module == "rl.pipeline":
        path, *settings = argv
        given = dict(word.split("=", 1) for word in settings)
        out = Path(given.pop("out", "runs/pipeline"))
        assert read_stages(path, out, given)
    else:
        command = import_module(module)

        def only_parse(title, config_type, presets, work, argv, explain=None):
            return int(parse(config_type, argv, command=title, presets=presets) is None)

        monkeypatch.setattr(command, "run_command", only_parse)
        assert command.main(argv) == 0
