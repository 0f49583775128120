"""Values by trial: what continuations begin from, what they are worth, what they leave alone."""

from __future__ import annotations

import json
import logging
import math
import re
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

import envs
from agents.completion import Completion, FinishReason, SamplingParams
from agents.policy import PolicyFailure
from agents.scripted import ScriptedPolicy
from rl.credit.algorithms import ALGORITHMS
from rl.credit.assignment import assign_credit
from rl.credit.batch import Batch
from rl.errors import UsageError
from rl.rollout.collector import Collector, RolloutFailure
from rl.rollout.context import EpisodeContext, EpisodeLimits
from rl.rollout.trajectory import Continuations, Segment, Trajectory, Turn
from rl.rollout.vine import VineConfig, require_copies, return_to_go
from rl.run.metrics.episodes import rollout_metrics
from rl.run.trainer import vine_config
from tools.sandbox import SandboxUnavailable

VINE = VineConfig(rollouts=4)


class BitsEnv(envs.TextEnv[int, list[str]]):
    """Say bits, ``max_turns`` of them: each pays its value, and a coin is tossed at the end."""

    open_now = 0

    def __init__(self, options, services=None):
        super().__init__(options, range(10), services)
        type(self).open_now += 1

    def _twin(self):
        twin = super()._twin()
        type(self).open_now += 1
        return twin

    async def aclose(self):
        type(self).open_now -= 1
        await super().aclose()

    def begin(self, task):
        self.state = []
        return f"Task {task}."

    def turn(self, action):
        self.state.append(str(action))
        rewards = {"bit": float(action == "1")}
        if self.turns_left > 1:
            return envs.go_on("".join(self.state), rewards)
        return envs.finish(rewards | {"coin": float(self.np_random.integers(2))})


class LiveEnv(BitsEnv):
    """The same, with something in its state that cannot be copied."""

    def begin(self, task):
        self.state = [lambda: 0]
        return "Live."


class StuckEnv(BitsEnv):
    """The same, and says so."""

    forkable = False


class BrokenEnv(BitsEnv):
    """Its author made a mistake."""

    def begin(self, task):
        raise KeyError("a bug")


class DuelEnv(envs.TextEnv[int, int]):
    """Roles in turn; the second's bit pays both, and before it spoke it was paid 5 for nothing."""

    def __init__(self, options, services=None):
        super().__init__(options, range(10), services)

    def begin(self, task):
        self.state = 0
        self.role, self.system_prompt = "first", "You begin."
        return "Go."

    def turn(self, action):
        self.state += 1
        was, self.role = self.role, "second" if self.role == "first" else "first"
        self.system_prompt = f"You are {self.role}."
        if was == "first":
            gift = {"second/gift": 5.0} if self.state == 1 else {}
            return envs.go_on(f"It said {action}.", {"first/word": 0.5, **gift})
        return envs.go_on("So?", {"first/paid": 2.0, "second/bit": float(action == "1")})


for name, kind in {
    "vine-bits-v0": BitsEnv,
    "vine-live-v0": LiveEnv,
    "vine-stuck-v0": StuckEnv,
    "vine-broken-v0": BrokenEnv,
    "vine-duel-v0": DuelEnv,
}.items():
    envs.register(name, kind)


class BitPolicy:
    """Says a bit; the sampling seed alone decides which. ``fails`` says when it cannot answer."""

    version = 0

    def __init__(self, renderer, share=0.5, fails=lambda session: None):
        self.bits = [(*renderer.splice(text), renderer.end_token_ids[0]) for text in ("0", "1")]
        self.share = share
        self.fails = fails
        self.begun, self.ended, self.said = [], [], {}

    def begin(self, sessions):
        self.begun.append(list(sessions))

    async def generate(self, prompt_ids, sampling, session=None):
        retryable = self.fails(session)
        if retryable is not None:
            raise PolicyFailure("no answer", retryable=retryable)
        tokens = self.bits[np.random.default_rng(sampling.seed).random() < self.share]
        self.said.setdefault(session, []).append((list(prompt_ids), sampling))
        return Completion(
            tokens, (-0.5,) * len(tokens), (0,) * len(tokens), FinishReason.STOP_TOKEN
        )

    def queued_s(self, session):
        return 0.0

    def end(self, session):
        self.ended.append(session)

    async def load_weights(self, weights, version):
        """It has none."""

    async def close(self):
        """Nothing is held."""


