"""Credit assignment: from an update's rewards to the advantage of each sampled token."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace

import torch
from torch import Tensor

from rl.credit.advantages.check import check_credit
from rl.credit.advantages.inputs import CreditInputs
from rl.credit.algorithm import Algorithm
from rl.credit.batch import Batch
from rl.credit.losses import FixedTerms, kl_penalty
from rl.credit.plugin import CORRECTIONS, Advantage, Credit
from rl.credit.ratios import SamplerRatios
from rl.errors import RunFailure


def assign_credit(
    algorithm: Algorithm,
    batch: Batch,
    values: Tensor | None = None,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    token_scores: Tensor | None = None,
    memory: MutableMapping[str, float] | None = None,
) -> Credit:
    """The advantage of each token of ``batch``.

    Lengths, returns and turns of episodes that ``mask_truncated`` dropped count in the baselines of
    the others. An advantage that needs a number for each token has none for theirs.

    Args:
        algorithm: the algorithm's settings.
        batch: the episodes of the update.
        values: ``[N]`` float64, the value of the state before each token; required with a value
            head.
        old_logprobs: ``[N]`` float64, required for a divergence in the reward.
        ref_logprobs: ``[N]`` float64, required for a divergence in the reward.
        token_scores: ``[N]`` float64, required with a token reward model.
        memory: numbers that the advantage keeps from update to update, which the call may change.

    Raises:
        ValueError: the advantage needs the values of turns, and a turn has no value.
        RunFailure: the advantage needs returns of 0 or more, and a return is negative; or a plug-in
            did not return one number for each token.
    """
    advantage = algorithm.advantage
    if advantage.needs_nonnegative_rewards and (batch.rewards < 0).any():
        raise RunFailure(
            f"algo.advantage={advantage.name} divides by a mean, so what each role of an episode "
            f"earns must be >= 0; one earned {batch.rewards.min():g}: choose another "
            f"algo.advantage.std, or rewards without penalties"
        )
    assert (values is not None) or not advantage.needs_values
    penalties, metrics = None, {}
    if algorithm.kl.coef and algorithm.kl.place == "reward":
        assert old_logprobs is not None and ref_logprobs is not None
        kl = kl_penalty(old_logprobs, ref_logprobs, algorithm.kl.estimator)
        penalties = algorithm.kl.coef * kl
        metrics["kl"] = kl.mean().item()
    scores = token_scores if algorithm.token_rewards.kind != "none" else None
    per_token, kept = (values, scores, penalties), {} if memory is None else memory
    inputs = CreditInputs(batch, *per_token, kept)
    if batch.unmasked is None or any(x is not None for x in per_token):
        credit = advantage.credit(inputs)
        check_credit(advantage, credit, batch.num_tokens)
    else:
        credit = _credit_of_part(advantage, batch, batch.unmasked, kept)
    advantages = inputs.whitened(credit.advantages) if algorithm.whiten else credit.advantages
    return replace(credit, advantages=advantages, metrics={**metrics, **credit.metrics})


def _credit_of_part(
    advantage: Advantage, batch: Batch, unmasked: Batch, memory: MutableMapping[str, float]
) -> Credit:
    """The credit of ``unmasked``, without the tokens that are not in ``batch``."""
    credit = advantage.credit(CreditInputs(unmasked, memory=memory))
    check_credit(advantage, credit, unmasked.num_tokens)
    tokens = torch.isin(unmasked.episode_ids, batch.episode_ids)
    returns = None if credit.returns is None else credit.returns[tokens]
    return replace(credit, advantages=credit.advantages[tokens], returns=returns)


def correction_weights(
    algorithm: Algorithm, old: Tensor, sampling: Tensor, episode_ids: Tensor
) -> tuple[Tensor, dict[str, float]]:
    """Importance weight of each token's surrogate, and metrics of the ratios before any bound.

    Args:
        algorithm: the settings; only ``correction`` is read.
        old: ``[N]``, log-probabilities under the policy at the start of the update.
        sampling: ``[N]``, log-probabilities that the sampler recorded.
        episode_ids: ``[N]`` integers >= 0.

    Returns:
        ``[N]``, and the metrics ``correction/ratio_mean``, ``ratio_max``, ``effective_samples`` (as
        a share of N, (sum rho)^2 / (N sum rho^2)) and ``bounded`` (the share of tokens that a bound
        changed).

    Raises:
        RunFailure: a plug-in did not return one weight for each token.
    """
    ratios = SamplerRatios(old, sampling, episode_ids)
    rho, correction = ratios.rho, algorithm.correction
    weights, bounded = torch.ones_like(rho), torch.zeros_like(rho, dtype=torch.bool)
    if correction.kind != "none":
        rule = CORRECTIONS.make(correction.kind)
        weights, bounded = rule.weights(ratios, correction.low, correction.high)
    if weights.shape != rho.shape or bounded.shape != rho.shape:
        raise RunFailure(
            f"algo.correction.kind={correction.kind} gave weights of shape {tuple(weights.shape)} "
            f"and bounds of shape {tuple(bounded.shape)}, expected {tuple(rho.shape)}: one for "
            f"each token"
        )
    return weights, {
        "correction/ratio_mean": rho.mean().item(),
        "correction/ratio_max": rho.max().item(),
        "correction/effective_samples": (rho.sum().square() / rho.square().mean()).item()
        / len(rho) ** 2,
        "correction/bounded": bounded.double().mean().item(),
    }


def fixed_terms(
    algorithm: Algorithm,
    batch: Batch,
    values: Tensor | None = None,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    token_scores: Tensor | None = None,
    memory: MutableMapping[str, float] | None = None,
) -> tuple[FixedTerms, dict[str, float]]:
    """The terms that stay constant during an update, computed from the scores at its start.

    Args:
        algorithm: the algorithm's settings.
        batch: the episodes of the update.
        values: ``[N]`` float64; see :func:`assign_credit`.
        old_logprobs: ``[N]`` float64; also required for a correction. None if the update is a
            single optimizer step, because the current log-probabilities are then the old ones.
        ref_logprobs: ``[N]`` float64, required for a divergence.
        token_scores: ``[N]`` float64; see :func:`assign_credit`.
        memory: see :func:`assign_credit`.

    Returns:
        The terms, and their metrics.

    Raises:
        ValueError: see :func:`assign_credit`.
        RunFailure: see :func:`assign_credit`.
    """
    scores = (values, old_logprobs, ref_logprobs, token_scores)
    credit = assign_credit(algorithm, batch, *scores, memory)
    metrics, corrections = dict(credit.metrics), None
    if algorithm.correction.kind != "none":
        assert old_logprobs is not None
        corrections, measured = correction_weights(
            algorithm, old_logprobs, batch.sampling_logprobs, batch.episode_ids
        )
        metrics.update(measured)
    of_sampler = algorithm.old_logprobs == "sampling"
    drops = algorithm.correction.drop_divergence is not None
    fixed = FixedTerms(
        advantages=credit.advantages,
        old_logprobs=batch.sampling_logprobs if of_sampler else old_logprobs,
        ref_logprobs=ref_logprobs if algorithm.kl.place == "loss" else None,
        old_values=values,
        returns=credit.returns,
        corrections=corrections,
        sampling_logprobs=batch.sampling_logprobs if drops else None,
    )
    return fixed, metrics
