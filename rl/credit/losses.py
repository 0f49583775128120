"""Losses of micro-batches, which are minimised, from the scores of sampled tokens.

Most functions are pure and return one number for each sampled token. :func:`policy_objective` adds
these numbers up as an algorithm's settings require.

Shapes: ``[N]`` is the sampled tokens of a step, in any order, without prompt, observation and
padding tokens; ``[n]`` is the tokens of one micro-batch. A step's loss is ``weighted_sum(per_token,
token_weights(...))``. The weights contain the denominator and are computed over the whole optimizer
step, so the losses and gradients of micro-batches add up to those of the step, however the step is
cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from rl.credit.algorithm import Algorithm
from rl.credit.options import Aggregation, KLEstimator
from rl.credit.ratios import Ratios, log_ratio, row_means
from rl.errors import RunFailure


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """``max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2) / 2``, per token.

    This is the clipped value loss of OpenAI's lm-human-preferences.

    Args:
        values: ``[N]``, the current values.
        old_values: ``[N]``, the values at the start of the update.
        returns: ``[N]``.
        clip: maximum change of a value in one update, or None for no bound.
    """
    error = (values - returns).square()
    if clip is not None:
        change = (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (old_values + change - returns).square())
    return 0.5 * error


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, estimator: KLEstimator) -> Tensor:
    """An estimate of KL(pi || reference) at each token.

    With ``d = logprobs - ref_logprobs``, k1 is ``d``, k2 is ``d^2 / 2``, and k3 is ``exp(-d) - 1 +
    d``, which is never negative. On tokens that the policy itself sampled, the *values* of k1 and
    k3 are unbiased. As a loss, only k2 has the expected gradient of the divergence: k1's expected
    gradient is 0, and k3's is the gradient of KL(reference || pi). ``k3+`` has the value of k3 and
    the gradient of k2.
    """
    d = log_ratio(logprobs, ref_logprobs)
    if estimator == "k1":
        return d
    k2, k3 = 0.5 * d.square(), torch.expm1(-d) + d
    if estimator == "k3+":
        return k2 + (k3 - k2).detach()
    return k2 if estimator == "k2" else k3


def adapted_kl_coef(
    kl_coef: float, kl: float, target: float, num_episodes: int, horizon: int
) -> float:
    """The next weight of the divergence: larger if the divergence was above its target.

    The formula is ``kl_coef (1 + clip(kl / target - 1, -0.2, 0.2) num_episodes / horizon)``, the
    controller of lm-human-preferences (Ziegler et al. 2019, section 2.2). In an update of more
    episodes than the horizon, the weight changes by at most a fifth; the plain formula could make
    it 0 or negative.

    Args:
        kl_coef: the current weight.
        kl: the divergence, in nats per episode.
        target: the target, in nats per episode.
        num_episodes: episodes of the update whose tokens count.
        horizon: episodes over which the weight changes by at most a fifth.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return kl_coef * (1 + error * min(1.0, num_episodes / horizon))


def adapted_to_kl(algorithm: Algorithm, kl: float, num_tokens: int, num_episodes: int) -> Algorithm:
    """The algorithm with the next weight of its divergence, if the divergence has a target.

    Args:
        algorithm: the current settings.
        kl: the divergence of the update, in nats per token.
        num_tokens: sampled tokens of the update.
        num_episodes: episodes of the update.
    """
    if (target := algorithm.kl.target) is None:
        return algorithm
    coef, horizon = algorithm.kl.coef, algorithm.kl.horizon
    coef = adapted_kl_coef(coef, kl * num_tokens / num_episodes, target, num_episodes, horizon)
    return algorithm.changed({"kl.coef": coef})


