"""The objective of an update: an algorithm's choices applied to the tokens of a micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from rl.credit import losses
from rl.credit.algorithm import Algorithm
from rl.credit.ratios import Ratios, diverged
from rl.errors import RunFailure


@dataclass(frozen=True, slots=True)
class TokenScores:
    """What the model says, now, of n sampled tokens."""

    logprobs: Tensor
    """``[n]``, under the sampling temperature."""
    entropy: Tensor
    """``[n]``, of the distribution that each token was sampled from, in nats."""
    values: Tensor | None = None
    """``[n]``, of the state in which each token was sampled; None without a value head."""


@dataclass(frozen=True, slots=True)
class FixedTerms:
    """What stays as it is during an update, for each of its N sampled tokens; ``[N]`` each."""

    advantages: Tensor
    old_logprobs: Tensor | None = None
    """None: the current ones, which is exact while the update is a single optimizer step."""
    ref_logprobs: Tensor | None = None
    """Set when the divergence from the reference is part of the loss."""
    old_values: Tensor | None = None
    """Set, like ``returns``, when there is a value loss."""
    returns: Tensor | None = None
    corrections: Tensor | None = None
    """Weights of the surrogate; None: all 1."""
    sampling_logprobs: Tensor | None = None
    """What the sampler recorded, set for ``drop_divergence``; None: the sampler was pi_old."""

    def at(self, tokens: Tensor) -> FixedTerms:
        """The terms of some tokens, ``[n]`` indices."""
        return self._map(lambda x: x.index_select(0, tokens))

    def to(self, device: torch.device, dtype: torch.dtype) -> FixedTerms:
        """The terms on a device, in a type."""
        return self._map(lambda x: x.to(device=device, dtype=dtype))

    def _map(self, change: Callable[[Tensor], Tensor]) -> FixedTerms:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: change(x) for name, x in given.items() if x is not None})


@dataclass(frozen=True, slots=True)
class Terms:
    """A micro-batch's part of an optimizer step."""

    loss: Tensor
    """A scalar; the parts of a step add up to the step's loss."""
    sums: dict[str, Tensor]
    """Sums over tokens of what metrics are the token means of; detached scalars."""


class Surrogates(NamedTuple):
    """The policy's loss at each token, and which tokens a bound touched: ``[n]`` each."""

    loss: Tensor
    below: Tensor
    above: Tensor


def surrogate(
    algorithm: Algorithm, logprobs: Tensor, old: Tensor, advantages: Tensor, rows: Tensor
) -> Surrogates:
    """The surrogate that ``algorithm`` names, of a micro-batch's tokens.

    Args:
        algorithm: the row of choices.
        logprobs: ``[n]``, log pi.
        old: ``[n]``, log pi_old.
        advantages: ``[n]``.
        rows: ``[n]`` integers >= 0; equal ones are tokens of one sequence.

    Raises:
        RunFailure: a plug-in gave something else than one number for each token.
    """
    of_sampler = algorithm.old_logprobs == "sampling"
    made = algorithm.surrogate.loss(Ratios(logprobs, old, advantages, rows, of_sampler))
    if made.loss.shape != logprobs.shape:
        raise RunFailure(
            f"algo.surrogate={algorithm.surrogate.name} gave losses of shape "
            f"{tuple(made.loss.shape)}, expected {tuple(logprobs.shape)}: one for each token"
        )
    nowhere = torch.zeros_like(advantages, dtype=torch.bool)
    below, above = (nowhere if x is None else x for x in (made.below, made.above))
    return Surrogates(made.loss, below, above)


def policy_objective(
    algorithm: Algorithm,
    scores: TokenScores,
    fixed: FixedTerms,
    weights: Tensor,
    value_weight: float,
    rows: Tensor,
) -> Terms:
    """The surrogate, plus divergence, minus entropy, plus value loss, as the algorithm chooses.

    Args:
        algorithm: the row of choices.
        scores: of the micro-batch's n tokens.
        fixed: of the same tokens.
        weights: ``[n]``, from :func:`rl.credit.losses.token_weights` over the whole step.
        value_weight: 1 / (sampled tokens of the whole step): the value loss is a token mean.
        rows: ``[n]`` integers >= 0, the sequence of each token; a sequence's are all here.
    """
    logprobs = scores.logprobs
    old = logprobs.detach() if fixed.old_logprobs is None else fixed.old_logprobs
    made = surrogate(algorithm, logprobs, old, fixed.advantages, rows)
    per_token = made.loss if fixed.corrections is None else fixed.corrections * made.loss
    moved = losses.log_ratio(logprobs, old)
    drop = algorithm.correction.drop_divergence
    sums = {
        "entropy": scores.entropy.detach().sum(),
        "clip_ratio/low_mean": made.below.sum(),
        "clip_ratio/high_mean": made.above.sum(),
        "clip_ratio/region_mean": (made.below | made.above).sum(),
    }
    if drop is not None:
        sampler = old if fixed.sampling_logprobs is None else fixed.sampling_logprobs
        since = losses.log_ratio(logprobs, sampler)
        dropped = diverged(since, fixed.advantages, rows, drop)
        per_token = per_token.masked_fill(dropped, 0.0)
        sums["clip_ratio/diverged_mean"] = dropped.sum()
    if fixed.ref_logprobs is not None:
        kl = losses.kl_penalty(logprobs, fixed.ref_logprobs, algorithm.kl.estimator)
        sums["kl"] = kl.detach().sum()
        per_token = per_token + algorithm.kl.coef * (moved.exp() * kl if algorithm.kl.ratio else kl)
    if algorithm.entropy_coef:
        per_token = per_token - algorithm.entropy_coef * scores.entropy
    loss = losses.weighted_sum(per_token, weights)
    if scores.values is not None:
        assert fixed.old_values is not None and fixed.returns is not None
        value = losses.value_loss(
            scores.values, fixed.old_values, fixed.returns, algorithm.value.clip
        ).sum()
        loss = loss + algorithm.value.coef * value_weight * value
        sums["value_loss"] = value.detach()
    return Terms(loss, sums)


def imitation_objective(scores: TokenScores, weights: Tensor) -> Terms:
    """Cross-entropy of the trained tokens: supervised learning of what they say.

    Args:
        scores: of the micro-batch's n tokens.
        weights: ``[n]``, from :func:`rl.credit.losses.token_weights` over the whole step.
    """
    loss = losses.weighted_sum(-scores.logprobs, weights)
    return Terms(loss, {"entropy": scores.entropy.detach().sum()})