@pytest.fixture
def collector_of(renderer):
    """From an environment and a policy to a collector."""

    def make(policy, env="vine-bits-v0", *, vine=VINE, limits=None, **options):
        return Collector(
            EpisodeContext(
                env_id=env,
                options=envs.EnvOptions(**{"max_turns": 3, **options}),
                services={},
                policy=policy,
                renderer=renderer,
                sampling=SamplingParams(max_tokens=20),
                limits=EpisodeLimits(**{"context_length": 1000, **(limits or {})}),
            ),
            vine=vine,
        )

    BitsEnv.open_now = 0
    return make


def values(group):
    return [[turn.value for turn in t.turns] for t in group.trajectories]


def number_of(session):
    """A continuation's number among those of its state; None for an episode's session.

    Sessions: 5/position/task/member/attempt, or 5/position/member/stream/turn/number/task/...
    """
    parts = session.split("/")
    return int(parts[5]) if len(parts) > 5 else None


def turn_of(session):
    return int(session.split("/")[4])


async def test_a_policy_without_chance_has_exact_values(collector_of, renderer):
    """Always "1": the bits that are left, and the coin, whose mean 4 trials only estimate."""
    (group,) = await collector_of(BitPolicy(renderer, 1.0)).collect([0], 2, (5,))
    for trajectory, own in zip(group.trajectories, values(group), strict=True):
        assert [turn.reward for turn in trajectory.turns[:2]] == [1.0, 1.0]
        coins = [value - left for value, left in zip(own, (3, 2, 1), strict=True)]
        assert all(coin in (0, 0.25, 0.5, 0.75, 1) for coin in coins)
    assert values(group)[0][0] == values(group)[1][0], "the first state is valued once"
    assert group.trajectories[0].continuations == Continuations(12, 0, 4 * (6 + 4 + 2))
    assert group.trajectories[1].continuations == Continuations(8, 0, 4 * (4 + 2))
    assert BitsEnv.open_now == 0, "every copy is closed"


async def test_the_mean_of_many_trials_is_the_true_value(collector_of, renderer):
    """Bits of mean .3 and a coin: V is .3 for each bit left, discounted, and .5 for the coin."""
    gamma, rollouts = 0.5, 1500
    vine = VineConfig(rollouts=rollouts, gamma_turn=gamma)
    collector = collector_of(BitPolicy(renderer, 0.3), vine=vine)
    (group,) = await collector.collect([0], 1, (5,))
    (own,) = values(group)
    for left, value in zip((3, 2, 1), own, strict=True):
        weights = [gamma**i for i in range(left)]
        expected = 0.3 * sum(weights) + 0.5 * weights[-1]
        variance = 0.21 * sum(w * w for w in weights) + 0.25 * weights[-1] ** 2
        assert abs(value - expected) < 3 * math.sqrt(variance / rollouts)


async def test_with_one_turn_it_is_a_baseline_of_other_episodes(collector_of, renderer):
    """Beside it, the advantage of every token is the return minus the mean of the trials."""
    policy = BitPolicy(renderer)
    (group,) = await collector_of(policy, max_turns=1).collect([0], 3, (5,))
    ((value,), *others) = values(group)
    assert others == [[value], [value]]
    row = replace(ALGORITHMS["vineppo"], whiten=False)
    credit = assign_credit(row, Batch.from_groups([group]))
    expected = [t.reward - value for t in group.trajectories for _ in range(2)]
    assert credit.advantages.tolist() == pytest.approx(expected)
    seeds = [sampling.seed for said in policy.said.values() for _, sampling in said]
    assert len(seeds) == len(set(seeds)) == 3 + 4, "no trial repeats an episode"


