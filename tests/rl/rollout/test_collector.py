"""Episodes: how they fail, how they end, what they share and what their seeds depend on."""

from __future__ import annotations

import asyncio
import json
import logging
import time

import pytest

from agents.policy import PolicyFailure
from agents.scripted import ScriptedPolicy
from rl.rollout.collector import RolloutFailure
from rl.rollout.episode import seed_of
from rl.run.metrics.episodes import rollout_metrics


def say(text, renderer, **options):
    """A policy that says the same every turn, and ends its message."""
    tokens = [*renderer.splice(text), renderer.end_token_ids[0]]
    return ScriptedPolicy(lambda session, ids: tokens, **options)


async def test_a_retryable_failure_is_begun_again_with_the_same_task_and_seed(
    make_collector, random_policy, chatter, caplog
):
    collector = make_collector(mode="flaky")
    with caplog.at_level(logging.WARNING):
        (group,) = await collector.collect([0], 1, (5,))
    (trajectory,) = group.finished
    assert trajectory.failure is None
    attempts = ["5/0/0/0/0", "5/0/0/0/1", "5/0/0/0/2"]
    assert random_policy.begun == random_policy.ended == attempts
    assert list(random_policy.said) == attempts
    starts = [draw for kind, draw in chatter.calls if kind == "begin"]
    assert len(starts) == 3
    assert len(set(starts)) == 1, "the environment's generator starts anew from the same seed"
    first = [said[0] for said in random_policy.said.values()]
    for prompt, sampling, completion in first[1:]:
        assert (prompt, sampling) == first[0][:2], "and the policy is asked the same"
        assert completion.token_ids == first[0][2].token_ids
    assert [r.message for r in caplog.records] == [
        f"episode {name} is begun again: EnvFailure: the sandbox is away" for name in attempts[:2]
    ]


async def test_a_failure_that_stays_is_no_reward_and_no_member(make_collector, chatter):
    collector = make_collector(mode="infrastructure", limits={"retries": 1})
    groups = await collector.collect([0, 1, 2, 3], 1, (5,))
    assert chatter.calls.count(("failure", 0)) == 2, "once, and once again"
    failed = groups[0].trajectories[0]
    assert failed.failure == "EnvFailure: the sandbox is gone"
    assert not failed.terminated
    assert not failed.truncated
    assert failed.turns == []
    assert [len(group.finished) for group in groups] == [0, 1, 1, 1]


async def test_too_many_failures_end_the_collection(make_collector):
    limits = {"retries": 0, "max_failed": 0.24}
    collector = make_collector(mode="infrastructure", limits=limits)
    message = (
        r"^1 of 4 episodes failed, more than max_failed=0.24 allows; "
        r"1 EnvFailure; the first: EnvFailure: the sandbox is gone$"
    )
    with pytest.raises(RolloutFailure, match=message):
        await collector.collect([0, 1, 2, 3], 1, (5,))
    limits["max_failed"] = 0.25
    assert len(await make_collector(mode="infrastructure", limits=limits).collect(range(4), 1, ()))


@pytest.mark.parametrize(
    ("mode", "what"),
    [
        ("bug", "ValueError: a bug in turn"),
        ("bug-in-begin", "KeyError: 'a bug in begin'"),
        ("own-timeout", "TimeoutError: the author's own"),
        ("cancelled", "CancelledError: by its author"),
        ("exit", "SystemExit: 3"),
        (
            "no-observation",
            "TypeError: ChatterEnv.turn must give its observation as a str, not as NoneType",
        ),
        ("no-call", "TypeError: tool_calls must hold EnvToolCalls, not str"),
        ("no-json", "TypeError: Object of type set is not JSON serializable"),
        ("empty-stop", "ValueError: stop holds an empty string, which would stop at once"),
        ("unmade", "ValueError: not made"),
        ("unclosed", "RuntimeError: not closed"),
    ],
)
async def test_an_authors_bug_fails_its_episode_alone_and_is_not_retried(
    make_collector, random_policy, mode, what, caplog
):
    collector = make_collector(mode=mode, limits={"max_failed": 1.0})
    groups = await collector.collect([0, 1], 2, (5,))
    failed = [t.failure is not None for group in groups for t in group.trajectories]
    everywhere = mode in ("bug-in-begin", "own-timeout", "empty-stop", "unmade", "unclosed")
    assert failed == [True, True, everywhere, everywhere]
    message = f"EnvFailure: toy-chatter-v0 raised {what}"
    failure = groups[0].trajectories[0].failure
    assert failure.startswith(message)
    place = failure.removeprefix(message)
    # Where turnwise refuses what the author's code returned, the message says all.
    refused = ("no-observation", "no-call", "no-json", "empty-stop")
    assert place == "" if mode in refused else "toy_envs.py, line " in place
    assert len(random_policy.begun) == 4
    assert sorted(random_policy.ended) == sorted(random_policy.begun)
    assert "Traceback" in caplog.text, "the author can find the bug"