def token_weights(
    sequence_ids: Tensor, aggregation: Aggregation, max_tokens: int | None = None
) -> Tensor:
    """Weight of each token's loss in one whole optimizer step: 1 divided by the denominator.

    With L_s the number of sampled tokens of sequence s, and S the number of sequences:

    ==========================  =====================  ==================================
    ``token-mean``              1 / (sum of all L_s)   DAPO, section 3.3
    ``seq-mean-token-mean``     1 / (S L_s)            GRPO (DeepSeekMath, equation 3)
    ``prompt-mean``             1 / (S L_s)            a sequence is a prompt's whole group
    ``outcome-mean``            1 / L_s                the sequences are all right and all wrong
                                                       episodes (OREAL, as in its code)
    ``seq-mean-token-sum-norm`` 1 / (S max_tokens)     Dr. GRPO, a constant for all lengths
    ==========================  =====================  ==================================

    Args:
        sequence_ids: ``[N]`` integers; equal ones belong to one sequence (an episode; for
            ``prompt-mean`` a group, for ``outcome-mean`` an outcome).
        aggregation: a row of the table.
        max_tokens: the constant of the last row, required only there.

    Returns:
        ``[N]``, float64.

    Raises:
        ValueError: ``max_tokens`` is missing.
    """
    _, index, lengths = sequence_ids.unique(return_inverse=True, return_counts=True)
    num_tokens, num_sequences = sequence_ids.numel(), lengths.numel()
    if aggregation == "token-mean":
        denominator = torch.full_like(index, num_tokens)
    elif aggregation == "outcome-mean":
        denominator = lengths[index]
    elif aggregation in ("seq-mean-token-mean", "prompt-mean"):
        denominator = num_sequences * lengths[index]
    elif max_tokens is None:
        raise ValueError("aggregation 'seq-mean-token-sum-norm' divides by max_tokens: set it")
    else:
        denominator = torch.full_like(index, num_sequences * max_tokens)
    return denominator.double().reciprocal()


def weighted_sum(per_token: Tensor, weights: Tensor) -> Tensor:
    """The sum of ``per_token * weights``: a micro-batch's part of the step's loss."""
    return (per_token * weights).sum()


def diverged(log_ratios: Tensor, advantages: Tensor, rows: Tensor, limit: float) -> Tensor:
    """Whether each token is dropped from the loss: ``[n]`` booleans.

    A token is dropped if its advantage is negative and its sequence is far from the sampler:
    off-policy sequence masking (DeepSeek-V3.2, section 3.1).

    Args:
        log_ratios: ``[n]``, log(pi / pi_sampler).
        advantages: ``[n]``.
        rows: ``[n]``, the sequence of each token.
        limit: maximum mean of log(pi_sampler / pi) over a sequence that is kept, in nats.
    """
    return (advantages < 0) & (-row_means(log_ratios.detach(), rows) > limit)


@dataclass(frozen=True, slots=True)
class TokenScores:
    """The model's current scores of n sampled tokens."""

    logprobs: Tensor
    """``[n]``, log-probabilities under the sampling temperature."""
    entropy: Tensor
    """``[n]``, entropy of the distribution that each token was sampled from, in nats."""
    values: Tensor | None = None
    """``[n]``, value of the state before each token, or None without a value head."""


@dataclass(frozen=True, slots=True)
class FixedTerms:
    """Terms of each sampled token that stay constant during an update: ``[N]`` each."""

    advantages: Tensor
    old_logprobs: Tensor | None = None
    """``[N]``, log pi_old. None means that the current log-probabilities are used, which are equal
    in an update of one step."""
    ref_logprobs: Tensor | None = None
    """Log-probabilities under the reference. Set if the divergence from it is part of the loss."""
    old_values: Tensor | None = None
    """Values at the start of the update. Set, together with ``returns``, if there is a value
    loss."""
    returns: Tensor | None = None
    corrections: Tensor | None = None
    """Importance weights of the surrogate, or None if all weights are 1."""
    sampling_logprobs: Tensor | None = None
    """Log-probabilities that the sampler recorded. Set for ``drop_divergence``, but None if the
    sampler was pi_old."""

    def at(self, tokens: Tensor) -> FixedTerms:
        """The terms of the tokens with these indices, ``[n]``."""
        return self.map(lambda x: x.index_select(0, tokens))

    def map(self, change: Callable[[Tensor], Tensor]) -> FixedTerms:
        """A copy with ``change`` applied to every tensor."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: change(x) for name, x in given.items() if x is not None})


@dataclass(frozen=True, slots=True)
class Terms:
    """A micro-batch's part of an optimizer step."""

    loss: Tensor
    """A scalar. The losses of a step's micro-batches add up to the step's loss."""
    sums: dict[str, Tensor]
    """Detached sum of each metric over the tokens, by name. The reported metric is the mean over
    tokens."""


