"""PPO through the learner: its first step against a direct implementation, and that it learns."""

from dataclasses import replace

import pytest
import torch

from agents.completion import Completion, FinishReason
from rl.credit.algorithms import ALGORITHMS
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from rl.rollout.trajectory import Segment, Trajectory, TrajectoryGroup, Turn

PPO = ALGORITHMS["ppo"].changed({"advantage.lam": 0.95, "epochs": 4})


def loop_gae(rewards, values, gamma, lam):
    advantages, carried, next_value = [], 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        carried = reward + gamma * next_value - value + gamma * lam * carried
        advantages.insert(0, carried)
        next_value = value
    return advantages


def test_the_first_step_is_the_direct_one(make_model, groups):
    model = make_model(dtype=torch.float64)
    row = replace(PPO, epochs=1, entropy_coef=0.01)
    learner = Updater(model, row, OptimizerConfig(max_grad_norm=1e9), max_tokens_per_micro_batch=25)
    head = learner.model.value_head
    with torch.no_grad():
        head.weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(1))
        head.bias.fill_(0.1)
    logprobs, entropies, values, advantages = [], [], [], []
    for trajectory in (t for group in groups for t in group.trajectories):
        (segment,) = trajectory.segments
        sampled = [t for t, m in enumerate(segment.loss_mask) if m]
        ids = torch.tensor([segment.token_ids])
        log_p = model(input_ids=ids).logits[0].log_softmax(-1)
        hidden = model.model(input_ids=ids).last_hidden_state[0]
        logprobs += [log_p[t - 1, segment.token_ids[t]] for t in sampled]
        entropies += [-(log_p[t - 1].exp() * log_p[t - 1]).sum() for t in sampled]
        own = [(hidden[t - 1] * head.weight[0]).sum() + head.bias[0] for t in sampled]
        rewards = []
        for turn in trajectory.turns:
            rewards += [0.0] * (turn.num_tokens - 1) + [turn.reward]
        advantages += loop_gae(rewards, [v.item() for v in own], 1.0, 0.95)
        values += own
    advantage = torch.tensor(advantages, dtype=torch.float64)
    values, logprobs = torch.stack(values), torch.stack(logprobs)
    returns = advantage + values.detach()
    white = (advantage - advantage.mean()) / (advantage.var() + 1e-8).sqrt()
    ratio = (logprobs - logprobs.detach()).exp()
    policy = (-white * ratio).mean() - 0.01 * torch.stack(entropies).mean()
    value = 0.5 * (values - returns).square().mean()
    expected = torch.autograd.grad(policy + 0.1 * value, learner.model.parameters())

    found = []
    learner.optimizer.step = lambda: found.extend(
        p.grad.clone() for p in learner.model.parameters()
    )
    metrics = learner.update(groups)
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-4)
    assert metrics["value_loss"] == pytest.approx(value.item(), rel=1e-5)
    explained = 1 - (returns - values.detach()).var() / returns.var()
    assert metrics["explained_variance"] == pytest.approx(explained.item(), abs=1e-5)


def test_denominators_are_those_of_the_minibatch(make_model, groups):
    """One episode in each step, weights that stay, values of 0: the loss is known by hand."""
    row = replace(PPO, epochs=1, minibatches=5, whiten=False)
    learner = Updater(make_model(), row, OptimizerConfig(lr=0.0))
    losses, squares = [], []
    for trajectory in (t for group in groups for t in group.trajectories):
        rewards = []
        for turn in trajectory.turns:
            rewards += [0.0] * (turn.num_tokens - 1) + [turn.reward]
        advantages = loop_gae(rewards, [0.0] * len(rewards), 1.0, 0.95)
        half = [0.5 * a**2 for a in advantages]
        losses.append((-sum(advantages) + 0.1 * sum(half)) / len(rewards))
        squares += half
    metrics = learner.update(groups)
    assert metrics["optimizer_steps"] == 5
    assert metrics["loss"] == pytest.approx(sum(losses) / 5, rel=1e-5)
    assert metrics["value_loss"] == pytest.approx(sum(squares) / len(squares), rel=1e-5)


def test_a_divergence_in_the_reward_is_not_in_the_loss_as_well(make_model, groups):
    """It is measured once, as the update starts: k1, the mean of log pi - log reference."""
    model, reference = make_model(), make_model()
    row = PPO.changed({"kl.coef": 0.1, "epochs": 2})
    learner = Updater(model, row, OptimizerConfig(lr=1e-2))
    assert learner.update(groups)["kl"] == pytest.approx(0, abs=1e-7)
    differences = []
    for trajectory in (t for group in groups for t in group.trajectories):
        (segment,) = trajectory.segments
        ids = torch.tensor([segment.token_ids])
        now, then = (m(input_ids=ids).logits[0].log_softmax(-1) for m in (model, reference))
        for t, mask in enumerate(segment.loss_mask):
            if mask:
                token = segment.token_ids[t]
                differences.append((now[t - 1, token] - then[t - 1, token]).item())
    expected = sum(differences) / len(differences)
    assert abs(expected) > 1e-2
    assert learner.update(groups)["kl"] == pytest.approx(expected, rel=1e-3)


GOOD = 7
"""The token that is rewarded."""


def sample_episodes(model, generator, count=32):
    """Two turns of one token each, the second behind an observation; GOOD earns 1/2 in each."""
    ids = torch.tensor([[3, 4]] * count)
    tokens, logprobs = [], []
    for observation in ([5], []):
        with torch.no_grad():
            log_p = model(input_ids=ids).logits[:, -1].log_softmax(-1)
        token = torch.multinomial(log_p.exp(), 1, generator=generator)
        tokens.append(token[:, 0])
        logprobs.append(log_p.gather(1, token)[:, 0])
        ids = torch.cat([ids, token, torch.tensor([observation] * count).long()], 1)
    episodes = []
    for i in range(count):
        segment, turns = Segment(), []
        for k, context in enumerate(([3, 4], [5])):
            token = int(tokens[k][i])
            segment.append_context(context, k)
            segment.append_completion(
                Completion((token,), (float(logprobs[k][i]),), (0,), FinishReason.LENGTH), k
            )
            turns.append(Turn("", "", "length", 1, {"r": 0.5 * (token == GOOD)}))
        episodes.append(Trajectory("toy", {}, 0, 0, i, [segment], turns, terminated=True))
    return [TrajectoryGroup(episodes[i : i + 8]) for i in range(0, count, 8)]


@pytest.mark.parametrize("name", ["ppo", "grpo", "dr-grpo", "dapo-loss"])
def test_it_learns(make_model, name):
    row = ALGORITHMS[name]
    if name == "ppo":
        row = replace(row, epochs=2, minibatches=2)
    model = make_model()
    learner = Updater(model, row, OptimizerConfig(lr=1e-2))
    generator = torch.Generator().manual_seed(0)
    returns = []
    for _ in range(40):
        groups = sample_episodes(model, generator)
        returns.append(sum(t.reward for g in groups for t in g.trajectories) / 32)
        metrics = learner.update(groups)
        # None where no episode had a gradient: nothing was scored.
        assert metrics.get("sampling/logp_difference_max", 0.0) < 1e-4
    assert returns[0] < 0.1
    assert sum(returns[-4:]) / 4 > 0.9
