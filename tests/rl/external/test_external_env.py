"""What ``env=agent`` is made of: a loop, tasks, demonstrations; and what is said of wrong ones."""

from __future__ import annotations

import json

import pytest

import envs
from envs.episode import EnvFailure
from rl.data.demonstrations import NoDemonstrations, demonstrate
from rl.errors import UsageError
from rl.external.env import AgentEnv, AgentOptions
from rl.external.program import open_program
from rl.runtime.tiny import _data_hashes
from rl.settings.parsing.command_line import parse
from rl.settings.train import PRESETS, TrainConfig
from tools.references import source_of


def test_it_is_a_registered_environment_without_steps(loops):
    env = envs.make("agent", tasks=f"{loops}:tasks")
    assert isinstance(env, AgentEnv)
    observation, _ = env.reset(seed=0, options={"task": 4})
    assert json.loads(observation) == {"digit": "1", "split": "train"}
    with pytest.raises(EnvFailure, match="not by step"):
        env.step("x")


def test_tasks_of_a_file_have_splits(tmp_path):
    file = tmp_path / "tasks.jsonl"
    rows = [{"id": i, "split": "test" if i % 4 == 0 else "train"} for i in range(12)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = AgentEnv(AgentOptions(tasks=str(file), split="test")).tasks
    assert [task["id"] for task in tasks] == [0, 4, 8]
    train = AgentEnv(AgentOptions(tasks=str(file), split="train")).tasks
    validation = AgentEnv(AgentOptions(tasks=str(file), split="validation")).tasks
    assert len(validation) >= 1 and len(train) + len(validation) == 9
    none = tmp_path / "test.jsonl"
    none.write_text('{"id": 1}\n')
    with pytest.raises(ValueError, match="no rows in split 'validation'"):
        AgentEnv(AgentOptions(tasks=str(none), split="validation"))


@pytest.mark.parametrize(
    ("loop", "what"),
    [
        ("", "must name your agent's loop"),
        ("nowhere.py:play", "there is no such file"),
        ("no_such_module:play", "No module named"),
        ("no-such-command --x", "there is no program 'no-such-command'"),
        ("json:play", "has no play; it has detect_encoding, dump"),
    ],
)
def test_a_loop_that_is_not_there_is_one_line(loop, what):
    with pytest.raises(ValueError, match=what) as said:
        open_program(loop)
    assert "env.loop" in str(said.value)
    assert "\n" not in str(said.value)


def test_a_file_that_fails_to_import_is_named(tmp_path):
    (tmp_path / "bad.py").write_text("import sys\nsys.exit('no')\n")
    with pytest.raises(ValueError, match=r"bad\.py fails to import: SystemExit: no"):
        open_program(f"{tmp_path}/bad.py:play")


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("env.concurrency=-1", "env.concurrency .-1. must be >= 0"),
        ("env.min_reward=1", "env.min_reward .1. must be below max_reward .1."),
        ("env.token_budget=max", "env.token_budget .'max'. must be empty"),
        ("env.lop=x", "unknown key 'env.lop'. Did you mean 'env.loop'"),
    ],
)
def test_wrong_settings_are_named(word, what):
    with pytest.raises(UsageError, match=what):
        parse(TrainConfig, ["env=agent", word], command="x", presets=PRESETS)


MESSAGES = [
    {"role": "system", "content": "Rules."},
    {"role": "user", "content": "1?"},
    {"role": "assistant", "content": "<tool_call>x</tool_call>"},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "2"},
]


async def test_demonstrations_come_from_a_file_or_a_function(tmp_path, loops, digits):
    file = tmp_path / "said.jsonl"
    file.write_text(json.dumps({"messages": MESSAGES}) + "\n")
    functions = tmp_path / "said.py"
    functions.write_text(
        f"def say(task, seed):\n    assert task['digit']\n    return {MESSAGES!r}\n"
    )
    tasks = f"{loops}:tasks"
    for source, count in ((str(file), 1), (f"{functions}:say", 3)):
        options = AgentOptions(tasks=tasks, demonstrations=source)
        said = await demonstrate("agent-v0", options, {}, range(3), 0)
        assert len(said) == count
        ids = said[0].to_segment(digits).token_ids
        # As an episode would render it: what a tool says is a tool's.
        rendered = digits.start(MESSAGES)
        assert ids == rendered[: len(ids)]
        assert "<|tool|>2<|end|>" in digits.tokenizer.decode(ids)
    with pytest.raises(NoDemonstrations, match=r"give env\.demonstrations="):
        await demonstrate("agent-v0", AgentOptions(tasks=tasks), {}, range(3), 0)
    functions.write_text("def say(task, seed):\n    return [{'role': 'user'}]\n")
    wrong = AgentOptions(tasks=tasks, demonstrations=f"{functions}:say".replace("said.py", "s2.py"))
    functions.rename(tmp_path / "s2.py")
    with pytest.raises(ValueError, match=r"env\.demonstrations .* must return messages"):
        await demonstrate("agent-v0", wrong, {}, range(3), 0)


def test_a_changed_function_makes_another_warm_start(loops):
    assert source_of(f"{loops}:tasks") == loops
    assert source_of("json:loads").name == "__init__.py"
    assert source_of("code") is None
    options = AgentOptions(tasks=f"{loops}:tasks")
    before = _data_hashes(options)
    assert len(before) == 1
    loops.write_text(loops.read_text() + "\n")
    assert _data_hashes(options) != before
