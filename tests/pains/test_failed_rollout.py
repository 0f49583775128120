"""Complaint 4: one failed rollout kills the step, or counts as a reward of 0.

SkyRL#1613, tinker-cookbook#497, verifiers#574, TRL#6430.
"""

from __future__ import annotations

import pytest
import torch

import envs
from rl.credit.algorithms import ALGORITHMS
from rl.credit.assignment import assign_credit
from rl.credit.batch import Batch
from rl.run.metrics.episodes import rollout_metrics

TASKS = {"train": range(0, 40), "validation": range(40, 50), "test": range(50, 60)}


class FailingEnv(envs.TextEnv[int, None]):
    """Rewards the number that the agent writes; some words make the database fail."""

    def __init__(self, options, services=None):
        super().__init__(options, TASKS[options.split], services)

    def begin(self, task):
        return "say"

    def turn(self, action):
        if action == "fail":
            raise envs.EnvFailure("the database is gone", retryable=True)
        if action == "wrong":
            raise KeyError("a bug")
        return envs.finish({"said": float(action)})


@pytest.mark.parametrize("word", ["fail", "wrong"], ids=["infrastructure", "a bug"])
async def test_a_failed_member_neither_ends_the_step_nor_counts_as_zero(play, word, caplog):
    words = ["0", "1", word, "1"]
    groups = await play(FailingEnv, lambda _, member, __: words[member], (0, 1), 4)
    failure = {
        "fail": "EnvFailure: the database is gone",
        "wrong": "EnvFailure: pain-failingenv-v0 raised KeyError: 'a bug' in FailingEnv.turn (",
    }[word]
    found = [t.failure for t in groups[0].trajectories]
    assert (found[:2], found[3:]) == ([None, None], [None])
    assert found[2].startswith(failure)
    # Both groups failed at the same line.
    tracebacks = [record for record in caplog.records if record.exc_info]
    assert len(tracebacks) == (word == "wrong")
    metrics = rollout_metrics(groups)
    assert metrics["failures"] == 2
    assert metrics["reward"] == pytest.approx(2 / 3), "not (0 + 1 + 0 + 1) / 4"

    batch = Batch.from_groups(groups)
    credit = assign_credit(ALGORITHMS["grpo"], batch)
    ends = credit.advantages[batch.turn_ends]
    # (0 - 2/3) and (1 - 2/3) over the unbiased deviation of (0, 1, 1).
    expected = torch.tensor([-1.1547, 0.5774, 0.5774] * 2, dtype=torch.float64)
    torch.testing.assert_close(ends, expected, atol=1e-4, rtol=0)


async def test_an_episode_that_failed_once_is_retried_from_the_start(play):
    def say(task, member, attempt):
        return "fail" if attempt == 0 else "1"

    (group,) = await play(FailingEnv, say, (0,), 3)
    assert [(t.failure, t.reward) for t in group.trajectories] == [(None, 1.0)] * 3
