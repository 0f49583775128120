"""Tensors that a peer's functions and ours are given alike."""

from dataclasses import dataclass

import pytest
import torch

from rl.credit.losses import FixedTerms, TokenScores, policy_objective, token_weights


@dataclass
class PeerBatch:
    """Five responses in two groups, of 3 to 9 sampled tokens, observations between; ``[B, T]``."""

    mask: torch.Tensor
    logprobs: torch.Tensor
    old: torch.Tensor
    ref: torch.Tensor
    advantages: torch.Tensor
    """One for each response."""
    rewards: torch.Tensor
    values: torch.Tensor
    groups: torch.Tensor
    """``[B]``."""

    @property
    def chosen(self):
        return self.mask.bool()

    @property
    def rows(self):
        """The response of each sampled token."""
        return self.chosen.nonzero()[:, 0]

    def spread(self, tokens):
        """Numbers of sampled tokens as ``[B, T]``, 0 elsewhere."""
        return torch.zeros_like(self.mask).masked_scatter(self.chosen, tokens)

    def ours(self, row, advantages=None, kept=None):
        """Our loss, and its gradient by each log-probability, ``[B, T]``."""
        chosen = self.chosen
        logprobs = self.logprobs.clone().requires_grad_()
        scores = TokenScores(logprobs[chosen], torch.zeros(int(chosen.sum())).double())
        fixed = FixedTerms(
            advantages=(self.advantages if advantages is None else advantages)[chosen],
            old_logprobs=self.old[chosen],
            ref_logprobs=self.ref[chosen] if row.kl.coef else None,
            corrections=kept,
        )
        weights = token_weights(self.rows, row.aggregation, row.max_tokens)
        loss = policy_objective(row, scores, fixed, weights, 0.0, self.rows).loss
        return loss.detach(), torch.autograd.grad(loss, logprobs)[0]

    def theirs(self, loss_of):
        """A peer's loss of log-probabilities, and its gradient."""
        logprobs = self.logprobs.clone().requires_grad_()
        loss = loss_of(logprobs)
        return loss.detach(), torch.autograd.grad(loss, logprobs)[0]


@pytest.fixture
def peer_batch():
    generator = torch.Generator().manual_seed(0)
    shape = (5, 11)

    def normal(scale):
        return scale * torch.randn(shape, generator=generator, dtype=torch.float64)

    mask = torch.ones(shape, dtype=torch.float64)
    for row, length in enumerate([11, 9, 5, 3, 8]):
        mask[row, length:] = 0
    mask[0, 2:4] = mask[1, 4:7] = mask[4, 3] = 0
    logprobs = -normal(1.0).abs() - 0.05
    advantages = torch.tensor([1.2, -0.7, -0.5, 0.8, -0.8], dtype=torch.float64)
    rewards = torch.zeros(shape, dtype=torch.float64)
    for row, reward in enumerate([1.0, 0.0, 0.25, 0.9, 0.1]):
        rewards[row, int(mask[row].nonzero()[-1])] = reward
    rewards[0, 1] = 0.3
    batch = PeerBatch(
        mask=mask,
        logprobs=logprobs,
        # So far that every bound is crossed somewhere.
        old=torch.minimum(logprobs + normal(0.5), torch.tensor(-0.01)),
        ref=torch.minimum(logprobs + normal(0.3), torch.tensor(-0.01)),
        advantages=advantages[:, None].expand(shape),
        rewards=rewards,
        values=normal(0.5),
        groups=torch.tensor([0, 0, 0, 1, 1]),
    )
    ratio = (batch.logprobs - batch.old).exp()[batch.chosen]
    sign = batch.advantages[batch.chosen]
    assert ((ratio > 1.3) & (sign > 0)).any() and ((ratio < 0.8) & (sign < 0)).any()
    return batch