@pytest.mark.parametrize(
    ("mode", "failure"),
    [
        ("nan", "EnvFailure: scores ({'s': nan}) must be finite, and at most 1e+15 in size"),
        ("huge", "EnvFailure: scores ({'s': 1e+308}) must be finite, and at most 1e+15 in size"),
        ("text", "EnvFailure: scores ({'s': 'good'}) must be numbers"),
    ],
)
async def test_numbers_that_are_none_fail_their_episode_alone(make_collector, mode, failure):
    groups = await make_collector(mode=mode, limits={"max_failed": 0.5}).collect([0, 1], 1, ())
    assert [g.trajectories[0].failure for g in groups] == [failure, None]


async def test_numbers_of_numpy_are_written_as_plain_ones(make_collector):
    (group,) = await make_collector(mode="numpy").collect([0], 1, ())
    (trajectory,) = group.finished
    assert json.dumps(trajectory.to_json()["turns"][0]["scores"]) == '{"s": 0.5}'


async def test_a_policy_that_fails_is_no_reward_either(make_collector, renderer):
    class Broken(ScriptedPolicy):
        asked = 0

        async def generate(self, prompt_ids, sampling, session=None):
            self.asked += 1
            raise PolicyFailure("the server is gone", retryable=self.asked == 1)

    policy = Broken(lambda session, ids: [])
    collector = make_collector(policy, limits={"max_failed": 1.0})
    (group,) = await collector.collect([0], 1, (5,))
    assert policy.asked == 2
    assert group.finished == []
    assert group.trajectories[0].failure == "PolicyFailure: the server is gone"


async def test_a_policys_own_timeout_is_not_taken_for_the_episodes(make_collector):
    class Broken(ScriptedPolicy):
        async def generate(self, prompt_ids, sampling, session=None):
            raise TimeoutError("a socket")

    with pytest.raises(ExceptionGroup) as raised:
        await make_collector(Broken(lambda session, ids: [])).collect([0], 1, (5,))
    assert str(raised.value.exceptions[0]) == "a socket"


async def test_out_of_time_in_the_environment_is_a_failure_and_begun_again(
    make_collector, renderer, chatter
):
    policy = say("a", renderer)
    limits = {"episode_timeout_s": 0.3, "retries": 1, "max_failed": 1.0}
    collector = make_collector(policy, mode="slow", tool_s=30.0, limits=limits)
    (group,) = await asyncio.wait_for(collector.collect([0], 2, (5,)), 20)
    assert group.finished == [], "no reward, and no member of a baseline"
    for trajectory in group.trajectories:
        assert trajectory.failure == (
            "EpisodeTimeout: took longer than episode_timeout_s (0.3 s), at last waiting for the "
            "environment"
        )
        assert not trajectory.truncated
    assert [kind for kind, _ in chatter.calls].count("begin") == 4
    assert chatter.running == 0, "the tool was cancelled"
    metrics = rollout_metrics([group])
    assert (metrics["failures"], metrics["failures/EpisodeTimeout"]) == (2.0, 2.0)
    assert metrics["retries"] == 2.0
    assert "reward" not in metrics


