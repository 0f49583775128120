"""Compaction: contexts of one episode, what each begins with, and which tokens are trained."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import envs
from agents.completion import Completion, FinishReason, SamplingParams
from agents.context.agent import DROPPED, SUMMARY
from agents.context.settings import ContextConfig
from agents.renderer import Renderer
from agents.segment import Segment
from envs.episode import StopReason, finish, go_on
from rl.credit.advantages.builtin import Gae, GroupOutcome
from rl.credit.advantages.inputs import CreditInputs
from rl.credit.batch import Batch
from rl.data.conversations import Conversation, Exchange
from rl.rollout.collector import Collector
from rl.rollout.context import EpisodeContext, EpisodeLimits
from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn
from rl.rollout.vine import VineConfig
from rl.runtime.tiny import train_tokenizer
from rl.settings.parsing.command_line import parse
from rl.settings.train import TrainConfig

TASK = "Remember."
ASK = "Summary ?"
NOTE = "note {} is long long long long long long long long"
SUMMARY_CONFIG = ContextConfig(compact="summary", tokens=90, summary_tokens=16, instruction=ASK)
DROP_CONFIG = ContextConfig(compact="drop", tokens=90)


class NotesEnv(envs.TextEnv[int, int]):
    """Eight observations; the reward is the task's number."""

    def __init__(self, options, services=None):
        super().__init__(options, range(10), services)

    def begin(self, task):
        self.state = 0
        return TASK

    def turn(self, action):
        self.state += 1
        if self.state == 9:
            return finish({"end": float(len(action) % 3)})
        return go_on(NOTE.format(self.state))


envs.register("test-notes-v0", NotesEnv)


class NumberingPolicy:
    """Writes random letters of random length; remembers each request and its completion."""

    def __init__(self, renderer, longest=6):
        self.renderer, self.longest, self.version, self.said = renderer, longest, 0, {}

    def begin(self, sessions):
        """Nothing is prepared."""

    def queued_s(self, session):
        return 0.0

    def end(self, session):
        """Nothing is held."""

    async def generate(self, prompt_ids, sampling, session=None):
        rng = np.random.default_rng(sampling.seed)
        count = min(int(rng.integers(1, self.longest + 1)), sampling.max_tokens)
        letters = self.renderer.splice("abcdefgh")
        tokens = [int(t) for t in rng.choice(letters, count)]
        ended = bool(rng.random() < 0.7)
        if ended:
            tokens[-1] = self.renderer.end_token_ids[0]
        self.version += 1
        logprobs = tuple((-rng.exponential(size=count)).tolist())
        reason = FinishReason.STOP_TOKEN if ended else FinishReason.LENGTH
        answer = Completion(tuple(tokens), logprobs, (self.version,) * count, reason)
        self.said.setdefault(session, []).append((list(prompt_ids), sampling, answer))
        return answer


@pytest.fixture(scope="module")
def renderer():
    texts = Conversation((Exchange(f"{TASK} {NOTE} {ASK} {SUMMARY} {DROPPED}", "abcdefgh"),))
    return Renderer(train_tokenizer([texts], 300))


def collector(renderer, policy, compaction, vine=None):
    return Collector(
        EpisodeContext(
            env_id="test-notes-v0",
            options=envs.env_type("test-notes-v0").Options(max_turns=20),
            services={},
            policy=policy,
            renderer=renderer,
            sampling=SamplingParams(max_tokens=6),
            limits=EpisodeLimits(context_length=10_000),
            compaction=compaction,
        ),
        vine=vine,
    )


async def play(renderer, compaction, key=0, members=1, longest=6):
    policy = NumberingPolicy(renderer, longest)
    [group] = await collector(renderer, policy, compaction).collect([1], members, (key,))
    return group, policy


@pytest.mark.parametrize("key", range(12))
async def test_an_episode_of_several_contexts_trains_exactly_its_sampled_tokens(renderer, key):
    group, policy = await play(renderer, SUMMARY_CONFIG, key, longest=1 + key)
    [trajectory], [said] = group.trajectories, policy.said.values()
    assert trajectory.failure is None and trajectory.terminated
    assert len(trajectory.segments) >= 4
    assert all(len(segment) <= 90 for segment in trajectory.segments)
    sampled = [token for _, _, answer in said for token in answer.token_ids]
    batch = Batch.from_groups([group])
    assert batch.targets.tolist() == sampled
    assert batch.versions.tolist() == [v for _, _, answer in said for v in answer.versions]
    assert batch.sampling_logprobs.tolist() == [p for _, _, a in said for p in a.logprobs]
    assert trajectory.num_sampled == sum(turn.num_tokens for turn in trajectory.turns)
    # Each request read the tokens of its segment, and nothing else.
    rows = [list(segment.token_ids) for segment in trajectory.segments]
    for prompt, _, answer in said:
        assert any(
            row[: len(prompt) + len(answer.token_ids)] == [*prompt, *answer.token_ids]
            for row in rows
        )


