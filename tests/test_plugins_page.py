"""docs/plugins.md: its code runs; its names and commands are those of what ``new`` writes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from envs.command.new import write_package

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "plugins.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def test_its_environment_lets_its_agent_call_a_tool(capsys):
    (code,) = blocks("python")
    exec(compile(code, "docs/plugins.md", "exec"), {"__name__": "plugins_page"})
    (told,) = re.findall(r"^print\(.*?  # (.*)$", code, re.MULTILINE)
    assert capsys.readouterr().out.strip() == told


def test_its_names_and_commands_are_those_of_the_package_that_new_writes(tmp_path):
    home = write_package("dice-sums", tmp_path)
    written = tomllib.loads((home / "pyproject.toml").read_text())["project"]["entry-points"]
    (text,) = blocks("toml")
    assert tomllib.loads(text)["project"]["entry-points"] == written
    commands = "".join(blocks("sh"))
    for group in written.values():
        for name in group:
            assert name.removesuffix("-v0").removeprefix("rubric.") in commands