class Surrogates(NamedTuple):
    """Loss of each token, and whether its lower or upper bound changed the loss: ``[n]`` each."""

    loss: Tensor
    below: Tensor
    above: Tensor


def surrogate(
    algorithm: Algorithm, logprobs: Tensor, old: Tensor, advantages: Tensor, rows: Tensor
) -> Surrogates:
    """The algorithm's surrogate of a micro-batch's tokens.

    Args:
        algorithm: the algorithm's settings.
        logprobs: ``[n]``, log pi.
        old: ``[n]``, log pi_old.
        advantages: ``[n]``.
        rows: ``[n]`` integers >= 0; tokens with equal numbers belong to one sequence.

    Raises:
        RunFailure: a plug-in did not return one number for each token.
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
    """The loss of a micro-batch: surrogate plus divergence minus entropy plus value loss.

    The algorithm's settings select and weight the terms.

    Args:
        algorithm: the algorithm's settings.
        scores: scores of the micro-batch's n tokens.
        fixed: constant terms of the same tokens.
        weights: ``[n]``, from :func:`rl.credit.losses.token_weights` over the whole step.
        value_weight: 1 / (number of sampled tokens in the whole step), because the value loss is a
            mean over tokens.
        rows: ``[n]`` integers >= 0, the sequence of each token. The micro-batch has all tokens of
            its sequences.
    """
    logprobs = scores.logprobs
    old = logprobs.detach() if fixed.old_logprobs is None else fixed.old_logprobs
    made = surrogate(algorithm, logprobs, old, fixed.advantages, rows)
    per_token = made.loss if fixed.corrections is None else fixed.corrections * made.loss
    drop = algorithm.correction.drop_divergence
    sums = {
        "entropy": scores.entropy.detach().sum(),
        "clip_ratio/low_mean": made.below.sum(),
        "clip_ratio/high_mean": made.above.sum(),
        "clip_ratio/region_mean": (made.below | made.above).sum(),
    }
    if drop is not None:
        sampler = old if fixed.sampling_logprobs is None else fixed.sampling_logprobs
        dropped = diverged(log_ratio(logprobs, sampler), fixed.advantages, rows, drop)
        per_token = per_token.masked_fill(dropped, 0.0)
        sums["clip_ratio/diverged_mean"] = dropped.sum()
    if fixed.ref_logprobs is not None:
        kl = kl_penalty(logprobs, fixed.ref_logprobs, algorithm.kl.estimator)
        sums["kl"] = kl.detach().sum()
        if algorithm.kl.ratio:
            kl = log_ratio(logprobs, old).exp() * kl
        per_token = per_token + algorithm.kl.coef * kl
    if algorithm.entropy_coef:
        per_token = per_token - algorithm.entropy_coef * scores.entropy
    loss = weighted_sum(per_token, weights)
    if scores.values is not None:
        assert fixed.old_values is not None and fixed.returns is not None
        value = value_loss(
            scores.values, fixed.old_values, fixed.returns, algorithm.value.clip
        ).sum()
        loss = loss + algorithm.value.coef * value_weight * value
        sums["value_loss"] = value.detach()
    return Terms(loss, sums)


def imitation_objective(scores: TokenScores, weights: Tensor) -> Terms:
    """Cross-entropy of the trained tokens, for supervised learning.

    Args:
        scores: scores of the micro-batch's n tokens.
        weights: ``[n]``, from :func:`rl.credit.losses.token_weights` over the whole step.
    """
    loss = weighted_sum(-scores.logprobs, weights)
    return Terms(loss, {"entropy": scores.entropy.detach().sum()})
