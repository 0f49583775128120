"""docs/plugins.md: its code runs, and its names and commands are those that ``new`` writes."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from envs.command.new import write_package

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "plugins.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def test_its_environment_lets_its_agent_call_a_tool(capsys):
    code = "".join(blocks("python")[:2])  # tests/test_algorithm_plugin.py installs the third one.
    page = compile(code, "docs/plugins.md", "exec", dont_inherit=True)
    exec(page, {"__name__": "plugins_page"})
    printed = re.findall(r"^print\(.*?  # (.*)$", code, re.MULTILINE)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == printed
    assert len(printed) == 2


def test_its_names_and_commands_are_those_of_the_package_that_new_writes(tmp_path):
    home = write_package("dice-sums", tmp_path)
    written = tomllib.loads((home / "pyproject.toml").read_text())["project"]["entry-points"]
    text = blocks("toml")[-1]
    assert tomllib.loads(text)["project"]["entry-points"] == written
    commands = "".join(blocks("sh"))
    for group in written.values():
        for name in group:
            assert name.removesuffix("-v0").removeprefix("rubric.") in commands


CHECKED = """
import sys
import ask
from envs.command.main import main
sys.exit(main(["check", "ask", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("options", [[], ["tools=calculator", "max_turns=2"]], ids=str)
@pytest.mark.parametrize("with_gold", [True, False])
def test_its_environment_keeps_the_contract(tmp_path, options, with_gold):
    code = blocks("python")[0]
    if not with_gold:
        code, count = re.subn(r"\n    def gold_policy.*?\n\n", "\n", code, flags=re.DOTALL)
        assert count == 1
    (tmp_path / "ask.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", CHECKED, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()[1:]  # The first line is the example's own.
    assert said[0].startswith("ask-v0 keeps the contract")
    assert [line.partition(" (")[0] for line in said[1:]] == (
        [] if with_gold else ["not tested: gold policy"]
    )
