"""Seconds of lanes: by shares or by precedence, and always adding up to the time that passed."""

from __future__ import annotations

import random

import pytest

from rl.run.process.activity import GENERATE, LEARNER, POLICY, QUEUE, ROLLOUT, Activities
from rl.run.process.ledger import Lane


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def activities(clock):
    return Activities(clock)


def test_running_activities_share_an_instant():
    lane = Lane(0.0)
    lane.change(1.0, None, "generate")  # idle for 1 s
    lane.change(3.0, None, "environment")  # one alone for 2 s
    lane.change(7.0, "environment", "generate")  # two for 4 s, half each
    lane.change(9.0, "generate", None)
    lane.change(10.0, "generate", None)
    assert lane.take(14.0) == {"idle": 5.0, "generate": 7.0, "environment": 2.0}
    assert lane.take(15.5) == {"idle": 1.5}


def test_a_state_that_takes_precedence_takes_all():
    lane = Lane(0.0, ("sync", "generate"))
    for _ in range(3):
        lane.change(0.0, None, "generate")
    lane.change(2.0, None, "sync")
    lane.change(5.0, "sync", None)
    assert lane.take(6.0) == {"idle": 0.0, "generate": 3.0, "sync": 3.0}


def test_time_that_turns_out_to_be_of_another_state_is_moved(activities, clock):
    with (
        activities.doing(ROLLOUT, "a", GENERATE) as first,
        activities.doing(ROLLOUT, "b", GENERATE),
    ):
        clock.now += 8
        first.was(QUEUE, 2.0)  # a quarter of the 8 s in which it had 4 of the lane's
        first.enter("environment")
        clock.now += 2
    taken = activities.take()
    assert taken["time/rollout/queue"] == pytest.approx(1.0)
    assert taken["time/rollout/generate"] == pytest.approx(7.0 + 1.0)
    assert taken["time/rollout/environment"] == pytest.approx(1.0)
    assert taken["time/wall"] == 10.0


def test_reassigned_seconds_never_exceed_the_counted_ones(activities, clock):
    with activities.doing(ROLLOUT, "a", GENERATE) as one:
        clock.now += 8
        activities.take()
        clock.now += 1
        one.was(QUEUE, 8.0)
        one.was(QUEUE, -3.0)
    taken = activities.take()
    assert taken["time/rollout/queue"] == 1.0
    assert taken["time/rollout/generate"] == 0.0


def test_lanes_go_on_side_by_side(activities, clock):
    with activities.doing(LEARNER, "step 1", "learn"):
        clock.now += 1
        with activities.busy(POLICY, GENERATE):
            clock.now += 2
            with activities.busy(POLICY, "sync"):
                clock.now += 3
    taken = activities.take()
    assert taken == {
        "time/wall": 6.0,
        "time/rollout/idle": 6.0,
        "time/learner/idle": 0.0,
        "time/learner/learn": 6.0,
        "time/policy/idle": 1.0,
        "time/policy/generate": 2.0,
        "time/policy/sync": 3.0,
    }


def test_a_lane_that_came_later_was_idle_before(activities, clock):
    clock.now += 2
    busy = activities.lane("vllm-0", ("restart", "sync"))
    with busy("generate"):
        clock.now += 1
        with busy("restart"):
            clock.now += 4
    taken = activities.take()
    mine = {key: seconds for key, seconds in taken.items() if "vllm-0" in key}
    assert mine == {
        "time/vllm-0/idle": 2.0,
        "time/vllm-0/generate": 1.0,
        "time/vllm-0/restart": 4.0,
    }
    assert taken["time/wall"] == 7.0


@pytest.mark.parametrize("seed", range(5))
def test_each_lane_adds_up_to_the_time_whatever_happens(activities, clock, seed):
    """Random beginnings, changes, corrections and ends, and a count taken now and then."""
    chance = random.Random(seed)
    running, began = [], clock.now
    total = {ROLLOUT: 0.0, LEARNER: 0.0, POLICY: 0.0}

    def count():
        taken = activities.take()
        for lane in total:
            parts = {k: v for k, v in taken.items() if k.startswith(f"time/{lane}/")}
            assert sum(parts.values()) == pytest.approx(taken["time/wall"], rel=1e-9, abs=1e-9)
            assert min(parts.values()) >= 0
            total[lane] += sum(parts.values())

    for _ in range(2000):
        clock.now += chance.expovariate(10)
        kind = chance.random()
        if kind < 0.4 or not running:
            lane = chance.choice(list(total))
            context = activities.doing(lane, "x", chance.choice("abc"))
            running.append((context, context.__enter__()))
        elif kind < 0.6:
            chance.choice(running)[1].enter(chance.choice(["generate", "sync", "b"]))
        elif kind < 0.7:
            chance.choice(running)[1].was("queue", chance.random())
        elif kind < 0.99:
            running.pop(chance.randrange(len(running)))[0].__exit__(None, None, None)
        else:
            count()
    count()
    assert total == pytest.approx(dict.fromkeys(total, clock.now - began), rel=1e-9)


def test_activities_are_listed_the_oldest_first(activities, clock):
    with activities.doing(ROLLOUT, "task 1", GENERATE):
        clock.now += 5
        with activities.doing(LEARNER, "step 2", "learn") as learning:
            clock.now += 1
            assert list(map(str, activities.waits())) == [
                "rollout: task 1, generate for 6.0 s",
                "learner: step 2, learn for 1.0 s",
            ]
            learning.enter("sync")
            assert activities.waits()[1].seconds == 0
    assert activities.waits() == []


def test_progress_comes_from_reports_and_sources(activities, clock):
    class Policy:
        tokens = 0

        def progress(self):
            return float(self.tokens)

        def component_status(self):
            return {"thread": "computes"}

    policy = Policy()
    activities.watch(policy)
    clock.now += 3
    assert activities.last_progress() == (3.0, "the start")
    activities.progressed("an episode")
    clock.now += 2
    assert activities.last_progress() == (2.0, "an episode")
    policy.tokens = 7
    assert activities.last_progress() == (0.0, "the policy")
    clock.now += 1
    assert activities.last_progress() == (1.0, "the policy")
    assert activities.component_status() == {"thread": "computes"}


def test_held_seconds_are_those_of_the_holder_alone(activities, clock):
    with (
        activities.doing(ROLLOUT, "a", "environment") as holder,
        activities.doing(ROLLOUT, "b", GENERATE) as waiting,
        activities.busy(POLICY, GENERATE),
    ):
        clock.now += 6  # 1 s of it free, then 5 s held
        holder.held(5.0)
        clock.now += 2
        waiting.was(QUEUE, 8.0)  # all of its own: half a second of the first and of each other
    taken = activities.take()
    assert taken["time/rollout/environment"] == pytest.approx(0.5 + 5 + 1)
    assert taken["time/rollout/queue"] == pytest.approx(0.5 + 1)
    assert taken["time/rollout/generate"] == 0.0
    assert (taken["time/policy/held"], taken["time/policy/generate"]) == (5.0, 3.0)
    assert (activities.held_s, holder.held_s, waiting.held_s) == (5.0, 5.0, 0.0)


def test_a_policy_that_holds_the_loop_generates(activities, clock):
    with (
        activities.doing(ROLLOUT, "a", GENERATE) as holder,
        activities.doing(ROLLOUT, "b", "environment"),
        activities.busy(POLICY, GENERATE),
    ):
        clock.now += 4
        holder.held(4.0)
    taken = activities.take()
    assert (taken["time/rollout/generate"], taken["time/policy/generate"]) == (4.0, 4.0)
    assert activities.held_s == 0.0
