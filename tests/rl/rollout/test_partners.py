"""Roles that other policies play: what the trained role reads, what is trained, what fails."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import aiohttp
import pytest
from chat_server import chat_server

import envs
from agents.agent import ContextFull
from agents.chat import ChatClient
from agents.completion import SamplingParams
from agents.policy import PolicyFailure
from agents.scripted import ScriptedPolicy
from envs.replay import main as replay
from rl.credit.algorithms import ALGORITHMS
from rl.credit.assignment import assign_credit
from rl.credit.batch import Batch
from rl.distillation.episodes import conversation_of_episode, transcript_of
from rl.errors import UsageError
from rl.policies.partner import NoPartner, check_roles
from rl.policies.partner_models import ChatPartner, LocalPartner, TokenPartner
from rl.policies.partner_script import ScriptedModel, ScriptEngine, ScriptPartner
from rl.rollout.collector import Collector
from rl.rollout.context import EpisodeContext, EpisodeLimits
from rl.rollout.trajectory import BY_PARTNER, Trajectory
from rl.rollout.trajectory_files import write_trajectories
from rl.rollout.vine import VineConfig
from rl.run.metrics.episodes import rollout_metrics

RULES = {"guest": "Order a number.", "cook": "Say the number that follows."}


class CafeEnv(envs.TextEnv[int, int]):
    """Twice in turn: a guest orders a digit, and a cook must say the next one."""

    def __init__(self, options, services=None):
        super().__init__(options, range(10), services)
        self.roles = ("guest", "cook")

    def begin(self, task):
        self.state = 0
        self._give_word("guest")
        return f"Table {task}."

    def turn(self, action):
        if self.role == "guest":
            self.state = int(action)
            self._give_word("cook")
            return envs.go_on(f"The guest wants {action}.", {"guest/spoke": 0.5})
        right = float(action == str((self.state + 1) % 10))
        self._give_word("guest")
        return envs.go_on(f"The cook said {action}.", {"cook/right": right})

    def _give_word(self, role):
        self.role, self.system_prompt = role, RULES[role]


envs.register("partners-cafe-v0", CafeEnv)


def cook(renderer, text="4"):
    """A policy that always says the same."""
    return ScriptedPolicy(lambda *_: [*renderer.splice(text), renderer.end_token_ids[0]])


def scripted(function):
    return ScriptPartner(ScriptedModel(function, "test.py:function"))


def context(renderer, partner, role="guest", policy=None, **limits):
    return EpisodeContext(
        env_id="partners-cafe-v0",
        options=envs.EnvOptions(max_turns=4),
        services={},
        policy=policy or cook(renderer),
        renderer=renderer,
        sampling=SamplingParams(max_tokens=20),
        limits=EpisodeLimits(**{"context_length": 1000, "max_failed": 1.0, **limits}),
        partners={role: partner},
    )


async def group_of(renderer, partner, members=2, vine=None, **more):
    collector = Collector(context(renderer, partner, **more), vine)
    (group,) = await collector.collect([7], members, (5,))
    return group


async def test_the_trained_role_reads_the_partner_and_only_its_own_tokens_are_trained(renderer):
    heard = []

    def guest(messages, rng):
        heard.append([dict(message) for message in messages])
        return "3" if len(messages) == 2 else "8"

    trajectory = (await group_of(renderer, scripted(guest), members=1)).trajectories[0]
    (segment,) = trajectory.segments
    # The tokens are those of a cook whose observations are the guest's words.
    end = renderer.end_token_ids[0]
    said = [*renderer.splice("4"), end]
    expected = renderer.begin("The guest wants 3.", RULES["cook"])
    mask = [0] * len(expected) + [1] * len(said)
    after = renderer.observe("The guest wants 8.", last=renderer.end_token_ids[0])
    assert list(segment.token_ids) == [*expected, *said, *after, *said]
    assert list(segment.loss_mask) == [*mask, *[0] * len(after), *[1] * len(said)]
    assert segment.role == "cook"
    assert trajectory.roles == ("cook",)
    assert trajectory.num_sampled == 2 * len(said)
    assert [(t.role, t.action, t.num_tokens, t.by_partner) for t in trajectory.turns] == [
        ("guest", "3", 0, True),
        ("cook", "4", 2, False),
        ("guest", "8", 0, True),
        ("cook", "4", 2, False),
    ]
    assert heard[1] == [
        {"role": "system", "content": RULES["guest"]},
        {"role": "user", "content": "Table 7."},
        {"role": "assistant", "content": "3"},
        {"role": "user", "content": "The cook said 4."},
    ]
    assert Trajectory.from_json(json.loads(json.dumps(trajectory.to_json()))) == trajectory


async def test_the_partners_reward_is_recorded_and_no_other_role_earns_it(renderer):
    group = await group_of(renderer, scripted(lambda messages, rng: str(rng.integers(3, 5))), 8)
    assert len({t.turns[2].action for t in group.trajectories}) == 2
    batch = Batch.from_groups([group])
    right = [sum(t.rewards_of("cook")) for t in group.trajectories]
    assert batch.rewards.tolist() == right
    assert 0 < sum(right) < 16
    metrics = rollout_metrics([group])
    assert metrics["roles/guest/reward"] == 1.0
    assert metrics["roles/cook/reward"] == sum(right) / 8
    credit = assign_credit(ALGORITHMS["dr-grpo"], batch)
    mean = sum(right) / 8
    expected = [earned - mean for earned in right for _ in range(4)]
    assert credit.advantages.tolist() == pytest.approx(expected)


async def test_a_partner_that_begins_says_the_same_to_all_members(renderer):
    partner = scripted(lambda messages, rng: str(rng.integers(10)))
    group = await group_of(renderer, partner, members=8)
    first = {t.turns[0].action for t in group.trajectories}
    later = {t.turns[2].action for t in group.trajectories}
    assert len(first) == 1, "the members of a group start in the same state"
    assert len(later) > 1
    other = Collector(context(renderer, partner))
    starts = [
        (await other.collect([7], 1, (seed,)))[0].trajectories[0].turns[0].action
        for seed in range(8)
    ]
    assert len(set(starts)) > 1


async def test_a_model_as_partner_leaves_no_token_in_the_record(renderer):
    partner = TokenPartner(cook(renderer, "3"), renderer, SamplingParams(max_tokens=9), 1000)
    (trajectory,) = (await group_of(renderer, partner, members=1)).trajectories
    assert [turn.action for turn in trajectory.turns] == ["3", "4", "3", "4"]
    assert [segment.role for segment in trajectory.segments] == ["cook"]
    assert sum(trajectory.rewards_of("cook")) == 2.0


@pytest.fixture
async def group(renderer):
    return await group_of(renderer, scripted(lambda *_: "3"), role="guest")


def test_an_episode_with_a_partner_plays_again(group, tmp_path, capsys):
    path = tmp_path / "episodes.jsonl.gz"
    write_trajectories(path, [group])
    assert replay([str(path)]) == 0
    assert "2 as recorded, 0 not" in capsys.readouterr().out


async def test_what_is_imitated_is_the_trained_roles(renderer, group):
    trajectory = group.trajectories[0]
    assert transcript_of(trajectory).written == "4\n4"
    with pytest.raises(ValueError, match="starts with a turn of the partner"):
        conversation_of_episode(trajectory, renderer)
    group = await group_of(
        renderer, scripted(lambda *_: "4"), role="cook", policy=cook(renderer, "3")
    )
    conversation = conversation_of_episode(group.trajectories[0], renderer)
    assert [(e.observation, e.action) for e in conversation.exchanges] == [
        ("Table 7.", "3"),
        ("The cook said 4.", "3"),
    ]


class Full:
    """A chat model whose window is full."""

    async def complete(self, messages, sampling, tools=(), session=""):
        raise ContextFull


class Flaky:
    """A chat model that fails once in each conversation."""

    def __init__(self):
        self.failed = 0

    async def complete(self, messages, sampling, tools=(), session=""):
        if not self.failed:
            self.failed += 1
            raise PolicyFailure("the server is gone", retryable=True)
        return await ScriptedModel(lambda *_: "3", "x:y").complete(messages, sampling)


def broken(messages, rng):
    raise KeyError("a bug")


@pytest.mark.parametrize(
    ("partner", "what"),
    [
        (scripted(broken), r"role guest: test.py:function raised KeyError: 'a bug'"),
        (scripted(lambda *_: 3), "role guest: test.py:function returned int, expected str"),
        (ScriptPartner(Full()), "longer than its partner's context window"),
    ],
)
async def test_a_partner_that_fails_is_no_reward(renderer, partner, what):
    with pytest.raises(Exception, match=what):
        await group_of(renderer, partner, max_failed=0.0)
    group = await group_of(renderer, partner)
    assert group.finished == []
    assert all(t.failure.startswith("PartnerFailure: ") for t in group.trajectories)
    assert all(t.attempts == 1 and not t.truncated for t in group.trajectories)


async def test_a_temporary_failure_of_a_partner_begins_the_episode_again(renderer):
    (trajectory,) = (await group_of(renderer, ScriptPartner(Flaky()), members=1)).trajectories
    assert trajectory.failure is None
    assert trajectory.attempts == 2


async def test_time_in_a_partners_queue_is_no_time_of_the_episode(renderer):
    class Slow(ScriptPartner):
        def queued_s(self, session):
            return 1000.0

    async def guest(messages, rng):
        await asyncio.sleep(0.3)
        return "3"

    partner = Slow(ScriptedModel(guest, "x:y"))
    (late,) = (
        await group_of(renderer, scripted(guest), 1, episode_timeout_s=0.2, retries=0)
    ).trajectories
    assert "at last waiting for a partner" in late.failure
    (fine,) = (await group_of(renderer, partner, 1, episode_timeout_s=0.2, retries=0)).trajectories
    assert fine.failure is None


async def test_continuations_ask_the_partner_anew_and_its_turns_have_no_value(renderer):
    partner = scripted(lambda messages, rng: str(rng.integers(3, 5)))
    group = await group_of(renderer, partner, members=3, vine=VineConfig(rollouts=64))
    for trajectory in group.finished:
        assert len(trajectory.segments) == 1
        values = [turn.value for turn in trajectory.turns]
        assert values[0] is values[2] is None, "nothing that a partner does is trained"
        # The cook is right if the guest wants 3: at the last turn that is known.
        last = float(trajectory.turns[2].action == "3")
        assert values[3] == last
        first = float(trajectory.turns[0].action == "3")
        assert values[1] == pytest.approx(first + 0.5, abs=0.2)
        assert values[1] not in (first, first + 1.0), "the guest's next order is drawn anew"
    batch = Batch.from_groups([group])
    assert not batch.turn_values.isnan().any()


async def test_a_chat_endpoint_plays_a_role(renderer):
    with chat_server() as server:
        server.answer = lambda request: "3" if len(request["messages"]) == 2 else "9"
        async with aiohttp.ClientSession() as session:
            partner = ChatPartner(ChatClient(session, server.url, "user"), SamplingParams())
            (trajectory,) = (await group_of(renderer, partner, members=1)).trajectories
    assert [turn.action for turn in trajectory.turns] == ["3", "4", "9", "4"]
    assert [turn.finish_reason for turn in trajectory.turns][::2] == [BY_PARTNER] * 2
    assert server.requests[0]["messages"] == [
        {"role": "system", "content": RULES["guest"]},
        {"role": "user", "content": "Table 7."},
    ]
    trajectory.check()


def test_roles_without_a_player_are_refused():
    guest = LocalPartner(role="guest")
    check_roles(guest, "cafe-v0", ("guest", "cook"))
    with pytest.raises(UsageError, match=r"partner.role \(guest\) is no role of x-v0 .* it declar"):
        check_roles(guest, "x-v0", ())
    with pytest.raises(UsageError, match="leaves no role of cafe-v0 to the policy"):
        check_roles(LocalPartner(role="guest, cook"), "cafe-v0", ("guest", "cook"))
    with pytest.raises(ValueError, match=r"partner\.role is empty"):
        LocalPartner().check()
    with pytest.raises(ValueError, match=r"needs a partner: give partner=local"):
        NoPartner(role="guest").check()
    with pytest.raises(ValueError, match=r"partner.function \(play\) must be path"):
        ScriptEngine(role="guest", function="play").check()
    assert dataclasses.replace(guest, role=" a,b, a").roles == ("a", "b")