async def test_out_of_time_in_the_policy_is_a_failure_as_well(make_collector, renderer):
    policy = say("a", renderer, delay_s=30.0)
    limits = {"episode_timeout_s": 0.3, "retries": 0, "max_failed": 1.0}
    collector = make_collector(policy, limits=limits)
    (group,) = await asyncio.wait_for(collector.collect([0], 1, (5,)), 20)
    (trajectory,) = group.trajectories
    assert trajectory.failure is not None
    assert trajectory.failure.endswith("(0.3 s), at last waiting for the policy")
    assert group.finished == []


async def test_time_runs_over_all_turns(make_collector, renderer):
    policy = say("a", renderer, delay_s=0.1)
    limits = {"episode_timeout_s": 0.5, "retries": 0, "max_failed": 1.0}
    collector = make_collector(policy, mode="endless", max_turns=1000, limits=limits)
    (group,) = await asyncio.wait_for(collector.collect([0], 1, (5,)), 20)
    (trajectory,) = group.trajectories
    assert 1 <= len(trajectory.turns) <= 5
    assert trajectory.failure is not None


async def test_queueing_for_a_slot_takes_no_time_of_the_episode(make_collector, renderer):
    class OneSlot(ScriptedPolicy):
        """Answers one at a time, in 0.1 s."""

        def __init__(self, respond):
            super().__init__(respond, delay_s=0.1)
            self.slot = asyncio.Lock()
            self.since, self.queued = {}, {}

        async def generate(self, prompt_ids, sampling, session=None):
            self.since[session] = time.monotonic()
            async with self.slot:
                self.queued[session] = self.queued_s(session)
                del self.since[session]
                return await super().generate(prompt_ids, sampling, session)

        def queued_s(self, session):
            waiting = time.monotonic() - self.since[session] if session in self.since else 0.0
            return self.queued.get(session, 0.0) + waiting

    tokens = [*renderer.splice("a"), renderer.end_token_ids[0]]
    policy = OneSlot(lambda session, ids: tokens)
    # Each episode computes for 0.2 s, and the last one is there for 2 s.
    collector = make_collector(
        policy, mode="endless", max_turns=2, limits={"episode_timeout_s": 0.6, "retries": 0}
    )
    groups = await asyncio.wait_for(collector.collect(range(10), 1, (5,)), 20)
    assert [len(group.finished) for group in groups] == [1] * 10
    assert max(policy.queued.values()) > 0.6


async def test_the_context_is_full(make_collector, random_policy):
    collector = make_collector(mode="endless", max_turns=1000, limits={"context_length": 120})
    groups = await collector.collect(range(20), 1, (5,))
    for trajectory in (t for group in groups for t in group.finished):
        assert (trajectory.truncated, trajectory.stop_reason) == (True, "context_full")
        (segment,) = trajectory.segments
        assert len(segment) >= 120
        last = max(i for i, mask in enumerate(segment.loss_mask) if mask)
        assert last < 120, "no sampled token stands outside the window"


async def test_a_prompt_that_fills_the_context_is_an_empty_episode(make_collector, random_policy):
    long = 2  # The task whose first observation is longer than that of task 0.
    collector = make_collector()
    both = await collector.collect([0, long], 1, (5,))
    lengths = [g.trajectories[0].segments[0].loss_mask.index(1) for g in both]
    assert lengths[0] < lengths[1]
    collector = make_collector(limits={"context_length": lengths[1]})
    groups = await collector.collect([0, long], 1, (5,))
    (trajectory,) = groups[1].finished
    assert (trajectory.stop_reason, trajectory.turns) == ("context_full", [])
    assert groups[0].finished[0].turns


async def test_a_collection_without_any_turn_reports_the_cause(make_collector, random_policy):
    collector = make_collector(limits={"context_length": 3})
    message = r"^no episode got as far as its first turn: the shortest prompt has \d+ tokens, and "
    with pytest.raises(RolloutFailure, match=message + r"context_length is 3$"):
        await collector.collect([0, 1], 2, (5,))
    assert random_policy.said == {}


