"""What an episode's tool calls cost: recorded by call, summed over the episode, copied with it."""

from __future__ import annotations

import pickle

import pytest

import envs
from envs import EnvOptions, EnvToolCall, Reply, StopReason, TextEnv
from tools import ToolResult


class PaidEnv(TextEnv[int, int]):
    """Each word of an action is a call that costs its length; "end" ends, "cut" cuts."""

    def __init__(self, options, services=None):
        super().__init__(options, range(3), services)

    def begin(self, task: int) -> str:
        self.state = 0
        return "?"

    def turn(self, action: str) -> Reply:
        results = [ToolResult(f"{word}!", cost=len(word) / 4) for word in action.split()]
        calls = [EnvToolCall.of("say", {"n": n}, result) for n, result in enumerate(results)]
        if action == "cut":
            return envs.cut(StopReason.INVALID_ACTIONS, tool_calls=calls)
        if action == "end":
            return envs.finish({"a": 1.0}, tool_calls=calls)
        return envs.go_on("!", scores={"s": 1.0}, tool_calls=calls)


def paid() -> PaidEnv:
    env = PaidEnv(EnvOptions(max_turns=9))
    env.reset(seed=0)
    return env


def test_a_call_and_the_episode_so_far():
    env = paid()
    first = env.step("ab abcd").info
    assert [call.cost for call in first["tool_calls"]] == [0.5, 1.0]
    assert first["tool_calls"][1] == EnvToolCall("say", {"n": 1}, "abcd!", None, 1.0)
    assert first["scores"] == {"s": 1.0, "tool_cost": 1.5}
    assert env.step("abcd").info["scores"]["tool_cost"] == 2.5
    assert env.step("cut").info["scores"] == {"tool_cost": 3.25}
    env.reset(seed=0)
    assert env.step("end").info["scores"] == {"tool_cost": 0.75}, "a new episode begins at 0"


def test_what_costs_nothing_is_no_score():
    assert paid().step("").info["scores"] == {"s": 1.0}


def test_copies_have_spent_what_the_original_had():
    env = paid()
    env.step("abcd")
    fork, restored = env.fork(), env.group(1)[0]
    restored.restore(pickle.loads(pickle.dumps(env.snapshot())))
    assert fork.step("ab").info["scores"]["tool_cost"] == 1.5
    assert restored.step("abcd").info["scores"]["tool_cost"] == 2.0
    assert env.step("a").info["scores"]["tool_cost"] == 1.25


def test_what_is_no_call_is_refused():
    env = paid()
    env.turn = lambda action: envs.finish({}, tool_calls=["look"])
    with pytest.raises(TypeError, match="tool_calls must hold EnvToolCalls, not str"):
        env.step("")
