"""Environments that are named by file, by module or by their class."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import envs
from envs.command.main import main
from envs.user_files import reference_to, short_name, source_files
from tools.references import load_module
from tools.registry import PluginImportError, UnknownNameError

FILE = '''
import dataclasses

import envs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(envs.EnvOptions):
    most: int = 10


@dataclasses.dataclass
class State:
    number: int


class Parity(envs.TextEnv[int, State]):
    """Is the number even?"""

    Options = Options

    def __init__(self, options, services=None):
        first = {"train": 0, "validation": 1000, "test": 2000, "all": 0}[options.split]
        super().__init__(options, range(first, first + options.most), services)

    def begin(self, task):
        self.state = State(task)
        return f"{task}?"

    def turn(self, action):
        return envs.finish({"right": float(action == ("odd" if self.state.number % 2 else "even"))})

    def gold_policy(self):
        return lambda question: "odd" if int(question[:-1]) % 2 else "even"
'''

SHOP = '''
import dataclasses

import envs
import tools
from tools.syntax import TAGS


@tools.tool
def price_of_it(fruit: str) -> str:
    """Its price.

    Args:
        fruit: Its name.
    """
    return "3 euros"


tools.register("price_of_it", price_of_it)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShopOptions(envs.ToolOptions):
    tools: str = "price_of_it"
    max_turns: int = 2


class Shop(envs.ToolEnv[int, int]):
    """What does it cost?"""

    Options = ShopOptions

    def __init__(self, options, services=None):
        super().__init__(options, range(3), services, syntax=TAGS)

    def begin(self, task):
        self.state = task
        return "How much?"

    async def turn(self, action):
        call = self.syntax.parse(action)
        if call is None:
            return envs.finish({"right": 0.0})
        result, record = await self.call(call)
        return envs.go_on(self.syntax.wrap(result.text), tool_calls=[record])
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my env.py"
    path.write_text(FILE)
    return path


def test_a_file_is_an_environment_by_its_absolute_or_relative_path(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    for name in (
        f"{file}:Parity",
        "my env.py:Parity",
        "./my env.py:Parity",
        "my env.py",
        str(file),
    ):
        assert envs.resolve(name) == f"{file}:Parity"
        env = envs.make(name, most=3)
        assert (env.env_id, len(env.tasks)) == (f"{file}:Parity", 3)
        assert env.reset(options={"task": 2})[0] == "2?"
        assert env.step("even").reward == 1.0
    assert envs.env_type("my env.py:Parity") is envs.env_type(str(file))
    assert short_name(f"{file}:Parity") == "Parity"
    assert source_files(f"{file}:Parity", envs.env_type(str(file))) == [file]


def test_its_states_can_be_copied(file):
    env = envs.make(str(file))
    env.reset(options={"task": 1})
    twin = env.fork()
    assert (twin.step("odd").reward, env.step("even").reward) == (1.0, 0.0)
    assert pickle.loads(pickle.dumps(envs.env_type(str(file)))) is type(env)


def test_a_file_that_changed_is_imported_again_and_else_only_once(file):
    before = envs.env_type(envs.resolve(str(file)))
    assert envs.env_type(envs.resolve(str(file))) is before
    file.write_text(FILE.replace('{task}?"', '{task}!"'))
    assert envs.make(str(file)).reset(options={"task": 1})[0] == "1!"
    assert envs.make(str(file)).reset(options={"task": 2})[0] == "2!"


def test_so_is_one_that_registers_a_tool(tmp_path):
    file = tmp_path / "shop.py"
    file.write_text(SHOP)
    assert "<price_of_it> fruit </price_of_it>" in envs.make(str(file)).system_prompt
    file.write_text(SHOP.replace("fruit", "vegetable").replace("3 euros", "40 euros"))
    with closing(envs.make(str(file))) as env:
        assert "<price_of_it> vegetable </price_of_it>" in env.system_prompt
        env.reset(options={"task": 0})
        called = env.step("<price_of_it> leek </price_of_it>")
    assert called.observation == " <result> 40 euros </result> "


def test_modules_beside_the_file_can_be_imported(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_an_env.py").write_text("FIRST = 5\n")
    (tmp_path / "e.py").write_text(f"from beside_an_env import FIRST\n{FILE}")
    try:
        assert envs.make(f"{tmp_path}/e.py").options.most == 10
        assert load_module(f"{tmp_path}/e.py").FIRST == 5
    finally:
        sys.modules.pop("beside_an_env", None)


@pytest.mark.parametrize(
    ("text", "name", "error", "message"),
    [
        (
            None,
            "e.py:Parity",
            UnknownNameError,
            "environment '{}/e.py:Parity': there is no file {}/e.py",
        ),
        (
            FILE,
            "e.py:Party",
            UnknownNameError,
            "environment '{}/e.py:Party': there is no class 'Party'. Did you mean 'Parity'? "
            "Its environments: Parity.",
        ),
        (
            FILE,
            "e.py:State",
            PluginImportError,
            "environment '{}/e.py:State': State is no subclass of envs.TextEnv. Its environments: "
            "Parity.",
        ),
        (
            f"{FILE}\nclass Other(Parity): pass\n",
            "e.py",
            UnknownNameError,
            "environment '{}/e.py': name its class, {}/e.py:CLASS. Its environments: Parity, "
            "Other.",
        ),
        (
            "x = 1\ny = x + undefined\n",
            "e.py:Parity",
            PluginImportError,
            "environment '{}/e.py:Parity': {}/e.py fails to import: NameError: name 'undefined' is "
            "not defined ({}/e.py, line 2)",
        ),
        (
            "import json\n\njson.loads('{')\n",
            "e.py:Parity",
            PluginImportError,
            "environment '{}/e.py:Parity': {}/e.py fails to import: JSONDecodeError: Expecting "
            "property name enclosed in double quotes: line 1 column 2 (char 1) ({}/e.py, line 3)",
        ),
        (
            "def broken(:\n",
            "e.py:Parity",
            PluginImportError,
            "environment '{}/e.py:Parity': {}/e.py fails to import: SyntaxError: invalid syntax "
            "(e.py, line 1)",
        ),
    ],
    ids=["file", "class", "no-env", "several", "name-error", "deep", "syntax"],
)
def test_mistakes_are_reported_in_one_line(tmp_path, capsys, text, name, error, message):
    if text is not None:
        (tmp_path / "e.py").write_text(text)
    with pytest.raises(error) as caught:
        envs.make(f"{tmp_path}/{name}")
    assert str(caught.value) == message.replace("{}", str(tmp_path))
    assert main(["check", f"{tmp_path}/{name}"]) == 2
    assert capsys.readouterr().err == f"error: {caught.value}\n"


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(PluginImportError) as caught:
        envs.make("no_such_module:Env")
    assert str(caught.value) == (
        "environment 'no_such_module:Env': no_such_module fails to import: ModuleNotFoundError: "
        "No module named 'no_such_module'"
    )


def test_commands_take_a_file(file, capsys):
    assert main(["check", str(file), "most=4"]) == 0
    assert f"{file}:Parity keeps the contract" in capsys.readouterr().out
    assert main(["info", f"{file}:Parity"]) == 0
    assert "Is the number even?" in capsys.readouterr().out


def test_a_class_is_named_by_its_module_and_is_never_replaced():
    class Local(envs.env_type("sudoku")):
        pass

    first = reference_to(Local)
    assert first.endswith(
        "test_user_files:test_a_class_is_named_by_its_module_and_is_never_replaced.<locals>.Local"
    )
    assert envs.env_type(first) is Local
    assert envs.resolve(first) == first
    assert short_name(first) == "Local"
    assert envs.make(first).env_id == first


def test_a_partial_call_of_a_class_keeps_its_arguments(file):
    class Shifted(envs.env_type(str(file))):
        def __init__(self, options, services=None, *, shift):
            super().__init__(options, services)
            self.shift = shift

    name = reference_to(functools.partial(Shifted, shift=7))
    env = envs.make(name, most=4)
    assert (env.shift, len(env.tasks), env.group(2)[1].shift) == (7, 4, 7)
    assert source_files(name, envs.env_type(name)) is None
    with pytest.raises(PluginImportError, match="neither a subclass of TextEnv nor"):
        reference_to(functools.partial(len))


def test_a_class_of_the_main_script_is_named_by_its_file(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"{FILE}\nfrom envs.user_files import reference_to\nprint(reference_to(Parity))\n"
        "print(envs.env_type(reference_to(Parity)) is Parity)\n"
    )
    home = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == f"{script}:Parity\nTrue\n"