def recorded(groups):
    """The groups' records, without timings and values."""
    records = json.loads(json.dumps([t.to_json() for g in groups for t in g.trajectories]))
    for record in records:
        del record["continuations"]
        for turn in record["turns"]:
            del turn["generate_s"], turn["env_s"], turn["value"]
    return records


async def test_episodes_are_what_they_are_without_continuations(make_collector, random_policy):
    """Episodes of random texts, endings, tools and lengths, some of which fill their context."""
    limits = {"context_length": 80}
    collector = make_collector(vine=VINE, limits=limits)
    with_values = await collector.collect(range(8), 2, (5,))
    begun = random_policy.begun
    episodes = {s: random_policy.said[s] for s in begun[:16]}
    random_policy.begun, random_policy.said, random_policy.version = [], {}, 0
    plain = await make_collector(limits=limits).collect(range(8), 2, (5,))
    assert recorded(with_values) == recorded(plain)
    assert random_policy.begun == begun[:16], "continuations begin when all episodes are over"
    assert random_policy.said == episodes
    assert sum(len(t.turns) for g in plain for t in g.trajectories) > 30
    kinds = {t.stop_reason for g in plain for t in g.trajectories}
    assert {"context_full", "invalid_actions", None} <= kinds
    assert all(turn.value is not None for g in with_values for t in g.finished for turn in t.turns)
    assert {turn.value for g in plain for t in g.finished for turn in t.turns} == {None}


async def test_a_continuation_has_read_what_its_episode_had(make_collector, random_policy):
    groups = await make_collector(vine=VINE).collect(range(4), 2, (5,))
    checked = 0
    for session, said in random_policy.said.items():
        if number_of(session) is None:
            continue
        position, member, turn = (int(session.split("/")[i]) for i in (1, 2, 4))
        trajectory = groups[position].trajectories[member]
        (episode,) = (
            s for s in random_policy.said if s.startswith(f"5/{position}/{position}/{member}/")
        )
        asked = random_policy.said[episode][turn]
        assert said[0][0] == asked[0], "the same tokens"
        assert said[0][1].seed != asked[1].seed
        assert replace(said[0][1], seed=0) == replace(asked[1], seed=0)
        assert turn < len(trajectory.turns)
        checked += 1
    assert checked == sum(t.continuations.count for g in groups for t in g.trajectories) > 20


async def test_values_depend_on_the_seed_and_on_nothing_beside(collector_of, renderer):
    alone = await collector_of(BitPolicy(renderer)).collect([3], 2, (5,))
    again = await collector_of(BitPolicy(renderer)).collect([3], 2, (5,))
    beside = await collector_of(BitPolicy(renderer)).collect([3, 4, 5, 6, 7], 2, (5,))
    other = await collector_of(BitPolicy(renderer)).collect([3], 2, (6,))
    assert values(alone[0]) == values(again[0]) == values(beside[0]) != values(other[0])
    drawn = [v for group in beside for own in values(group) for v in own]
    assert len(set(drawn)) > 4, "and states have futures of their own"


async def test_what_failed_counts_in_no_value(collector_of, renderer, caplog):
    """Of 4 trials the last fails for good, and the second once: it is begun again as it was."""
    collector = collector_of(BitPolicy(renderer), vine=VineConfig(rollouts=3))
    (whole,) = await collector.collect([0], 1, (5,))

    def fails(session):
        number = number_of(session)
        if number == 3:
            return False
        return True if number == 1 and session.endswith("/0") else None

    with caplog.at_level(logging.WARNING):
        (group,) = await collector_of(BitPolicy(renderer, fails=fails)).collect([0], 1, (5,))
    assert values(group) == values(whole)
    assert group.trajectories[0].continuations == Continuations(12, 3, 3 * (6 + 4 + 2))
    metrics = rollout_metrics([group])
    assert (metrics["vine/rollouts"], metrics["vine/tokens"]) == (12.0, 36.0)
    assert metrics["vine/failed"] == 0.25
    assert (metrics["num_sampled_tokens"], metrics["failures"], metrics["retries"]) == (6, 0, 0)
    assert "vine/rollouts" not in rollout_metrics(
        await collector_of(BitPolicy(renderer), vine=None).collect([0], 1, (5,))
    )


