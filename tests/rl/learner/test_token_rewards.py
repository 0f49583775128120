"""Rewards of tokens from a model that learns from outcomes: OREAL's head, PRIME's log-ratios."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from rl.credit.advantages.math import dense_advantages, suffix_sums
from rl.credit.algorithms import ALGORITHMS
from rl.credit.assignment import assign_credit
from rl.credit.batch import Batch
from rl.credit.losses import token_weights
from rl.credit.steps import step_weights
from rl.errors import RunFailure
from rl.learner.seam import NonFiniteLoss
from rl.learner.settings import OptimizerConfig
from rl.learner.token_rewards import TokenRewards
from rl.learner.updater import Updater

OREAL, PRIME = ALGORITHMS["oreal"], ALGORITHMS["prime"]
CONFIG = OptimizerConfig(lr=1e-3, max_grad_norm=1e9)


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def record_outcomes(groups):
    """Record that the first member of each group is right; returns all outcomes."""
    for group in groups:
        for place, trajectory in enumerate(group.finished):
            trajectory.outcome = float(place == 0)
    return [outcome for group in groups for outcome in group.outcomes]


def test_belief_in_the_outcome_weights_tokens(make_group):
    """Of the scores .4, -.2, .7 the cumulative means are .4, .1 and .3."""
    row = OREAL.changed({"kl.coef": 0.0})
    batch = Batch.from_groups([make_group([[(2, 3, 1.0)], [(2, 3, 0.0)]])])
    scores = f64([0.4, -0.2, 0.7, -1.0, 2.0, -4.0])
    got = assign_credit(row, batch, token_scores=scores).advantages
    right = [2 / (1 + math.exp(-w)) - 1 for w in (0.4, 0.1, 0.3)]
    assert right[2] == pytest.approx(2 * 0.5744425 - 1, abs=1e-7)
    # Of the wrong one the means are -1, .5 and -1, and there is no belief at .5.
    expected = [*right, -0.4621172, 0.0, -0.4621172]
    torch.testing.assert_close(got, f64(expected), atol=1e-7, rtol=0)


def test_dense_rewards_are_leave_one_out():
    rewards = f64([[0.2, 0.4], [0.0, -0.2]])
    mask = torch.ones(2, 2)
    above = dense_advantages(rewards, mask, torch.tensor([3, 3]))
    torch.testing.assert_close(above, f64([[0.2, 0.6], [-0.2, -0.6]]))
    torch.testing.assert_close(suffix_sums(above, mask), f64([[0.8, 0.6], [-0.8, -0.6]]))
    assert not dense_advantages(rewards, mask, torch.tensor([3, 4])).any()
    hidden = f64([[0.2, float("nan")], [0.0, -0.2]])
    masked = dense_advantages(hidden, f64([[1, 0], [1, 1]]), torch.tensor([3, 3]))
    torch.testing.assert_close(masked, f64([[0.3, 0.0], [-0.1, -0.5]]))


def test_scores_are_scaled_by_their_largest_sum(make_group):
    """PRIME: [.4, -.2, 1] has the sums 1.2, .8 and 1."""
    batch = Batch.from_groups([make_group([[(2, 3, 1.0)], [(2, 3, 1.0)]])])
    row = PRIME.changed({"whiten": False, "advantage.token_coef": 2.0})
    scores = f64([0.4, -0.2, 1.0, 0.0, 0.0, 0.0])
    scaled = f64([[0.333333, -0.166667, 0.833333], [0.0, 0.0, 0.0]])
    above = dense_advantages(scaled, torch.ones(2, 3), torch.tensor([0, 0]))
    expected = 2 * suffix_sums(above, torch.ones(2, 3)).flatten()
    got = assign_credit(row, batch, token_scores=scores).advantages
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["oreal", "prime"])
def test_token_rewards_learn_which_tokens_make_the_outcome(make_model, groups, name):
    record_outcomes(groups)
    batch = Batch.from_groups(groups)
    judge = TokenRewards(make_model(), ALGORITHMS[name], replace(CONFIG, lr=5e-3), 1.0, 4096)
    metrics = []
    for _ in range(30):
        metrics.append(judge.accumulate(batch, judge.scores(batch)))
        judge.step()
    assert metrics[0]["token_rewards/loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert metrics[-1]["token_rewards/loss"] < 0.2
    assert metrics[-1]["token_rewards/accuracy"] == 1.0


@pytest.mark.parametrize("name", ["oreal", "prime"])
@pytest.mark.parametrize("max_tokens", [12, 4096])
def test_their_gradient_is_that_of_the_cross_entropy(make_model, groups, name, max_tokens):
    row, outcomes = ALGORITHMS[name], record_outcomes(groups)
    batch = Batch.from_groups(groups)
    judge = TokenRewards(make_model(dtype=torch.float64), row, CONFIG, 1.0, max_tokens)
    # Away from the start, where every score is 0.
    noise = torch.Generator().manual_seed(0)
    for parameter in judge.model.parameters():
        parameter.data.add_(0.05 * torch.randn(parameter.shape, generator=noise))
    judge.accumulate(batch, judge.scores(batch))
    # Of the head's model the linear layer to logits has none.
    trained = [p for p in judge.model.parameters() if p.grad is not None]
    got = [p.grad.clone() for p in trained]
    judge.optimizer.zero_grad()
    (micro,) = batch.micro_batches(4096)
    scored = judge.model.score(micro)
    start = TokenRewards(make_model(dtype=torch.float64), row, CONFIG, 1.0, 4096)
    initial, _ = start.model.score_batch(batch, 4096)
    per_token = scored.values if name == "oreal" else scored.logprobs - initial[micro.tokens]
    loss = 0.0
    for episode, right in enumerate(outcomes):
        mine = per_token[batch.episode_ids[micro.tokens] == episode]
        chance = torch.sigmoid(mine.mean() if name == "oreal" else 0.05 * mine.sum())
        loss = loss - (right * chance.log() + (1 - right) * (1 - chance).log()) / len(outcomes)
    expected = torch.autograd.grad(loss, trained)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_the_logit_of_an_episode_is_prime_s(make_model, make_group):
    """Log-ratios .4, -.2 and 1 and beta .05: the cross-entropy is .6635971 or .7235971."""
    for right, loss in ((1.0, 0.6635971), (0.0, 0.7235971)):
        group = make_group([[(2, 3, 1.0)]])
        group.trajectories[0].outcome = right
        batch = Batch.from_groups([group])
        judge = TokenRewards(make_model(), PRIME, CONFIG, 1.0, 4096)
        metrics = judge.accumulate(batch, f64([0.4, -0.2, 1.0]))
        assert metrics["token_rewards/loss"] == pytest.approx(loss, abs=1e-7)


@pytest.mark.parametrize("name", ["oreal", "prime"])
def test_a_learner_resumes_with_token_rewards(make_model, groups, name):
    row = ALGORITHMS[name]
    record_outcomes(groups)
    learner = Updater(make_model(), row, CONFIG)
    for _ in range(3):
        learner.update(groups)
    state = copy.deepcopy(learner.state_dict())
    weights = copy.deepcopy(learner.model.model.state_dict())
    expected = learner.update(groups)
    model = make_model()
    resumed = Updater(model, row, CONFIG)
    model.load_state_dict(weights)
    resumed.load_state_dict(state)
    assert resumed.update(groups) == expected
    assert expected["token_rewards/loss"] < math.log(2)
    other = Updater(make_model(), ALGORITHMS["grpo"], CONFIG)
    with pytest.raises(ValueError, match="has a token_rewards"):
        other.load_state_dict({**state, "reference": None})


def test_right_and_wrong_tokens_have_means_of_their_own(groups):
    record_outcomes(groups)
    batch = Batch.from_groups(groups)
    weights = step_weights(batch, torch.ones(5, dtype=torch.bool), "outcome-mean")
    right = batch.outcomes[batch.episode_ids] == 1
    assert weights[right].sum().item() == pytest.approx(1)
    assert weights[~right].sum().item() == pytest.approx(1)
    ids = torch.tensor([0, 0, 1, 1, 1, 1])
    assert token_weights(ids, "outcome-mean").tolist() == [0.5, 0.5, 0.25, 0.25, 0.25, 0.25]


def test_outcomes_are_required(make_model, groups):
    learner = Updater(make_model(), PRIME, CONFIG)
    with pytest.raises(ValueError, match="an outcome is missing"):
        learner.update(groups)
    groups[0].trajectories[0].outcome = 1.0
    with pytest.raises(ValueError, match="an outcome is missing"):
        learner.update(groups)


def test_a_failed_update_of_token_rewards_changes_nothing(make_model, groups):
    learner = Updater(make_model(), PRIME, CONFIG)
    before = copy.deepcopy(learner.state_dict()["token_rewards"]["model"])
    for group in groups:
        for trajectory in group.trajectories:
            trajectory.outcome = math.nan
    with pytest.raises(RunFailure, match="the token rewards' loss is nan"):
        learner.update(groups)
    after = learner.state_dict()["token_rewards"]["model"]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_failed_update_leaves_no_gradient(make_model, groups):
    """The outcomes' gradient is taken first; then the policy's loss is no number."""
    record_outcomes(groups)
    learner, other = (Updater(make_model(), PRIME, CONFIG) for _ in range(2))
    for group in groups:
        for trajectory in group.trajectories:
            trajectory.shaping = {"broken": math.nan}
    with pytest.raises(NonFiniteLoss):
        learner.update(groups)
    for group in groups:
        for trajectory in group.trajectories:
            trajectory.shaping = {}
    for one in (learner, other):
        one.update(groups)
    ours, theirs = (one.state_dict()["token_rewards"]["model"] for one in (learner, other))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
