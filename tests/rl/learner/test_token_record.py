"""The record of an update's tokens against scores of one row at a time by the model itself."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rl.credit.algorithms import ALGORITHMS
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from rl.rollout.trajectory import TrajectoryGroup

CENTRED = ALGORITHMS["dr-grpo"]
"""Advantages are rewards minus their group's mean."""
ROWS = {
    "one step": CENTRED,
    "old scores first": replace(CENTRED, minibatches=2),
    "ratios to the sampler": replace(CENTRED, old_logprobs="sampling"),
    "a critic": ALGORITHMS["ppo"],
}


def updated(model, row, groups, **options):
    learner = Updater(model, row, OptimizerConfig(lr=0.1), **options)
    learner.update(groups)
    return learner.record


def tokens_of(groups):
    """Each token of all episodes: its trajectory and segment, and its position."""
    segments = [(t, s) for group in groups for t in group.trajectories for s in t.segments]
    return [(t, s, i) for t, s in segments for i in range(len(s))]


def direct(model, segment, position, temperature):
    """Log-probability of a token, and the entropy of its distribution."""
    logits = model(input_ids=torch.tensor([[*segment.token_ids]])).logits[0, position - 1]
    log_p = (logits.double() / temperature).log_softmax(-1)
    return log_p[segment.token_ids[position]].item(), -(log_p.exp() * log_p).sum().item()


@pytest.mark.parametrize("name", ROWS)
@torch.no_grad()
def test_each_trained_token_has_its_scores_before_the_update(make_model, groups, name):
    model = make_model()
    before = copy.deepcopy(model)
    with torch.enable_grad():
        record = updated(model, ROWS[name], groups, temperature=0.7, max_tokens_per_micro_batch=20)
    tokens = tokens_of(groups)
    assert len(record.logprobs) == len(record.entropies) == len(record.advantages) == len(tokens)
    for index, (_, segment, position) in enumerate(tokens):
        found = record.logprobs[index], record.entropies[index]
        if segment.loss_mask[position]:
            assert found == pytest.approx(direct(before, segment, position, 0.7), abs=1e-4)
        else:
            assert np.isnan(found).all()
            assert math.isnan(record.advantages[index])
    assert record.logprobs.dtype == record.entropies.dtype == record.advantages.dtype == np.float32


def test_advantages_stand_at_their_own_tokens(make_model, groups):
    record = updated(make_model(), CENTRED, groups)
    for index, (trajectory, segment, position) in enumerate(tokens_of(groups)):
        if segment.loss_mask[position]:
            group = next(g for g in groups if trajectory in g.trajectories)
            mean = sum(t.reward for t in group.trajectories) / len(group.trajectories)
            assert record.advantages[index] == pytest.approx(trajectory.reward - mean, abs=1e-6)


def test_a_token_that_the_update_did_not_score_has_an_advantage_and_no_scores(
    make_model, make_group
):
    tied = make_group([[(3, 2, 1.0)], [(3, 4, 1.0)]], seed=3)
    taught = make_group([[(3, 2, 1.0)], [(3, 4, 0.0)]], seed=4)
    record = updated(make_model(), CENTRED, [tied, taught])
    trained = np.asarray([bool(s.loss_mask[i]) for _, s, i in tokens_of([tied, taught])])
    of_tied = np.arange(len(trained)) < sum(len(t.segments[0]) for t in tied.trajectories)
    assert (record.advantages[trained & of_tied] == 0).all()
    assert np.isnan(record.logprobs[of_tied]).all()
    assert np.isfinite(record.logprobs[trained & ~of_tied]).all()


def test_failed_episodes_and_roles_keep_their_places(make_model, make_trajectory):
    failed = make_trajectory([(3, 2, 0.0)], member=0, failure="EnvFailure: gone")
    one, other = (make_trajectory([(2, 3, r), (1, 2, r)], member=m) for m, r in ((1, 1.0), (2, 0)))
    for trajectory in (one, other):
        # The roles take turns, each in a segment of its own: a, b.
        (whole,) = trajectory.segments
        second = make_trajectory([(4, 2, 0.0)], seed=9).segments[0]
        second.turn_ids[:] = [1] * len(second)
        whole.role, second.role = "a", "b"
        for name in ("token_ids", "loss_mask", "sampling_logprobs", "versions", "turn_ids"):
            setattr(whole, name, [*getattr(whole, name)][:5])
        trajectory.segments.append(second)
        trajectory.turns[0].role, trajectory.turns[1].role = "a", "b"
    groups = [TrajectoryGroup([failed, one, other])]
    record = updated(make_model(), CENTRED, groups)
    for index, (trajectory, segment, position) in enumerate(tokens_of(groups)):
        if trajectory is failed or not segment.loss_mask[position]:
            assert math.isnan(record.advantages[index])
        else:
            assert record.advantages[index] == pytest.approx(0.5 if trajectory is one else -0.5)


def test_cut_episodes_that_are_masked_are_not_trained(make_model, groups):
    cut = groups[0].trajectories[0]
    cut.turns[-1].finish_reason = "length"
    record = updated(make_model(), replace(CENTRED, mask_truncated=True), groups)
    size = len(cut.segments[0])
    assert np.isnan(record.advantages[:size]).all()
    assert np.isfinite(record.advantages[size:]).sum() == 33 - cut.num_sampled


def test_an_update_without_tokens_records_nothing(make_model, make_trajectory):
    learner = Updater(make_model(), CENTRED, OptimizerConfig(lr=0.1))
    learner.update([TrajectoryGroup([make_trajectory([(3, 2, 0.0)], failure="EnvFailure: x")])])
    assert learner.record is None
