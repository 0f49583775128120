"""docs/environments.md: its code runs and prints what it says, its tables are complete."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import envs
from envs import rewards
from envs.checks.rules import RULES
from envs.rewards.mathematics import MATH_REWARDS

ROOT = Path(envs.__file__).parents[1]
PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def printed() -> str:
    """What the page's code prints, run from top to bottom."""
    done = run(["-W", "error", "-c", "\n".join(blocks("python"))])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_code_runs(printed):
    assert len(blocks("python")) == 7
    assert "CheckReport(env_id='add-v0'" in printed
    assert "CheckReport(env_id='metres-v0'" in printed
    assert "2000 m\nconvert: amount: Input should be a valid number" in printed


def test_copies_of_an_episode_answer_what_it_says(printed):
    copies = next(code for code in blocks("python") if "env.fork()" in code)
    shown = re.findall(r"^print\(.*?  # (.*)$", copies, re.MULTILINE)
    assert shown.pop() == "one question for all"
    assert len(shown) == 4
    assert "\n".join(shown) in printed
    assert len(re.findall(r"^\{'\d+ \+ \d+ ='\}$", printed, re.MULTILINE)) == 1


def test_the_budget_in_its_prompt_is_the_one_it_shows(printed):
    section = PAGE.split("## A token budget in the prompt")[1].split("\n## ")[0]
    shown = re.findall(r"^print\(.*?  # (.*)$", section, re.MULTILINE)
    assert len(shown) == 2
    assert "\n".join(shown) in printed


def test_its_dialogue_with_the_code_sandbox_is_what_happens():
    dialogue = re.search(r"may try again:\n\n(.*?)\n\n", PAGE, re.DOTALL)
    assert dialogue is not None
    question, guess, shown, repaired = (line.strip() for line in dialogue[1].splitlines())
    env = envs.make("code-sandbox", hide="constant", max_turns=2)
    try:
        assert env.reset(seed=0)[0] == question
        assert env.step(guess).observation == shown
        last = env.step(repaired)
        assert (last.reward, last.terminated) == (1.0, True)
    finally:
        env.close()


def test_every_option_of_the_code_sandbox_is_explained():
    section = PAGE.split("### `code-sandbox-v0`")[1].split("\n## ")[0]
    own = set(vars(envs.env_type("code-sandbox").Options)["__annotations__"])
    own |= {"tasks"}
    assert len(own) == 12
    for option in own - {"step_timeout_s"}:
        assert f"`{option}`" in section or f"`{option}=" in section, option


def test_every_option_of_math_is_explained():
    section = PAGE.split("### `math-v0`")[1].split("\n## ")[0]
    own = set(vars(envs.env_type("math").Options)["__annotations__"])
    own |= {"tasks"}
    assert {"tasks", "topic", "level", "reward"} <= own
    for option in {*own, "tools"}:
        assert f"`{option}`" in section or f"`{option}=" in section, option
    for reward in MATH_REWARDS:
        assert f"\n| `{reward}` | " in section


def test_its_commands_are_understood():
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(lines) == 4
    for line in lines:
        done = run([*shlex.split(line)[1:], "dry_run=True"])
        assert done.returncode == 0, done.stderr
        assert shlex.split(line)[4].split(" ")[0] in done.stdout


def test_its_entry_points_name_the_groups():
    groups = [list(tomllib.loads(text)["project"]["entry-points"]) for text in blocks("toml")]
    assert groups == [["turnwise.envs"], ["turnwise.rewards"], ["turnwise.tools"]]


def test_its_rewards_are_those_that_are_built_in(printed):
    section = PAGE.split("## Rewards by name")[1].split("\n## ")[0]
    for name in rewards.names("rubric"):
        assert f"`{name}`" in section, name
    assert "{'em': 1.0, 'brief': 0.5}\n(0.0, 1.5)\n" in printed


def test_its_table_is_the_one_that_is_generated():
    done = run(["-m", "envs", "list", "--markdown"])
    assert done.returncode == 0, done.stderr
    section = PAGE.split("## What is built in\n")[1]
    assert section.strip().startswith(done.stdout + "\n"), "python -m envs list --markdown"


def test_it_names_every_rule():
    for rule in RULES:
        assert f"\n| {rule} | " in PAGE