async def test_the_budget_of_sampled_tokens_is_used_up(make_collector, renderer):
    policy = say("abc", renderer)
    length = len(renderer.splice("abc")) + 1
    budget = {"episode_tokens": 3 * length}
    collector = make_collector(policy, mode="endless", max_turns=100, limits=budget)
    (group,) = await collector.collect([0], 1, (5,))
    (trajectory,) = group.finished
    assert (trajectory.truncated, trajectory.stop_reason) == (True, "token_limit")
    assert trajectory.num_sampled == 3 * length


async def test_two_hundred_and_fifty_six_episodes_wait_for_their_tools_together(
    make_collector, renderer, chatter
):
    collector = make_collector(say("a", renderer), mode="tool", tool_s=0.02, max_turns=1)
    groups = await collector.collect(range(32), 8, (5,))
    assert sum(len(group.finished) for group in groups) == 256
    # All of them reach the tool before the first leaves it: no barrier, no queue.
    assert chatter.most_running == 256


async def test_sampling_seeds_depend_on_key_position_member_and_turn_alone(
    make_collector, random_policy
):
    collector = make_collector(mode="endless", max_turns=2)
    await collector.collect([4, 9], 2, (1, 0, 7))
    seeds = {session: [s.seed for _, s, _ in said] for session, said in random_policy.said.items()}
    assert seeds == {
        f"1/0/7/{position}/{task}/{member}/0": [
            seed_of(1, 0, 7, position, member, turn) for turn in (0, 1)
        ]
        for position, task in enumerate([4, 9])
        for member in (0, 1)
    }
    flat = [seed for pair in seeds.values() for seed in pair]
    assert len(set(flat)) == 8


async def test_members_start_in_the_same_state_and_groups_do_not(make_collector):
    collector = make_collector(mode="endless", max_turns=1)
    groups = await collector.collect([3, 3], 4, (1,))
    prompts = [
        [tuple(t.segments[0].token_ids[: t.segments[0].loss_mask.index(1)]) for t in g.trajectories]
        for g in groups
    ]
    assert [len(set(members)) for members in prompts] == [1, 1]
    assert prompts[0][0] != prompts[1][0], "the same task at another position draws anew"
    assert {t.seed for t in groups[0].trajectories} == {seed_of(1, 0)}


async def test_two_collections_with_the_same_key_are_the_same(make_collector):
    first, second = [await make_collector().collect(range(5), 2, (1,)) for _ in range(2)]

    def texts(groups):
        return [[turn.action for turn in t.turns] for g in groups for t in g.trajectories]

    assert texts(first) == texts(second)
    third = await make_collector().collect(range(5), 2, (2,))
    assert texts(third) != texts(first)


async def test_cancelling_a_collection_leaves_nothing_running(make_collector, renderer, chatter):
    policy = say("a", renderer)
    ended = []
    policy.end = ended.append
    collector = make_collector(policy, mode="slow", tool_s=30.0)
    collecting = asyncio.create_task(collector.collect(range(8), 1, (5,)))
    while chatter.running < 8:
        await asyncio.sleep(0.01)
    collecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collecting
    assert chatter.running == 0
    assert len(ended) == 8


def test_seeds_are_63_bit_numbers_of_the_whole_key():
    keys = [
        (0,),
        (1,),
        (0, 0),
        (0, 1),
        (1, 0, 0),
        (1, 0),
        (1, 0, 0, 0, 0),
        (1, 0, 0, 0, 1),
        (2**40,),
    ]
    seeds = [seed_of(*key) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert sum(seed >> 62 for seed in (seed_of(i) for i in range(100))) in range(30, 71)


async def test_turns_keep_their_calls_and_what_they_cost(make_collector):
    groups = await make_collector().collect(range(8), 2, (5,))
    turns = [turn for group in groups for t in group.trajectories for turn in t.turns]
    calls = [call for turn in turns for call in turn.tool_calls]
    assert {(call.name, call.text, call.cost) for call in calls} == {("look", "found", 0.5)}
    assert {turn.scores.get("tool_cost", 0.0) % 0.5 for turn in turns} == {0.0}
    assert max(turn.scores.get("tool_cost", 0.0) for turn in turns) >= 1.0