async def test_an_episode_with_a_turn_without_a_value_fails(collector_of, renderer):
    """All trials from the second turn of member 1 fail: no other member changes."""

    def fails(session):
        mine = number_of(session) is not None and turn_of(session) == 1
        return False if mine and session.split("/")[2] == "1" else None

    collector = collector_of(BitPolicy(renderer, fails=fails), limits={"max_failed": 0.5})
    (group,) = await collector.collect([0], 2, (5,))
    fine, failed = group.trajectories
    assert failed.failure == (
        "VineFailure: none of 4 continuations of turn 2 finished; the first: "
        "PolicyFailure: no answer"
    )
    assert (failed.terminated, failed.truncated) == (False, False)
    assert group.finished == [fine]
    assert None not in values(group)[0]
    assert rollout_metrics([group])["failures/VineFailure"] == 1.0
    assert BitsEnv.open_now == 0


async def test_a_group_whose_first_state_has_no_value_fails(collector_of, renderer):
    def fails(session):
        return False if number_of(session) is not None and turn_of(session) == 0 else None

    collector = collector_of(BitPolicy(renderer, fails=fails))
    with pytest.raises(RolloutFailure, match=r"^2 of 2 episodes failed.*continuations of turn 1"):
        await collector.collect([0], 2, (5,))
    assert BitsEnv.open_now == 0


async def test_the_first_state_comes_from_an_episode_that_finished(collector_of, renderer):
    """Its value does not depend on who that was."""

    def fails(session):
        return False if session.startswith("5/0/0/0/") else None

    (whole,) = await collector_of(BitPolicy(renderer)).collect([0], 2, (5,))
    collector = collector_of(BitPolicy(renderer, fails=fails), limits={"max_failed": 0.5})
    (group,) = await collector.collect([0], 2, (5,))
    assert len(group.finished) == 1
    assert values(group)[1] == values(whole)[1]


async def test_copies_that_cannot_be_made_fail_their_episodes(collector_of, renderer):
    collector = collector_of(BitPolicy(renderer), "vine-live-v0", limits={"max_failed": 1.0})
    (group,) = await collector.collect([0], 1, (5,))
    assert "raised NotForkable: LiveEnv.state does not pickle" in group.trajectories[0].failure


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ("vine-stuck-v0", "vine-stuck-v0: its state cannot be copied"),
        ("vine-live-v0", r"LiveEnv.state does not pickle .*"),
    ],
)
async def test_environments_without_copies_are_refused(collector_of, renderer, env, says):
    message = rf"^algo.advantage \(vine\) plays on from copies of an episode, .* none: {says}"
    with pytest.raises(UsageError, match=message):
        await require_copies(collector_of(BitPolicy(renderer), env).context)
    assert BitsEnv.open_now == 0


async def test_what_else_goes_wrong_is_left_to_the_episodes(collector_of, renderer, caplog):
    await require_copies(collector_of(BitPolicy(renderer)).context)
    assert not caplog.records
    await require_copies(collector_of(BitPolicy(renderer), "vine-broken-v0").context)
    assert "whether it can be copied could not be tried: 'a bug'" in caplog.text
    assert BitsEnv.open_now == 0


async def test_roles_have_values_of_their_own(collector_of, renderer):
    """Always "1": first earns .5 + 2 in each round of two, second 1, after a gift of 5."""
    policy = BitPolicy(renderer, 1.0)
    collector = collector_of(policy, "vine-duel-v0", max_turns=4)
    (group,) = await collector.collect([0], 1, (5,))
    assert values(group) == [[5.0, 7.0, 2.5, 1.0]]
    batch = Batch.from_groups([group])
    credit = assign_credit(replace(ALGORITHMS["vineppo"], whiten=False), batch)
    assert credit.advantages.tolist() == [0.0] * 8
    group.trajectories[0].turns[3].rewards["second/bit"] = 3.0
    credit = assign_credit(replace(ALGORITHMS["vineppo"], whiten=False), Batch.from_groups([group]))
    assert credit.advantages.tolist() == [0.0] * 4 + [0.0] * 2 + [2.0] * 2
    prompts = {s: said[0][0] for s, said in policy.said.items() if number_of(s) == 0}
    episode = policy.said["5/0/0/0/0"]
    assert sorted(map(len, prompts.values())) == sorted(len(ids) for ids, _ in episode)
    assert list(prompts.values()) == [ids for ids, _ in episode], "each has read its own words"


