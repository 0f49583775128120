"""Files that ``python -m envs new NAME`` writes: an environment, a tool, a reward and tests.

``$name`` is the package's name with hyphens, ``$package`` with underscores.
"""

from __future__ import annotations

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$name"
version = "0.1.0"
description = "An environment, a tool and a reward for turnwise."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["turnwise"]

[project.optional-dependencies]
test = ["pytest>=8"]

[project.entry-points."turnwise.envs"]
$name-v0 = "$package.env:SumEnv"

[project.entry-points."turnwise.tools"]
$name-add = "$package.tool:add"

[project.entry-points."turnwise.rewards"]
"rubric.${package}_brief" = "$package.reward:brief"

[tool.setuptools]
packages = ["$package"]

[tool.pytest.ini_options]
testpaths = ["tests"]

[tool.ruff]
line-length = 100
"""

README = """\
# $name

An environment, a tool and a reward for turnwise.

```sh
pip install -e '.[test]' && pytest
python -m envs check $name
python -m rl.train env=$name preset=smoke
python -m rl.train env=search-qa env.tools=$name-add preset=smoke
python -m rl.train env=math "env.rubric=accuracy + 0.1*${package}_brief" preset=smoke
```

| file | what |
|---|---|
| `$package/env.py` | `$name-v0`: add two numbers; a wrong sum may be corrected once |
| `$package/tool.py` | `$name-add`: adds numbers for agents of other environments |
| `$package/reward.py` | `${package}_brief`: 1 for a short text |

`pyproject.toml` advertises all three. Each is imported when it is asked for by name.
"""

INIT = '''\
"""An environment, a tool and a reward for turnwise."""
'''

ENV = '''\
"""``$name-v0``: add two numbers; a wrong sum may be corrected once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import envs
import numpy as np

FIRST = {"train": 0, "validation": 1, "test": 2}
SECOND_TRY = 0.5
"""What a sum is worth that was wrong at first."""


@dataclass(frozen=True, kw_only=True)
class SumOptions(envs.EnvOptions):
    """How hard the sums are. A command line sets it: env.digits=3."""

    max_turns: int = 2
    """Attempts."""
    digits: int = 1
    """Digits per number."""

    def __post_init__(self) -> None:
        """Refuse what cannot be played; the message names the option and its value."""
        super().__post_init__()
        if not 1 <= self.digits <= 6:
            raise ValueError(f"digits ({self.digits}) must be from 1 to 6")


class SumEnv(envs.TextEnv[int, int]):
    """Add two numbers; a wrong sum may be corrected once."""

    Options = SumOptions
    card = envs.Card(reward="1 if right at once, 0.5 later")
    success_score = "right"

    def __init__(self, options: SumOptions, services: Mapping[str, Any] | None = None) -> None:
        self.limit = 10**options.digits
        # Every seventh pair of numbers, from another first one on: no pair is in two splits.
        super().__init__(options, range(FIRST[options.split], self.limit**2, 7), services)

    def begin(self, task: int) -> str:
        """The question; the state is what the answer is compared with."""
        left, right = divmod(task, self.limit)
        self.state = left + right
        return f"{left} + {right} ="

    def turn(self, action: envs.Action) -> envs.Reply:
        """The end, or another attempt."""
        right = action.content.strip() == str(self.state)
        scores = {"right": float(right)}
        if right:
            first = self.turns_left == self.options.max_turns
            return envs.finish({"sum": 1.0 if first else SECOND_TRY}, scores=scores)
        return envs.go_on("That is not it. Try again.", scores=scores)

    def gold_policy(self) -> Callable[[str], str]:
        """Reads the numbers and adds them: no more than an agent can see."""
        return lambda question: str(sum(int(word) for word in question.split() if word.isdigit()))

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """Is off by one half of the time; model=tiny starts from what it writes."""
        return lambda _: str(self.state + int(rng.integers(2)))
'''

TOOL = '''\
"""``$name-add``: a tool that agents of any environment with tools can call."""

from __future__ import annotations

import tools

MOST = 100


@tools.tool
def add(numbers: list[float]) -> str:
    """Add numbers.

    Args:
        numbers: What to add.
    """
    if len(numbers) > MOST:
        raise tools.BadArguments(f"{len(numbers)} numbers are more than {MOST}")
    return f"{sum(numbers):g}"
'''

REWARD = '''\
"""``${package}_brief``: a reward by name, for every environment that has a rubric."""

from __future__ import annotations

from envs.rewards import Reward, Transcript


def brief(words: int = 50) -> Reward:
    """1 for an agent that writes at least one word and at most ``words``, else 0."""

    def score(transcript: Transcript) -> float:
        return float(1 <= len(transcript.written.split()) <= words)

    # Any short text earns it: that is the floor, and check_env knows.
    return Reward("brief", score, reward_floor=1.0)
'''

TESTS = '''\
"""The plug-in keeps the contracts, under the names that it advertises."""

from __future__ import annotations

import asyncio

import envs
import pytest
import tools
from envs.play import gold_of, play
from envs.rewards import Transcript, make_rubric


@pytest.fixture
def env():
    made = envs.make("$name")
    yield made
    made.close()


def test_the_environment_keeps_the_contract(env):
    assert envs.check_env(env).env_id == "$name-v0"


def test_the_gold_policy_is_right_at_once(env):
    assert all(play(env, gold_of(env), task=task).reward == 1.0 for task in range(10))


def test_a_wrong_sum_may_be_corrected_for_half_the_reward(env):
    env.reset(options={"task": 0})
    assert env.step("-1").observation == "That is not it. Try again."
    assert env.step("0").info["rewards"] == {"sum": 0.5}


def test_options_are_checked():
    with pytest.raises(ValueError, match=r"digits \\(0\\) must be from 1 to 6"):
        envs.make("$name", digits=0)


def test_the_tool_answers_and_says_what_is_wrong():
    tool = tools.make("$name-add")
    assert asyncio.run(tool({"numbers": [1, 2.5]})).text == "3.5"
    assert asyncio.run(tool({"numbers": "many"})).error is not None
    assert asyncio.run(tool({"numbers": [1] * 101})).error == "101 numbers are more than 100"


def test_an_agent_of_another_environment_calls_it():
    env = envs.make("math", tools="$name-add", max_turns=2)
    env.reset(seed=0)
    assert env.step("<add> [1, 2] </add>").observation.split() == ["<result>", "3", "</result>"]
    env.close()


@pytest.mark.parametrize(("said", "worth"), [("", 0.0), ("a b", 1.0), ("a b c", 0.0)])
def test_the_reward(said, worth):
    rubric = make_rubric("${package}_brief(words=2)")
    assert rubric(Transcript(text=said, written=said)) == {"brief": worth}
'''

FILES = {
    "pyproject.toml": PYPROJECT,
    "README.md": README,
    "$package/__init__.py": INIT,
    "$package/env.py": ENV,
    "$package/tool.py": TOOL,
    "$package/reward.py": REWARD,
    "tests/test_$package.py": TESTS,
}
"""Contents of the files, by path."""