async def test_a_context_begins_with_the_task_the_summary_and_the_observation(renderer):
    group, policy = await play(renderer, SUMMARY_CONFIG)
    [trajectory], [said] = group.trajectories, policy.said.values()
    summaries = [answer for _, sampling, answer in said if sampling.max_tokens == 16]
    assert len(summaries) == len(trajectory.segments) - 1
    ask = renderer.extend(ASK, last=renderer.end_token_ids[0])
    for segment, following, summary in zip(
        trajectory.segments, trajectory.segments[1:], summaries, strict=False
    ):
        ids = list(segment.token_ids)
        tail = [*ask, *summary.token_ids]
        assert ids[-len(tail) :] == tail
        assert list(segment.loss_mask)[-len(tail) :] == [0] * len(ask) + [1] * len(
            summary.token_ids
        )
        turn = following.turn_ids[0]
        observation = trajectory.turns[turn - 1].observation
        text = renderer.text(summary.token_ids).strip()
        head = renderer.begin(f"{TASK}\n\n{SUMMARY}\n{text}\n\n{observation}", None)
        assert list(following.token_ids)[: len(head)] == head
        assert not any(list(following.loss_mask)[: len(head)])
        assert segment.turn_ids[-1] == turn, "a summary belongs to the turn that follows"


async def test_summaries_that_are_not_trained_change_no_other_token(renderer):
    trained, _ = await play(renderer, SUMMARY_CONFIG)
    masked, _ = await play(renderer, replace(SUMMARY_CONFIG, train_summaries=False))
    [a], [b] = trained.trajectories, masked.trajectories
    assert [list(s.token_ids) for s in a.segments] == [list(s.token_ids) for s in b.segments]
    assert b.num_sampled < a.num_sampled
    one = Batch.from_groups([masked])
    assert len(one.targets) == sum(turn.num_tokens for turn in b.turns)


async def test_drop_keeps_the_task_and_the_latest_turns_and_samples_nothing(renderer):
    group, policy = await play(renderer, DROP_CONFIG)
    [trajectory], [said] = group.trajectories, policy.said.values()
    assert len(said) == len(trajectory.turns) == 9
    assert len(trajectory.segments) >= 3
    batch = Batch.from_groups([group])
    assert batch.targets.tolist() == [t for _, _, answer in said for t in answer.token_ids]
    for segment in trajectory.segments[1:]:
        text = renderer.tokenizer.decode(list(segment.token_ids))
        assert text.startswith(f"<|user|>{TASK}\n\n{DROPPED}\n\nnote ")
        turn = segment.turn_ids[0]
        assert NOTE.format(turn) in text, "the latest observation is there"
        first = list(segment.loss_mask).index(1)
        assert first <= 45, "half of the context is free"


async def test_drop_keeps_the_tokens_of_the_turns_that_stay(renderer):
    group, _ = await play(renderer, replace(DROP_CONFIG, tokens=150))
    [trajectory] = group.trajectories
    old, new = trajectory.segments[:2]
    turn = new.turn_ids[0]
    context = list(new.token_ids)[: list(new.loss_mask).index(1)]
    kept = [i for i in range(turn) if NOTE.format(i) in renderer.tokenizer.decode(context)]
    assert kept == list(range(kept[0], turn)) and kept[0] > 1
    ids, mask, turns = (np.asarray(x) for x in (old.token_ids, old.loss_mask, old.turn_ids))
    begin = int(np.flatnonzero((turns == kept[0]) & (mask == 1))[0])
    tail = ids[begin:].tolist()
    head = renderer.begin(f"{TASK}\n\n{DROPPED}\n\n{NOTE.format(kept[0])}", None)
    assert context[: len(head) + len(tail)] == [*head, *tail]


