"""Our environments in TRL's own GRPOTrainer: its introspection, its tool loop, its rewards."""

from __future__ import annotations

import asyncio
import json
import pickle
import re

import pytest
from trl_loop import trained_by_trl

import envs
from envs.adapters.for_trl import FAILED, OVER, TrlEnvironment, trl_factory, trl_rows
from envs.play import gold_of

pytest.importorskip("trl")


def run(coroutine):
    return asyncio.run(coroutine)


def test_an_episode_is_the_environments_own():
    env, theirs = envs.make("mastermind"), trl_factory("mastermind")()
    first, _ = env.reset(seed=3, options={"task": 5})
    assert theirs.reset(task=5, seed=3, prompt=[]) == first
    policy = gold_of(env)
    observation = first
    while True:
        action = policy(observation)
        step = env.step(action)
        answer = run(theirs.act(action))
        if step.terminated:
            break
        assert answer == step.observation
        observation = step.observation
    assert answer == OVER or answer.endswith("\n" + OVER)
    assert theirs.get_reward() == 1.0
    assert run(theirs.act("123")) == OVER
    assert theirs.get_reward() == 1.0


def test_instances_are_reused_and_nothing_is_left_over():
    theirs = trl_factory("countdown")()
    question = theirs.reset(task=0)
    run(theirs.act("<answer> 1 </answer>"))
    before = theirs.get_reward()
    assert theirs.reset(task=1) != question
    assert theirs.reset(task=0) == question
    run(theirs.act(""))
    assert (before, theirs.get_reward()) == (0.1, 0.0) or before == 0.0


class Ruled(envs.TextEnv):
    """Has a rule for each task."""

    system_prompt = "Answer."

    def __init__(self, options, services=None):
        super().__init__(options, range(3), services)

    def begin(self, task):
        self.state = task
        self.system_prompt = f"Say {task}." if task else type(self).system_prompt
        return "?"


def test_the_rules_of_one_task_are_read_before_its_observation():
    envs.register("ruled-for-trl-v0", Ruled)
    theirs = trl_factory("ruled-for-trl")()
    assert [theirs.reset(task=task) for task in range(2)] == ["?", "Say 1.\n\n?"]


def test_who_stops_in_the_middle_says_nothing_more():
    theirs = trl_factory("knights-knaves")()
    theirs.reset(task=0)
    # Its least is for a missing format: an episode that was never played must not earn 0.
    assert theirs.get_reward() == -3.0


class Broken(envs.TextEnv):
    """Fails at the second turn."""

    def __init__(self, options, services=None):
        super().__init__(options, range(3), services)

    def begin(self, task):
        self.state = 0
        if task == 2:
            raise envs.EnvFailure("no sandbox", retryable=True)
        return "?"

    def turn(self, action):
        self.state += 1
        if self.state == 2:
            raise envs.EnvFailure("no sandbox", retryable=True)
        return envs.go_on("again", {"part": 0.5})


def test_a_failure_of_infrastructure_is_no_reward():
    envs.register("broken-for-trl-v0", Broken)
    theirs = trl_factory("broken-for-trl", max_turns=4)()
    theirs.reset(task=0)
    assert run(theirs.act("a")) == "again"
    assert run(theirs.act("a")) == FAILED
    assert run(theirs.act("a")) == FAILED
    assert theirs.get_reward() is None
    assert theirs.reset(task=2) == FAILED
    assert theirs.get_reward() is None
    theirs.reset(task=1)
    run(theirs.act("a"))
    assert theirs.get_reward() is None  # Found out while the rest is played.


def test_mistakes_are_found_before_training():
    with pytest.raises(LookupError, match="Did you mean 'mastermind-v0'"):
        trl_factory("mastermin")
    with pytest.raises(TypeError, match="no option 'peg'"):
        trl_factory("mastermind", peg=3)
    with pytest.raises(ValueError, match=r"num_tasks \(0\) must be from 1 to"):
        trl_rows("mastermind", 0)
    assert isinstance(pickle.loads(pickle.dumps(trl_factory("mastermind")))(), TrlEnvironment)


def calls(text):
    return f"<tool_call>\n{json.dumps({'name': 'act', 'arguments': {'text': text}})}\n</tool_call>"


def give_up_or_solve(prompt, place):
    if OVER in prompt:
        return "Done."
    if "<tool_response>" not in prompt and place % 2:
        return "I give up."
    policy = envs.make("mastermind").gold_policy()
    observation = prompt.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
    for answer in re.findall(r"<tool_response>\n(.*?)\n</tool_response>", prompt, re.S):
        policy(observation)
        observation = answer
    return calls(policy(observation))


def test_trls_trainer_takes_a_step_on_our_environment(tmp_path, monkeypatch):
    """Two groups of four: in each, two members find the code, the others stop at once."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    trainer, prompts = trained_by_trl(
        tmp_path, trl_rows("mastermind", 2), trl_factory("mastermind"), give_up_or_solve
    )
    assert [tool.__name__ for tool in trainer.tools] == ["act"]
    log = trainer.state.log_history[0]
    assert log["rewards/TrlEnvironment/mean"] == 0.5
    assert log["tools/failure_frequency"] == 0.0
    assert log["frac_reward_zero_std"] == 0.0  # Each group has both: its members play one code.
    assert log["grad_norm"] > 0
    # All members of a group were asked the same: two rows, four times each.
    starts = [prompt for prompt in prompts if "<tool_response>" not in prompt]
    assert sorted(starts.count(start) for start in set(starts)) in ([4, 4], [8])
    assert '"name": "act"' in starts[0]
    assert "The code has 3 digits" in starts[0]
