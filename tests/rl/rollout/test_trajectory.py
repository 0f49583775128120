"""Every token of a trajectory is accounted for, over ten thousand of them."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import threading

import pytest

from agents.completion import Completion, FinishReason
from agents.segment import NOT_SAMPLED, Segment
from envs.episode import EnvToolCall
from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn


def recount(trajectory, said):
    """Compare a trajectory's columns with what the policy itself remembers of the episode."""
    (segment,) = trajectory.segments
    position, tokens = 0, segment.token_ids
    for number, (prompt, _, completion) in enumerate(said):
        assert tokens[: len(prompt)] == prompt, "what the policy read is what is recorded"
        given = range(position, len(prompt))
        position = len(prompt) + len(completion.token_ids)
        sampled = range(len(prompt), position)
        assert tuple(tokens[len(prompt) : position]) == completion.token_ids
        for column, before, after in (
            (segment.loss_mask, [0] * len(given), [1] * len(sampled)),
            (segment.versions, [NOT_SAMPLED] * len(given), list(completion.versions)),
            (segment.sampling_logprobs, [0.0] * len(given), list(completion.logprobs)),
            (segment.turn_ids, [number] * len(given), [number] * len(sampled)),
        ):
            assert column[given.start : given.stop] == before
            assert column[sampled.start : sampled.stop] == after
    assert 1 not in segment.loss_mask[position:]
    assert [turn.num_tokens for turn in trajectory.turns] == [len(c.token_ids) for _, _, c in said]
    assert [turn.finish_reason for turn in trajectory.turns] == [
        c.finish_reason for _, _, c in said
    ]


@pytest.mark.quick
async def test_five_hundred_random_episodes(make_collector, random_policy):
    await check_episodes(make_collector(), random_policy, num_tasks=125, parts=1)


@pytest.mark.nightly
async def test_ten_thousand_random_episodes(make_collector, random_policy):
    await check_episodes(make_collector(), random_policy, num_tasks=625, parts=4)


async def check_episodes(collector, random_policy, *, num_tasks: int, parts: int) -> None:
    endings = set()
    for part in range(parts):
        groups = await collector.collect(range(num_tasks), 4, (7, part))
        for position, group in enumerate(groups):
            for member, trajectory in enumerate(group.trajectories):
                trajectory.check()
                session = f"7/{part}/{position}/{position}/{member}/0"
                recount(trajectory, random_policy.said.pop(session))
                assert (trajectory.task, trajectory.member) == (position, member)
                endings.add((trajectory.terminated, trajectory.stop_reason))
                line = json.dumps(trajectory.to_json())
                assert Trajectory.from_json(json.loads(line)) == trajectory
    assert random_policy.said == {}, "and the policy was asked for nothing else"
    assert endings == {(True, None), (False, "invalid_actions"), (False, "turn_limit")}


@pytest.fixture
def sound():
    """A two-turn trajectory with a fork, which ends well."""
    main, fork = Segment(), Segment(parent=0, offset=3)
    main.append_context([5, 6, 7], 0)
    main.append_completion(Completion((8, 9), (-0.5, -1.0), (2, 2), FinishReason.STOP_TOKEN), 0)
    fork.append_context([5, 6, 7, 4], 1)
    fork.append_completion(Completion((3,), (-2.0,), (3,), FinishReason.LENGTH), 1)
    calls = [EnvToolCall("look", {"q": "x"}, "found"), EnvToolCall("look", {}, "", "no q")]
    turns = [
        Turn("a", "o", "stop_token", 2, {"a": 0.5, "b": 0.25}, {"s": 1.0}, calls, 0.1, 0.2),
        Turn("b", "", "length", 1, {"a": -1.0}),
    ]
    options = {"split": "train", "nested": {"x": [1, 2]}}
    return Trajectory("toy-v0", options, 3, 11, 1, [main, fork], turns, terminated=True)


def test_a_sound_trajectory_passes_and_adds_up(sound):
    sound.check()
    assert sound.num_sampled == 3
    assert [turn.reward for turn in sound.turns] == [0.75, -1.0]
    assert sound.reward == -0.25
    assert sound.rewards == {"a": -0.5, "b": 0.25}
    assert Trajectory.from_json(json.loads(json.dumps(sound.to_json()))) == sound