async def test_interpreters_are_copied_with_their_variables(renderer):
    """Each turn of math's python tool counts on, whatever continuations did."""
    code = "<code>\ntry:\n    x += 1\nexcept NameError:\n    x = 1\nx\n</code>"
    options = envs.env_type("math-v0").Options(tools="python", max_turns=4)
    words = [*renderer.splice(code), renderer.end_token_ids[0]]
    prompts: dict[str, list[str]] = {}

    def respond(session, prompt_ids):
        prompts.setdefault(session, []).append(renderer.tokenizer.decode(prompt_ids))
        return words

    try:
        async with envs.env_type("math-v0").open_services(options) as services:
            collector = Collector(
                EpisodeContext(
                    env_id="math-v0",
                    options=options,
                    services=services,
                    policy=ScriptedPolicy(respond),
                    renderer=renderer,
                    sampling=SamplingParams(max_tokens=200),
                    limits=EpisodeLimits(context_length=10_000),
                ),
                vine=VineConfig(rollouts=2),
            )
            (group,) = await collector.collect([0], 1, (5,))
            assert services["python"]._sessions == {}, "every interpreter has ended"
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    (trajectory,) = group.finished
    shown = [call.text for turn in trajectory.turns for call in turn.tool_calls]
    assert shown == ["1", "2", "3"]
    assert [turn.value for turn in trajectory.turns] == [0.0] * 4
    assert trajectory.continuations.count == 8
    for session, said in prompts.items():
        counted = re.findall(r"<interpreter>\s*(\d)\s*</interpreter>", said[-1])
        assert counted == ["1", "2", "3"], session


def test_returns_to_go_are_discounted_by_a_roles_own_turns():
    def turn(role, num_tokens=1, **rewards):
        return Turn("", "", "stop_token", num_tokens, rewards, role=role)

    trajectory = Trajectory("test", {}, 0, 0, 0)
    trajectory.turns = [turn("", a=1.0), turn("", a=2.0), turn("", 0, a=4.0), turn("", a=8.0)]
    assert return_to_go(trajectory, "", 0, 0.5) == 1.0 + 0.5 * (2.0 + 4.0) + 0.25 * 8.0
    assert return_to_go(trajectory, "", 1, 1.0) == 14.0
    assert return_to_go(trajectory, "", 4, 1.0) == 0.0
    trajectory.segments = [Segment(role="a"), Segment(role="b")]
    trajectory.turns = [turn("a", x=1.0), turn("b", **{"a/y": 2.0, "z": 32.0}), turn("a", x=4.0)]
    assert return_to_go(trajectory, "a", 0, 0.5) == 1.0 + 2.0 + 0.5 * 4.0


def test_an_algorithm_determines_the_values_of_turns():
    assert vine_config(ALGORITHMS["grpo"]) is None
    row = ALGORITHMS["vineppo"].changed({"advantage.rollouts": 3, "advantage.gamma_turn": 0.9})
    assert vine_config(row) == VineConfig(rollouts=3, gamma_turn=0.9)
    assert vine_config(ALGORITHMS["vineppo"]) == VineConfig(rollouts=9, gamma_turn=1.0)


async def test_values_are_in_the_record(collector_of, renderer):
    (group,) = await collector_of(BitPolicy(renderer)).collect([0], 1, (5,))
    (trajectory,) = group.trajectories
    assert Trajectory.from_json(json.loads(json.dumps(trajectory.to_json()))) == trajectory
    assert fmean(values(group)[0]) > 0
