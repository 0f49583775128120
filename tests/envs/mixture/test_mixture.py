"""A mixture's episode is its part's: words, turns, rewards, copies, services and identity."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import envs
import tools
from envs.mixture.env import MixEnv
from envs.play import aplay, gold_of, play
from envs.record import Recorder
from tools.tool import Tool, ToolContext, ToolResult

OF = "2*search-qa(hops=2) + knights-knaves(people=4) + mastermind(information_reward=0.5)"


@pytest.fixture(scope="module")
def env() -> Iterator[MixEnv]:
    made = envs.make("mix", of=OF)
    assert isinstance(made, MixEnv)
    yield made
    made.close()


def test_each_episode_is_what_it_is_alone(env):
    seen = set()
    for task in range(4):
        mixed = play(env, gold_of(env), seed=3, task=task)
        own = env.episode_id
        alone = envs.make_from(own.env_id, own.options)
        played = play(alone, gold_of(alone), seed=own.seed, task=own.task)
        assert (mixed.first, mixed.actions, mixed.reward) == (
            *(played.first, played.actions, played.reward),
        )
        assert env.system_prompt == alone.system_prompt
        assert (env.stop, env.continues) == (alone.stop, alone.continues)
        for here, there in zip(mixed.steps, played.steps, strict=True):
            assert here[:4] == there[:4]
            scores = dict(here.info["scores"])
            scores.pop("success")
            assert scores == there.info["scores"]
            assert here.info["tool_calls"] == there.info["tool_calls"]
        assert mixed.steps[-1].info["scores"]["success"] == 1.0
        seen.add((own.part, own.env_id))
        alone.close()
    assert seen == {
        ("search-qa(hops=2)", "search-qa-v0"),
        ("knights-knaves(people=4)", "knights-knaves-v0"),
        ("mastermind(information_reward=0.5)", "mastermind-v0"),
    }


def test_it_keeps_the_contract_where_parts_pay_alike():
    # Every game of mastermind begins with the same words: the tasks say that splits differ.
    made = envs.make("mix", of="search-qa(hops=3) + mastermind")
    assert len(envs.check_env(made, num_tasks=4).rules) >= 14
    made.close()


def test_it_keeps_the_contract_where_parts_pay_each_in_its_range():
    """The documented mixture: the best return is 1 of one part and 3 of the other."""
    made = envs.make("mix", of="2*search-qa(hops=2) + knights-knaves(people=4)", split="test")
    assert {made.best_return(task) for task in range(3)} == {1.0, 3.0}
    assert "gold policy" in envs.check_env(made, num_tasks=3, num_gold_tasks=6).rules
    made.close()


def test_ranges_and_floors_are_the_widest(env):
    assert env.reward_range == (-3.0, 3.0)
    assert env.reward_floor == 0.1
    assert env.difficulty(0) == 0.5
    assert env.difficulty(1) == pytest.approx((2 / 6 + 0) / 2)


def test_success_without_a_score_is_the_return_within_its_range(monkeypatch):
    monkeypatch.setattr(envs.env_type("knights-knaves"), "success_score", "")
    env = envs.make("mix", of="knights-knaves")
    env.reset(seed=0, options={"task": 0})
    assert env.step("no tags").info["scores"]["success"] == 0.0
    env.reset(seed=0, options={"task": 0})
    result = env.step("<think> </think> <answer> </answer>")
    assert (result.reward, result.info["scores"]["success"]) == (-1.0, pytest.approx(1 / 3))
    env.close()


def test_the_gold_policy_says_who_could_not_read_an_observation(env):
    with pytest.raises(ValueError, match=r"no part knows what to say to 'Good morning.'"):
        env.gold_policy()("Good morning.")


async def test_parts_share_the_services_that_were_opened_for_all():
    options = MixEnv.Options(of="search-qa + math(tools=calculator, max_turns=3)")
    async with MixEnv.open_services(options) as services:
        assert {name.split("/")[-1] for name in services} == {"search", "verifier", "calculator"}
        env = envs.make_from("mix-v0", options, services)
        env.tool_tap = recorder = Recorder()
        for task in (0, 1):
            await aplay(env, gold_of(env), seed=0, task=task)
        await env.aclose()
        assert {call.service for call in recorder.calls} == {"search", "calculator"}, "by own names"


async def test_forks_and_snapshots_in_mid_episode_go_on_alike_and_reseeded_ones_may_not():
    env = envs.make("mix", of="search-qa(hops=2) + mastermind")
    for task in (0, 1):
        gold = await aplay(env, gold_of(env), seed=5, task=task)
        await env.areset(seed=5, options={"task": task})
        await env.astep(gold.actions[0])
        frozen = await env.asnapshot()
        twin, other = await env.afork(), await env.afork(reseed=9)
        rest = [await twin.astep(action) for action in gold.actions[1:]]
        assert tuple(rest) == gold.steps[1:]
        await env.arestore(frozen)
        assert (await env.astep(gold.actions[1])) == gold.steps[1]
        assert other.episode_id == twin.episode_id
        inner = [one._playing.np_random.bit_generator.state for one in (twin, other)]
        assert inner[0] != inner[1]
        for one in (twin, other):
            await one.aclose()
    await env.aclose()


class Counter(Tool):
    """Counts the calls of an episode and of all episodes."""

    name = "count"
    description = "Count."
    parameters = {"type": "object", "properties": {}}  # noqa: RUF012
    stateful = True

    def __init__(self):
        self.counts, self.everything = {}, 0

    async def __call__(self, arguments, context=None):
        session = (context or ToolContext()).session
        self.everything += 1
        self.counts.setdefault(session, []).append(self.everything)
        return ToolResult(str(self.counts[session]))

    async def fork(self, session, twin):
        self.counts[twin] = [*self.counts[session]]

    async def end(self, session):
        self.counts.pop(session, None)


tools.register("test-counter", Counter)


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_fork_has_a_copy_of_what_a_parts_tools_keep(asynchronous):
    env = envs.make("mix", of="math(tools=test-counter, max_turns=4) + mastermind")

    async def ask(one, name, *arguments, **keywords):
        if asynchronous:
            return await getattr(one, f"a{name}")(*arguments, **keywords)
        return getattr(one, name)(*arguments, **keywords)

    await ask(env, "reset", seed=5, options={"task": 0})
    await ask(env, "step", "<count></count>")
    twin = await ask(env, "fork")
    steps = [await ask(one, "step", "<count></count>") for one in (env, twin)]
    # Had the twin's tool repeated its parent's calls, it would return [3, 4].
    assert [step.observation for step in steps] == [
        " <result> [1, 2] </result> ",
        " <result> [1, 3] </result> ",
    ]
    for one in (twin, env):
        await ask(one, "close")


def test_before_the_first_reset_nothing_is_known():
    env = envs.make("mix", of="mastermind")
    for ask in (env.snapshot, lambda: env.episode_id, lambda: asyncio.run(env.asnapshot())):
        with pytest.raises(envs.OrderError):
            ask()
    env.close()


def test_a_part_draws_the_budget_and_says_it():
    env = envs.make("mix", of="mastermind", token_budget="exact:7-7")
    first, _ = env.reset(seed=0, options={"task": 0})
    assert first.count("Think for 7 tokens.") == 1
    assert env.step("").info["scores"]["token_budget"] == 7
    env.close()


def test_the_demonstrator_is_that_of_the_episode():
    import numpy as np

    env = envs.make("mix", of="search-qa + mastermind")
    for task, sign in ((0, "<think>"), (1, "<guess>")):
        first, _ = env.reset(seed=0, options={"task": task})
        assert sign in env.demonstrator(np.random.default_rng(0))(first)
    env.close()
