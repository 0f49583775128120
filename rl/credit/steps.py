"""Optimizer steps of an update: micro-batches and the inputs of their losses, made on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rl.credit.algorithm import Algorithm
from rl.credit.batch import Batch, MicroBatch
from rl.credit.losses import (
    FixedTerms,
    Terms,
    TokenScores,
    imitation_objective,
    policy_objective,
    token_weights,
)
from rl.credit.options import Aggregation

Cut = Callable[[Batch, Tensor], list[MicroBatch]]
"""Function that cuts the chosen episodes (``[M]`` booleans) of a batch into micro-batches."""


@dataclass(frozen=True, slots=True)
class Portion:
    """A micro-batch of n tokens, and the inputs of its loss except the scores."""

    micro: MicroBatch
    weights: Tensor
    """``[n]``, the weight of each token; see :func:`rl.credit.losses.token_weights`."""
    rows: Tensor
    """``[n]``, the episode of each token."""
    fixed: FixedTerms | None = None
    """Constant terms of the tokens, or None for texts to imitate."""
    value_weight: float = 0.0
    """Weight of each token in the value loss."""
    counts: bool = True
    """False if another rank trains this micro-batch; see :meth:`without_weight`."""

    def without_weight(self) -> Portion:
        """A portion with the same forward and backward pass, whose loss is 0.

        A rank without a micro-batch of its own computes it, because the ranks exchange weights and
        gradients in every pass.
        """
        nothing = torch.zeros_like(self.weights)
        return replace(self, weights=nothing, value_weight=0.0, counts=False)

    def map(self, change: Callable[[Tensor], Tensor]) -> Portion:
        """A copy for another device, with ``change`` applied to the tensors."""
        return replace(
            self,
            micro=self.micro.map(change),
            weights=change(self.weights),
            rows=change(self.rows),
            fixed=None if self.fixed is None else self.fixed.map(change),
        )

    def terms(self, algorithm: Algorithm, scores: TokenScores) -> Terms:
        """Loss and metrics of the micro-batch, computed from its current scores."""
        if self.fixed is None:
            return imitation_objective(scores, self.weights)
        return policy_objective(
            algorithm, scores, self.fixed, self.weights, self.value_weight, self.rows
        )


def policy_portions(
    algorithm: Algorithm,
    batch: Batch,
    fixed: FixedTerms,
    episodes: Tensor,
    trained: Tensor,
    cut: Cut,
) -> list[Portion]:
    """The micro-batches of one optimizer step.

    Args:
        algorithm: the algorithm's settings.
        batch: the episodes of the update.
        fixed: constant terms of the batch's tokens, in the type of scores.
        episodes: ``[M]`` booleans, the episodes of the step, whose tokens the denominators count.
        trained: ``[M]`` booleans, those of ``episodes`` that are scored.
        cut: cuts the trained episodes into micro-batches.
    """
    weights = step_weights(batch, episodes, algorithm.aggregation, algorithm.max_tokens)
    weights = weights.to(fixed.advantages.dtype)
    num_tokens = int(episodes[batch.episode_ids].sum())
    return [
        Portion(
            micro,
            weights[micro.tokens],
            batch.episode_ids[micro.tokens],
            fixed.at(micro.tokens),
            1 / num_tokens,
        )
        for micro in cut(batch, trained)
    ]


def imitation_portions(
    batch: Batch, dtype: torch.dtype, cut: Cut, coef: float = 1.0
) -> list[Portion]:
    """The micro-batches of texts, whose loss is ``coef`` times the mean cross-entropy.

    Args:
        batch: the texts, made by :meth:`Batch.from_segments`.
        dtype: type of the scores.
        cut: cuts the texts into micro-batches.
        coef: multiplies the loss.
    """
    whole = torch.ones(len(batch.rewards), dtype=torch.bool)
    weights = coef * step_weights(batch, whole, "token-mean").to(dtype)
    return [
        Portion(micro, weights[micro.tokens], batch.episode_ids[micro.tokens])
        for micro in cut(batch, whole)
    ]


def minibatches(algorithm: Algorithm, batch: Batch, generator: torch.Generator) -> Iterator[Tensor]:
    """The episodes of each optimizer step: ``[M]`` booleans."""
    present = batch.episode_ids.unique()
    parts = min(algorithm.minibatches, len(present))
    for _ in range(algorithm.epochs):
        if parts > 1:
            present = present[torch.randperm(len(present), generator=generator)]
        for part in present.tensor_split(parts):
            episodes = torch.zeros(len(batch.rewards), dtype=torch.bool)
            episodes[part] = True
            yield episodes


def step_weights(
    batch: Batch, episodes: Tensor, aggregation: Aggregation, max_tokens: int | None = None
) -> Tensor:
    """Weights of all tokens in the step of ``episodes``: ``[N]`` float64, 0 for other tokens.

    See :func:`rl.credit.losses.token_weights`.
    """
    chosen = episodes[batch.episode_ids]
    ids = batch.episode_ids[chosen]
    if aggregation == "prompt-mean":
        ids = batch.group_ids[ids]
    elif aggregation == "outcome-mean":
        ids = (batch.outcomes[ids] > 0.5).long()
    weights = torch.zeros(batch.num_tokens, dtype=torch.float64)
    weights[chosen] = token_weights(ids, aggregation, max_tokens)
    return weights
