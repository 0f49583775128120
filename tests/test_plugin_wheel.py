"""A user's package, built as a wheel and installed with turnwise's wheel into a new environment.

``python -m envs new`` writes the package. A second installed package has a module that fails to
import.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BROKEN = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "broken-plugin"
version = "1.0"

[project.entry-points."turnwise.envs"]
broken-v0 = "broken_plugin:Env"

[project.entry-points."turnwise.tools"]
broken = "broken_plugin:tool"

[project.entry-points."turnwise.rewards"]
"rubric.broken" = "broken_plugin:reward"

[tool.setuptools]
py-modules = ["broken_plugin"]
"""
FAULT = "advertised by broken-plugin as 'broken_plugin:{}', fails to import: ModuleNotFoundError"
SHORT = """
    model=tiny tiny.demonstrations=60 tiny.steps=4 tiny.warmup_steps=1 tiny.hidden_size=24
    tiny.num_layers=1 tiny.context_length=512 steps=2 prompts=2 group_size=2 eval.every=2
    eval.tasks=2 eval.test_tasks=0 sampling.max_tokens=4 save_every=2
"""
"""The shortest run that goes through everything."""


class Machine:
    """An environment in which turnwise and both plug-ins are installed."""

    def __init__(self, home: Path) -> None:
        self.home, self.python = home, home / "venv" / "bin" / "python"
        self.environment = {
            **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            "TURNWISE_CACHE": str(home / "cache"),
            "OMP_NUM_THREADS": "1",
        }

    def run(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.python), "-W", "error", *words],
            cwd=cwd or self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def says(self, *words: str, cwd: Path | None = None) -> str:
        """Output of a command that must succeed."""
        done = self.run(*words, cwd=cwd)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "broken" not in done.stderr
        return done.stdout

    def refuses(self, *words: str) -> str:
        """Single line of a command that must fail."""
        done = self.run(*words)
        assert done.returncode != 0
        (line,) = done.stderr.splitlines()
        return line


@pytest.fixture(scope="module")
def machine(tmp_path_factory, turnwise_wheel, wheels):
    home = tmp_path_factory.mktemp("machine")
    subprocess.run(
        [sys.executable, "-m", "envs", "new", "their-sums"],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=120,
        check=True,
    )
    broken = home / "broken"
    broken.mkdir()
    (broken / "pyproject.toml").write_text(BROKEN)
    (broken / "broken_plugin.py").write_text("import no_such_module_anywhere\n")
    wheels(home, home / "their-sums", broken)
    venv = home / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=120)
    options = ["--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install"]
    subprocess.run(
        [*pip, *options, str(turnwise_wheel), *map(str, home.glob("*.whl"))],
        capture_output=True,
        timeout=300,
        check=True,
    )
    (site,) = venv.glob("lib/python*/site-packages")
    # The dependencies are installed here. Added last, because turnwise may be installed here too.
    paths = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (site / "dependencies.pth").write_text("\n".join(paths) + "\n")
    return Machine(home)


def test_the_installed_package_runs(machine):
    program = "import envs, their_sums; print(envs.__file__, their_sums.__file__, sep='\\n')"
    for file in machine.says("-c", program).splitlines():
        assert Path(file).is_relative_to(machine.home / "venv")


def test_its_own_tests_pass_and_its_code_is_clean(machine):
    folder = machine.home / "their-sums"
    quiet = ["-W", "default", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    printed = machine.says(*quiet, cwd=folder)
    assert "9 passed" in printed
    for check in (["check"], ["format", "--check"]):
        machine.says("-m", "ruff", *check, "--no-cache", ".", cwd=folder)


def test_list_shows_all_and_the_error_of_the_broken_one(machine):
    lines = dict(line.split("  ", 1) for line in machine.says("-m", "envs", "list").splitlines())
    assert lines["their-sums-v0"].strip() == ("Add two numbers; a wrong sum may be corrected once.")
    assert FAULT.format("Env") in lines["broken-v0"]
    assert "math-v0" in lines and "search-qa-v0" in lines


def test_it_is_checked(machine):
    said = machine.says("-m", "envs", "check", "their-sums", "digits=2", "--tasks=2")
    assert said.startswith("their-sums-v0 keeps the contract (tasks 0, ")
    info = machine.says("-m", "envs", "info", "their-sums")
    assert "their-sums-v0 (from their-sums)" in info
    assert "  digits=1\n      Digits per number.\n" in info


def test_its_environment_trains(machine):
    out = machine.home / "run"
    machine.says("-m", "rl.train", "env=their-sums", "env.digits=1", *SHORT.split(), f"out={out}")
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in metrics] == [0, 1, 2]
    assert all(row["failures"] == 0 for row in metrics if row["step"])
    assert len(list(out.glob("checkpoints/*/model.safetensors"))) > 0


def test_its_tool_is_used_in_search_qa(machine):
    program = """
import envs
env = envs.make("search-qa-v0", tools="their-sums-add", syntax="{syntax}")
env.reset(seed=0)
step = env.step({call!r})
print(step.observation, step.info["tool_calls"][0].arguments, step.terminated)
env.close()
"""
    tags = "<think> x </think> <add> [1, 2.5] </add>"
    code = program.format(syntax="re-search", call=tags)
    assert machine.says("-c", code).split() == (
        ["<result>", "3.5", "</result>", "{'numbers':", "[1,", "2.5]}", "False"]
    )
    json_call = '<tool_call>{"name": "add", "arguments": {"numbers": "two"}}</tool_call>'
    code = program.format(syntax="json", call=json_call)
    assert "Error: add: numbers: Input should be a valid list" in machine.says("-c", code)


def test_its_tool_is_named_on_the_command_line_of_a_run(machine):
    words = ["env=search-qa", "env.tools=calculator, their-sums-add", "dry_run=true"]
    assert "env.tools=calculator, their-sums-add\n" in machine.says("-m", "rl.train", *words)
    unknown = machine.refuses("-m", "rl.train", "env=search-qa", "env.tools=their-sums-ad")
    assert "unknown tool 'their-sums-ad'. Did you mean 'their-sums-add'?" in unknown


def test_its_reward_is_used_in_math(machine):
    rubric = "accuracy + 0.5*their_sums_brief(words=3)"
    program = f"""
import envs
env = envs.make("math-v0", rubric={rubric!r})
env.reset(options={{"task": 0}})
print(env.reward_range, env.step("it is " + chr(92) + "boxed{{1000000}}").info["rewards"])
env.close()
"""
    said = machine.says("-c", program)
    assert said == "(0.0, 1.5) {'accuracy': 0.0, 'brief': 0.5}\n"
    dry = machine.says("-m", "rl.train", "env=math", f"env.rubric={rubric}", "dry_run=true")
    assert f"env.rubric={rubric}\n" in dry


@pytest.mark.parametrize(
    ("words", "attribute"),
    [
        (["-m", "rl.train", "env=broken"], "Env"),
        (["-m", "rl.train", "env=search-qa", "env.tools=broken"], "tool"),
        (["-m", "rl.train", "env=math", "env.rubric=broken"], "reward"),
        (["-m", "envs", "check", "broken"], "Env"),
    ],
)
def test_an_error_names_the_broken_plug_in(machine, words, attribute):
    line = machine.refuses(*words)
    assert line.startswith("error: ")
    assert FAULT.format(attribute) in line
    assert line.endswith("Fix or uninstall it; nothing else is affected.")