async def test_a_task_that_fits_no_context_ends_the_episode(renderer):
    group, _ = await play(renderer, replace(SUMMARY_CONFIG, tokens=45))
    [trajectory] = group.trajectories
    assert trajectory.stop_reason == StopReason.CONTEXT_FULL
    assert len(Batch.from_groups([group]).targets) == trajectory.num_sampled


async def test_records_of_several_contexts_return_from_json(renderer):
    group, _ = await play(renderer, SUMMARY_CONFIG)
    [trajectory] = group.trajectories
    again = Trajectory.from_json(json.loads(json.dumps(trajectory.to_json())))
    again.check()
    assert [list(s.token_ids) for s in again.segments] == [
        list(s.token_ids) for s in trajectory.segments
    ]


async def test_continuations_start_before_the_summary(renderer):
    """VinePPO values the state before a summary: continuations sample summaries of their own."""
    policy = NumberingPolicy(renderer)
    playing = collector(renderer, policy, SUMMARY_CONFIG, VineConfig(rollouts=2))
    [group] = await playing.collect([1], 2, (0,))
    plain, _ = await play(renderer, SUMMARY_CONFIG, members=2)
    for valued, alone in zip(group.trajectories, plain.trajectories, strict=True):
        assert [list(s.token_ids) for s in valued.segments] == [
            list(s.token_ids) for s in alone.segments
        ]
        assert all(turn.value is not None for turn in valued.turns)
    shared = {tuple(said[0][0]) for said in policy.said.values()}
    assert len(shared) > 2, "continuations start from contexts in the middle of the episode"


def compacted(reward) -> Trajectory:
    """One turn in the first context; the second turn's summary there, and its action after it."""

    def answered(count):
        return Completion(
            tuple(range(5, 5 + count)), (-1.0,) * count, (0,) * count, FinishReason.LENGTH
        )

    first, second = Segment(), Segment()
    first.append_context([1, 2], 0)
    first.append_completion(answered(1), 0)
    first.append_context([3], 1)
    first.append_completion(answered(2), 1)
    second.append_context([1, 5, 6], 1)
    second.append_completion(answered(1), 1)
    turns = [Turn("a", "o", "length", 1), Turn("b", "", "length", 3, rewards={"r": reward})]
    return Trajectory("e", {}, 0, 0, 0, segments=[first, second], turns=turns, terminated=True)


def test_the_value_after_a_summary_is_that_of_the_next_contexts_first_action():
    """GAE by hand: values .1 .2 .3 .4 of four tokens in two contexts, reward 1 at the last one."""
    batch = Batch.from_groups([TrajectoryGroup([compacted(1.0)])])
    assert batch.turn_ends.tolist() == [0, 3]
    assert batch.turn_rewards.tolist() == [0.0, 1.0]
    # gamma 1/2, lambda 1/2. Deltas: .5*.2-.1=0, .5*.3-.2=-.05, .5*.4-.3=-.1, 1-.4=.6
    # Advantages from the end: .6, -.1+.25*.6=.05, -.05+.25*.05=-.0375, .25*-.0375=-.009375
    values = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    credit = Gae(gamma=0.5, lam=0.5).credit(CreditInputs(batch, values))
    assert credit.advantages.tolist() == pytest.approx([-0.009375, -0.0375, 0.05, 0.6])
    assert credit.returns.tolist() == pytest.approx([0.090625, 0.1625, 0.35, 1.0])


def test_a_summary_has_its_episodes_advantage_and_each_token_counts_once():
    """Two episodes, returns 1 and 0: with std=none, advantages .5 and -.5 on all their tokens."""
    paid, unpaid = compacted(1.0), compacted(0.0)
    batch = Batch.from_groups([TrajectoryGroup([paid, unpaid])])
    credit = GroupOutcome(std="none").credit(CreditInputs(batch))
    assert credit.advantages.tolist() == [0.5] * 4 + [-0.5] * 4
    assert len(batch.rows) == 4, "each context is a row"
    assert batch.rewards.tolist() == [1.0, 0.0], "the contexts of an episode are one sequence"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("context.tokens=100", "needs compact=summary"),
        ("context.summary_tokens=0", "must be >= 1"),
        ("context.instruction=", "instruction is empty"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(word, message):
    with pytest.raises(ValueError, match=message):
        parse(TrainConfig, [word], command="rl.train", presets={})


def test_an_agents_own_loop_is_not_compacted():
    words = ["env=agent", "env.loop=true", "context.compact=drop"]
    with pytest.raises(ValueError, match="must be none with env=agent"):
        parse(TrainConfig, words, command="rl.train", presets={})
