"""Environments written for TRL, played as ours; TRL's own code says what their tools are."""

from __future__ import annotations

import json

import pytest
from parity import Seen, ours
from trl_loop import BATCH, trained_by_trl

import envs
from envs.adapters.foreign import ForeignOptions
from envs.adapters.trl import TrlEnv
from envs.play import play

pytest.importorskip("trl")

ROWS = [
    {"prompt": [{"role": "user", "content": f"Reach {n}."}], "goal": n, "split": split}
    for n, split in [(3, "train"), (5, "train"), (4, "validation"), (2, "test")]
]


class Counter:
    """As TRL's documentation shows them."""

    made = 0

    def __init__(self):
        type(self).made += 1

    def reset(self, goal: int, **row) -> str | None:
        assert set(row) == {"prompt"}
        self.goal, self.count = goal, 0
        return " You are at 0." if goal != 5 else None

    def add(self, amount: int, reason: str = "") -> str:
        """Add to the counter.

        Args:
            amount: How much.
            reason: Why.
        """
        if amount < 0:
            raise ValueError("only forward")
        self.count += amount
        return f"You are at {self.count}."

    async def look(self) -> int:
        """Look at the counter."""
        if self.count > 90:
            raise envs.EnvFailure("no counter", retryable=True)
        return self.count

    def get_reward(self) -> float | None:
        return None if self.count == 13 else float(self.count == self.goal)

    def _hidden(self):
        raise AssertionError


class CounterEnv(TrlEnv):
    """Count."""

    environment, rows = Counter, ROWS

    def gold_policy(self):
        goal = None

        def act(observation):
            nonlocal goal
            if goal is None:
                goal = int(observation.split("Reach ")[1].split(".")[0])
                return call("add", amount=goal)
            return "There."

        return act


def call(tool, **arguments):
    called = json.dumps({"name": tool, "arguments": arguments})
    return f"<think> </think><tool_call>{called}</tool_call>"


def make(**options):
    return CounterEnv(ForeignOptions(**options))


def test_the_contract_holds_with_a_gold_policy():
    assert envs.check_env(make(), num_tasks=2).tasks == (0, 1)


def test_rows_are_tasks_of_their_split():
    assert [len(make(split=s).tasks) for s in ("train", "validation", "test")] == [2, 1, 1]
    assert make(split="test").reset(seed=0)[0] == "Reach 2. You are at 0."
    assert make().reset(options={"task": 1})[0] == "Reach 5."

    class Empty(CounterEnv):
        rows = ROWS[:1]

    with pytest.raises(ValueError, match=r"Empty: no rows in split 'test'; it has \{'train': 1\}"):
        Empty(ForeignOptions(split="test"))


def message(role, content, **more):
    return {"role": role, "content": content, **more}


@pytest.mark.parametrize(
    ("prompt", "system", "first"),
    [
        ("Count.", "", "Count. You are at 0."),
        ([message("system", "Be brief."), message("user", "Count.")], "Be brief.\n\n",
         "Count. You are at 0."),
        ([message("user", "Say 1."), message("assistant", "1"), message("user", "Count.")], "",
         "[user]\nSay 1.\n\n[assistant]\n1\n\n[user]\nCount. You are at 0."),
    ],
)  # fmt: skip
def test_a_prompt_of_several_messages_keeps_its_roles(prompt, system, first):
    class Prompted(CounterEnv):
        rows = [{"prompt": prompt, "goal": 3, "split": "train"}]  # noqa: RUF012

    env = Prompted(ForeignOptions())
    assert env.reset(options={"task": 0})[0] == first
    assert env.system_prompt == system + make().system_prompt


@pytest.mark.parametrize("unread", [{"content": None}, {"content": [{"type": "image"}]},
                                    {"content": "", "tool_calls": [{"id": "1"}]}])  # fmt: skip
def test_a_message_that_is_no_text_is_refused_at_load(unread):
    class Unread(CounterEnv):
        rows = [{"prompt": [{"role": "user", **unread}], "goal": 3, "split": "train"}]  # noqa: RUF012

    with pytest.raises(ValueError, match="each message must be a text"):
        Unread(ForeignOptions())