def edit(path, value):
    """Set ``path`` (attributes and indices) of a trajectory."""

    def apply(trajectory):
        *way, last = path
        for step in way:
            trajectory = trajectory[step] if isinstance(step, int) else getattr(trajectory, step)
        if isinstance(last, int):
            trajectory[last] = value
        else:
            setattr(trajectory, last, value)

    return apply


@pytest.mark.parametrize(
    ("complaint", "corrupt"),
    [
        ("unequal length", lambda t: t.segments[0].token_ids.append(1)),
        ("unequal length", lambda t: t.segments[0].loss_mask.pop()),
        ("unequal length", lambda t: t.segments[0].sampling_logprobs.pop()),
        ("unequal length", lambda t: t.segments[0].versions.pop()),
        ("unequal length", lambda t: t.segments[1].turn_ids.append(1)),
        ("something else than 0 and 1", edit(("segments", 0, "loss_mask", 3), 2)),
        ("a version on a token", edit(("segments", 0, "loss_mask", 0), 1)),
        ("a version on a token", edit(("segments", 0, "loss_mask", 3), 0)),
        ("a version on a token", edit(("segments", 0, "versions", 0), 2)),
        ("a version on a token", edit(("segments", 0, "versions", 4), NOT_SAMPLED)),
        ("no log-probability", edit(("segments", 0, "sampling_logprobs", 3), math.nan)),
        ("no log-probability", edit(("segments", 0, "sampling_logprobs", 3), -math.inf)),
        ("no log-probability", edit(("segments", 0, "sampling_logprobs", 3), 0.25)),
        ("no log-probability", edit(("segments", 0, "sampling_logprobs", 0), -0.25)),
        ("turns out of order", edit(("segments", 0, "turn_ids", 0), 1)),
        ("by turn", edit(("segments", 1, "turn_ids"), [1, 1, 1, 1, 2])),
        ("by turn", edit(("turns", 0, "num_tokens"), 3)),
        ("by turn", lambda t: t.turns.pop()),
        ("by turn", lambda t: t.turns.append(Turn("c", "", "length", 1))),
        ("trained twice", edit(("segments", 1, "offset"), 5)),
        ("longer than the segment", edit(("segments", 1, "offset"), 6)),
        ("with no parent", edit(("segments", 1, "parent"), None)),
        ("precedes its parent", edit(("segments", 1, "parent"), 1)),
        ("precedes its parent", edit(("segments", 1, "parent"), -1)),
        ("not its parent's", edit(("segments", 1, "token_ids", 1), 1)),
        ("exactly one way", edit(("terminated",), False)),
        ("exactly one way", edit(("failure",), "gone")),
        ("exactly one way", edit(("truncated",), True)),
        ("stop_reason goes with", edit(("stop_reason",), "turn_limit")),
    ],
)
def test_each_corruption_is_caught(sound, complaint, corrupt):
    corrupt(sound)
    with pytest.raises(AssertionError, match=complaint):
        sound.check()


def test_truncation_needs_its_reason(sound):
    sound.terminated, sound.truncated = False, True
    with pytest.raises(AssertionError, match="stop_reason goes with"):
        sound.check()
    sound.stop_reason = "turn_limit"
    sound.check()


def test_a_failed_episode_may_lack_its_last_turn(sound):
    sound.turns.pop()
    sound.terminated = False
    with pytest.raises(AssertionError):
        sound.check()
    sound.failure = "EnvFailure: gone"
    sound.check()


def test_finished_members_are_those_that_did_not_fail(sound):
    failed = dataclasses.replace(copy.deepcopy(sound), terminated=False, failure="gone")
    group = TrajectoryGroup([failed, sound])
    assert group.finished == [sound]


@pytest.mark.parametrize("limited", [False, True])
async def test_supports_are_checked_beside_the_event_loop(sound, monkeypatch, limited):
    threads, check = [], Trajectory.check

    def checked(self):
        threads.append(threading.current_thread() is threading.main_thread())
        check(self)

    monkeypatch.setattr(Trajectory, "check", checked)
    (segment, *_) = sound.segments
    if limited:
        marks = zip(segment.token_ids, segment.loss_mask, strict=True)
        segment.supports = [[token] if mask else [] for token, mask in marks]
    await sound.acheck()
    assert threads == [not limited]
    segment.loss_mask[0] = 1
    with pytest.raises(AssertionError):
        await sound.acheck()
