"""Numbers about episodes, against SciPy and by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest, t

from agents.completion import Completion, FinishReason
from agents.segment import Segment
from envs.episode import EnvToolCall
from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn
from rl.run.metrics.episodes import rollout_metrics, success_of
from rl.run.metrics.intervals import mean_interval, pass_at_k, pass_rate, pass_rate_of_tasks


@pytest.mark.parametrize("count", [1, 2, 7, 10, 128, 512])
def test_wilson_intervals_against_scipy(count):
    for successes in {0, 1, count // 3, count - 1, count}:
        rate = pass_rate([1.0] * successes + [0.0] * (count - successes))
        theirs = binomtest(successes, count).proportion_ci(method="wilson")
        assert rate.rate == pytest.approx(successes / count)
        assert rate.low == pytest.approx(theirs.low, abs=1e-12)
        assert rate.high == pytest.approx(theirs.high, abs=1e-12)
        assert rate.count == count


def test_the_interval_holds_its_rate_for_every_count():
    for count in range(1, 1200):
        for value in (0.0, 1.0):
            rate = pass_rate([value] * count)
            assert rate.low <= rate.rate <= rate.high
            assert rate.low >= 0
            assert rate.high <= 1


def test_returns_that_are_no_successes_have_the_normal_interval():
    rate = pass_rate([-3.0, -2.0, -2.0, 1.0])
    # Squared deviations 2.25 + 0.25 + 0.25 + 6.25 = 9: s^2 = 3, standard error sqrt(3 / 4).
    half = 1.959963984540054 * math.sqrt(3 / 4)
    assert rate.rate == -1.5
    assert (rate.low, rate.high) == pytest.approx((-1.5 - half, -1.5 + half))
    assert pass_rate([2.0]).high == math.inf


def test_a_pass_rate_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one episode"):
        pass_rate([])


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 32, 512])
def test_the_interval_of_single_episodes_is_students(count):
    values = [float(n * n % 7) for n in range(count)]
    low, high = mean_interval([[value] for value in values])
    error = np.std(values, ddof=1) / math.sqrt(count)
    theirs = t.interval(0.95, count - 1, loc=np.mean(values), scale=error)
    assert (low, high) == pytest.approx(theirs, abs=2e-3 * (theirs[1] - theirs[0]))


def test_tasks_of_many_episodes_are_single_observations():
    # Deviations from the mean of 5/6, summed by task: 4/6 and -4/6, in 6 episodes.
    low, high = mean_interval([[1.0, 1, 1, 1], [0.0, 1], []])
    mean, error = 5 / 6, math.sqrt((4 / 6) ** 2 * 2 * 2 / 1) / 6
    half = 12.706204736 * error
    assert (low, high) == pytest.approx((mean - half, mean + half))
    assert mean_interval([[0.0, 1.0]]) == (-math.inf, math.inf)


def test_the_interval_of_the_reward_ends_at_the_range_of_returns():
    nearly = [[1.0], [1.0], [1.0], [0.5]]
    low, high = mean_interval(nearly)
    assert high > 1
    assert mean_interval(nearly, (0.0, 1.0)) == (low, 1.0)
    assert mean_interval([[-v[0]] for v in nearly], (-1.0, 0.0)) == (-1.0, -low)
    assert mean_interval(nearly, (2.0, 3.0)) == (low, high), "no range of these values"
    assert mean_interval([[0.5, 1.0]], (0.0, 1.0)) == (0.0, 1.0)


@pytest.mark.parametrize(("tasks", "episodes"), [(32, 8), (64, 8), (128, 1)])
def test_the_interval_covers_the_mean_over_tasks(tasks, episodes):
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        rates = random.beta(0.5, 0.5, size=tasks)
        values = (random.random((tasks, episodes)) < rates[:, None]).astype(float)
        low, high = mean_interval(values.tolist())
        covered += low <= 0.5 <= high
    assert 0.94 <= covered / 2000 <= 0.965


def episode(sampled, rewards, *, scores=None, reason="stop_token", calls=(), **ending):
    segment = Segment()
    segment.append_context([1, 2], 0)
    turns = []
    for number, (count, reward) in enumerate(zip(sampled, rewards, strict=True)):
        answer = Completion((5,) * count, (-1.0,) * count, (0,) * count, FinishReason.LENGTH)
        segment.append_completion(answer, number)
        turns.append(Turn("a", "o", "stop_token", count, dict(reward)))
    if turns:
        turns[-1].scores = dict(scores or {})
        turns[-1].finish_reason = reason
        turns[-1].tool_calls = list(calls)
    return Trajectory("toy-v0", {}, 0, 0, 0, [segment], turns, **(ending or {"terminated": True}))


def test_the_interval_of_a_steps_reward_stays_in_the_environments_range():
    groups = [
        TrajectoryGroup([replace(episode([1], [{"a": r}]), task=i)])
        for i, r in enumerate([1.0, 1.0, 0.5])
    ]
    assert rollout_metrics(groups)["reward_high"] > 1
    metrics = rollout_metrics(groups, reward_range=(0.0, 1.0))
    assert (metrics["reward_high"], metrics["reward"]) == (1.0, pytest.approx(2.5 / 3))


def test_rollout_metrics_by_hand():
    broken, found = EnvToolCall("look", {}, "", "no"), EnvToolCall("x", {}, "y")
    groups = [
        TrajectoryGroup(
            [
                episode([2, 3], [{"a": 1.0}, {"b": 0.5}], scores={"s": 1.0}, reason="length"),
                episode([4], [{"a": 0.5}], reason="length", calls=[broken, found]),
                episode([9], [{"a": 100.0}], failure="EnvFailure: gone"),
            ]
        ),
        TrajectoryGroup(
            [
                episode([1], [{"a": 0.25}], truncated=True, stop_reason="turn_limit"),
                episode([2], [{"a": 0.25}], reason="context_full"),
            ]
        ),
        TrajectoryGroup([episode([], [], truncated=True, stop_reason="context_full")]),
    ]
    metrics = rollout_metrics(groups)
    assert metrics == {
        "failures": 1.0,
        "failures/EnvFailure": 1.0,
        "retries": 0.0,
        "num_groups": 3.0,
        "num_groups_dropped": 0.0,
        "reward": pytest.approx((1.5 + 0.5 + 0.25 + 0.25 + 0) / 5),
        # Sample deviations: of (1.5, 0.5) it is 1 / sqrt(2), of equal rewards 0; one has none.
        "reward_std": pytest.approx((math.sqrt(0.5) + 0) / 2),
        "frac_reward_zero_std": 0.5,
        "rewards/a": pytest.approx((1.0 + 0.5 + 0.25 + 0.25) / 5),
        "rewards/b": pytest.approx(0.5 / 5),
        "scores/s": pytest.approx(1 / 5),
        "completions/mean_length": pytest.approx((5 + 4 + 1 + 2 + 0) / 5),
        "completions/min_length": 0.0,
        "completions/max_length": 5.0,
        "completions/clipped_ratio": pytest.approx(3 / 5),
        "num_turns": pytest.approx((2 + 1 + 1 + 1 + 0) / 5),
        "num_sampled_tokens": 12.0,
        "tools/call_frequency": pytest.approx(2 / 5),
        "completions/reflection_rate": 0.0,
        "tools/failure_frequency": 0.5,
        "stop_reason/turn_limit": pytest.approx(1 / 5),
        "stop_reason/context_full": pytest.approx(1 / 5),
    }


def test_lengths_of_right_and_of_wrong_episodes():
    """Right is who succeeded fully, at last; who was never scored is wrong."""
    early = episode([4, 6], [{}, {}])
    early.turns[0].scores = {"s": 1.0}
    group = TrajectoryGroup(
        [
            episode([2, 3], [{}, {}], scores={"s": 1.0}),
            episode([8], [{}], scores={"s": 1.0}),
            episode([1], [{}], scores={"s": 0.5}),
            early,
            episode([100], [{}], scores={"s": 1.0}, failure="EnvFailure: gone"),
        ]
    )
    metrics = rollout_metrics([group], "s")
    assert metrics["completions/right_mean_length"] == 6.5
    assert metrics["completions/wrong_mean_length"] == 5.5
    assert not [name for name in rollout_metrics([group]) if "right" in name or "wrong" in name]
    alone = rollout_metrics([TrajectoryGroup(group.trajectories[:2])], "s")
    assert alone["completions/right_mean_length"] == 6.5
    assert "completions/wrong_mean_length" not in alone


def test_episodes_that_look_back_at_themselves():
    group = TrajectoryGroup([episode([1, 1], [{}, {}]) for _ in range(4)])
    for trajectory in group.trajectories[:3]:
        trajectory.turns[1].action = "7. Wait, 8."
    group.trajectories[0].turns[0].action = "However, 9."
    group.trajectories[1].turns[1].observation = "7"
    group.trajectories[2].failure, group.trajectories[2].terminated = "EnvFailure: gone", False
    group.trajectories[3].turns[0].observation = "Wait, that is wrong."
    assert rollout_metrics([group])["completions/reflection_rate"] == pytest.approx(2 / 3)


def test_failures_alone_are_counted_and_nothing_else():
    group = TrajectoryGroup([episode([9], [{"a": 1.0}], failure="EnvFailure: gone")])
    assert rollout_metrics([group]) == {
        "failures": 1.0,
        "failures/EnvFailure": 1.0,
        "retries": 0.0,
        "num_groups": 1.0,
        "num_groups_dropped": 0.0,
    }


@pytest.mark.parametrize(
    ("trajectory", "score", "success"),
    [
        (episode([1, 1], [{"a": 0.5}, {"a": 0.25}], scores={"em": 1.0}), "em", 1.0),
        (episode([1, 1], [{"a": 0.5}, {"a": 0.25}], scores={"em": 1.0}), "", 0.75),
        (episode([1], [{"a": 0.5}], scores={"f1": 1.0}), "em", 0.0),
        (episode([], [], truncated=True, stop_reason="turn_limit"), "em", 0.0),
    ],
)
def test_success_is_the_last_turns_score(trajectory, score, success):
    assert success_of(trajectory, score) == success


def test_an_early_score_is_no_success():
    trajectory = episode([1, 1], [{}, {}])
    trajectory.turns[0].scores = {"em": 1.0}
    assert success_of(trajectory, "em") == 0.0


def test_pass_at_k():
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert pass_at_k(10, 3, 5) == pytest.approx(0.9166667, abs=1e-7)
    assert (pass_at_k(4, 0, 4), pass_at_k(4, 1, 4)) == (0.0, 1.0)
    with pytest.raises(ValueError, match=r"k \(5\) must be from 1 to the number of episodes \(4\)"):
        pass_at_k(4, 2, 5)


POPULATIONS = {
    "u-shaped": (lambda rng: rng.beta(0.5, 0.5, 64), 0.5),
    "hard": (lambda rng: rng.beta(1, 3, 64), 0.25),
    "halves": (lambda rng: np.where(rng.random(64) < 0.5, 0.1, 0.9), 0.5),
    "alike": (lambda rng: np.full(64, 0.5), 0.5),
}


@pytest.mark.parametrize("name", POPULATIONS)
def test_the_interval_over_tasks_covers_as_often_as_it_says(name):
    """2,000 evaluations of 64 tasks, 8 episodes each; task i succeeds with a chance of its own."""
    draw, mean = POPULATIONS[name]
    rng = np.random.default_rng(7)
    covered = pooled = 0
    for _ in range(2000):
        right = rng.binomial(8, draw(rng))
        by_task = [[1.0] * count + [0.0] * (8 - count) for count in right.tolist()]
        rate = pass_rate_of_tasks(by_task)
        covered += rate.low <= mean <= rate.high
        flat = pass_rate([success for task in by_task for success in task])
        pooled += flat.low <= mean <= flat.high
        assert rate.rate == pytest.approx(flat.rate) and rate.count == 512
    assert 0.94 <= covered / 2000 <= 0.96
    if name in ("u-shaped", "halves"):
        assert pooled / 2000 < 0.7, "episodes of one task are not independent"


def test_with_an_episode_per_task_it_is_wilsons():
    successes = [1.0] * 30 + [0.0] * 70
    assert pass_rate_of_tasks([[s] for s in successes]) == pass_rate(successes)
    assert pass_rate_of_tasks([[], [1.0], [0.0], []]) == pass_rate([1.0, 0.0])


def test_the_interval_over_tasks_at_its_ends():
    # By hand: means 1, 0.5, 0 have variance 1/4, their mean 1/12; 1/4 / (1/12) = 3 effective, times
    # (1.96 / 4.303)^2 for an estimate of 3 tasks. At least one episode counts.
    rate = pass_rate_of_tasks([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    wanted = pass_rate([0.5])
    assert (rate.rate, rate.count) == (0.5, 6)
    assert (rate.low, rate.high) == pytest.approx((wanted.low, wanted.high))
    # By hand: .5625 (1 - .5625) / (1/256) (1.96 / 2.365)^2 would be 43 effective episodes, of 16.
    alike = pass_rate_of_tasks([[1.0, 0.0]] * 7 + [[1.0, 1.0]])
    theirs = binomtest(9, 16).proportion_ci(method="wilson")
    assert (alike.low, alike.high) == pytest.approx((theirs.low, theirs.high))
    # Nothing but successes: as many as there are tasks.
    sure, single = pass_rate_of_tasks([[1.0] * 8] * 64), pass_rate([1.0] * 64)
    assert (sure.low, sure.high, sure.count) == (single.low, 1.0, 512)
    # One task gives no information on others.
    alone = pass_rate_of_tasks([[1.0, 0.0]])
    assert alone.high - alone.low > 0.85
    # Returns: the normal interval of the tasks' means, with Student's t.
    returns = pass_rate_of_tasks([[2.0, 4.0], [-1.0, -1.0]])
    assert (returns.rate, returns.high) == pytest.approx((1.0, 1.0 + 12.706204736 * 2.0))
    assert pass_rate_of_tasks([[2.0, 4.0]]).low == -math.inf
    with pytest.raises(ValueError, match="at least one episode"):
        pass_rate_of_tasks([[], []])