def test_the_tools_are_those_that_trl_finds_with_their_schemas():
    from transformers.utils import get_json_schema

    made = Counter.made
    lines = make().system_prompt.splitlines()[1:]
    assert Counter.made == made  # Only looked at.
    ours = {tool["name"]: tool for tool in map(json.loads, lines)}
    assert list(ours) == ["add", "look"]
    theirs = get_json_schema(Counter.add)["function"]
    assert ours["add"]["description"] == theirs["description"]
    parameters = ours["add"]["parameters"]
    assert parameters["required"] == ["amount"]
    for name in ("amount", "reason"):
        for key in ("type", "description"):
            assert (
                parameters["properties"][name][key]
                == (theirs["parameters"]["properties"][name][key])
            )


def test_calls_are_answered_and_mistakes_are_reported():
    env = make()
    env.reset(options={"task": 0})
    step = env.step(call("add", amount=2))
    assert step.observation == "<tool_response>\nYou are at 2.\n</tool_response>"
    assert [record.name for record in step.info["tool_calls"]] == ["add"]
    assert env.step(call("look")).observation == "<tool_response>\n2\n</tool_response>"
    assert "Error: only forward" in env.step(call("add", amount=-1)).observation
    assert "amount: Input should be" in env.step(call("add", amount="x")).observation
    assert "there is no function '_hidden'; there are: add, look" in (
        env.step(call("_hidden")).observation
    )
    assert "a call must be JSON" in env.step("<tool_call>add</tool_call>").observation
    env.step(call("add", amount=1))
    last = env.step("Three.")
    assert (last.reward, last.terminated) == (1.0, True)


def heard(prompt):
    """What the environment said last, as TRL's template shows it."""
    return prompt.rsplit("<|im_start|>user\n", 1)[1].partition("<|im_end|>")[0]


@pytest.mark.parametrize("moves", [
    [call("add", amount=1), call("look"), call("add", amount=2), "There."],
    [call("add", amount=2), call("look"), "I stop."],
])  # fmt: skip
def test_the_policy_reads_and_earns_what_it_does_in_trls_own_trainer(tmp_path, monkeypatch, moves):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    row = {key: value for key, value in ROWS[0].items() if key != "split"}

    def write(prompt, place):
        return moves[prompt.count("<tool_response>\n")]

    trainer, prompts = trained_by_trl(tmp_path, [row, row], Counter, write)
    read = list(dict.fromkeys(map(heard, prompts)))
    theirs = [Seen(text) for text in read]
    reward = trainer.state.log_history[0]["rewards/Counter/mean"]
    played = ours(make(), moves)
    assert played == [*theirs, Seen("", reward, terminated=True)]
    assert len(prompts) == BATCH * len(moves)


def test_the_last_turns_call_still_counts():
    env = make(max_turns=1)
    env.reset(options={"task": 0})
    last = env.step(call("add", amount=3))
    assert (last.reward, last.truncated) == (1.0, True)


def test_no_reward_and_a_failure_are_failures():
    env = make()
    env.reset(options={"task": 0})
    env.step(call("add", amount=13))
    with pytest.raises(envs.EnvFailure, match="gave no reward"):
        env.step("Done.")
    env.reset(options={"task": 0})
    env.step(call("add", amount=99))
    with pytest.raises(envs.EnvFailure, match="no counter") as failure:
        env.step(call("look"))
    assert failure.value.retryable


def test_a_fork_leaves_its_parent_alone():
    env = make()
    env.reset(options={"task": 0})
    env.step(call("add", amount=1))
    twin = env.fork()
    assert "You are at 9." in twin.step(call("add", amount=8)).observation
    assert "You are at 3." in env.step(call("add", amount=2)).observation
    assert env.step("").reward == 1.0


def test_one_with_a_lock_says_that_it_cannot_be_copied():
    import threading

    env = make()
    env.reset(options={"task": 0})
    env.state.lock = threading.Lock()
    with pytest.raises(envs.NotForkable):
        env.fork()
    assert play(env, env.gold_policy(), task=0).reward == 1.0
