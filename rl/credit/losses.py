"""Losses: pure functions of tensors, minimised; each gives one number for each sampled token.

Shapes: ``[N]`` is the sampled tokens of a step, in any order; prompt, observation and padding
tokens never come here. A step's loss is ``weighted_sum(per_token, token_weights(...))``. The
weights hold the denominator and are computed over the whole optimizer step, so a step cut into
micro-batches adds up to the same loss and the same gradient however it is cut.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl.credit.choices import Aggregation, KLEstimator

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to plus or minus this: e^20 is finite, and far outside of any clip."""


def log_ratio(logprobs: Tensor, other: Tensor) -> Tensor:
    """``log(pi / other)``, clamped so that its exponential stays finite. ``[N]``."""
    return (logprobs - other).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def clipped_surrogate(
    ratio: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Tensor:
    """``-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A)``, per token.

    PPO (Schulman et al. 2017, equation 7); unequal bounds are DAPO's clip-higher (section 3.1).
    With ``dual_clip`` c, where A < 0 the loss is at most ``-c A`` (Ye et al. 2020, equation 5).

    Args:
        ratio: ``[N]``, pi / pi_old.
        advantages: ``[N]``.
        clip_low: how far below 1 the ratio still earns.
        clip_high: how far above 1 the ratio still earns.
        dual_clip: c > 1, or None for plain clipping.
    """
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(plain, clipped)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)


def clip_regions(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """Where the clip stops the gradient: below with A < 0, above with A > 0. ``[N]`` booleans."""
    low = (ratio < 1 - clip_low) & (advantages < 0)
    high = (ratio > 1 + clip_high) & (advantages > 0)
    return low, high


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """``max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2) / 2``, per token.

    The clipped value loss of OpenAI's lm-human-preferences.

    Args:
        values: ``[N]``, current.
        old_values: ``[N]``, at the start of the update.
        returns: ``[N]``.
        clip: how far a value may move in one update; None: as far as it likes.
    """
    error = (values - returns).square()
    if clip is not None:
        moved = (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (old_values + moved - returns).square())
    return 0.5 * error


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, estimator: KLEstimator) -> Tensor:
    """An estimate of KL(pi || reference) at each token; d is ``logprobs - ref_logprobs``.

    k1 is ``d``; k2 is ``d^2 / 2``; k3 is ``exp(-d) - 1 + d``, never negative. On tokens that the
    policy itself sampled, k1 and k3 are unbiased *values*; as a loss only k2 has the expected
    gradient of the divergence, k1's is 0 on average and k3's is that of KL(reference || pi).
    ``k3+`` has the value of k3 and the gradient of k2.
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
    """The next weight of the divergence: larger where it was above its target, else smaller.

    ``kl_coef (1 + clip(kl / target - 1, -0.2, 0.2) num_episodes / horizon)``, lm-human-preferences'
    controller (Ziegler et al. 2019, section 2.2). An update of more episodes than the horizon moves
    it by a fifth at most: five times as many would make the formula's weight 0, and more a negative
    one.

    Args:
        kl_coef: the weight so far.
        kl: the divergence, nats per episode.
        target: nats per episode.
        num_episodes: of the update.
        horizon: episodes after which the weight may have changed by a fifth.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return kl_coef * (1 + error * min(1.0, num_episodes / horizon))


def token_weights(
    sequence_ids: Tensor, aggregation: Aggregation, max_tokens: int | None = None
) -> Tensor:
    """The weight of each token of one whole optimizer step; its inverse is the denominator.

    With L_s the number of sampled tokens of sequence s, and S the number of sequences:

    ==========================  =====================  ==================================
    ``token-mean``              1 / (sum of all L_s)   DAPO, section 3.3
    ``seq-mean-token-mean``     1 / (S L_s)            GRPO (DeepSeekMath, equation 3)
    ``prompt-mean``             1 / (S L_s)            the same, of all tokens of a prompt's group
    ``outcome-mean``            1 / L_s                the same, of all tokens of right and of wrong
                                                       episodes (OREAL, as in its code)
    ``seq-mean-token-sum-norm`` 1 / (S max_tokens)     Dr. GRPO, a constant for all lengths
    ==========================  =====================  ==================================

    Args:
        sequence_ids: ``[N]`` integers; equal ones belong to one sequence (one episode; of
            ``prompt-mean`` one group, of ``outcome-mean`` one outcome).
        aggregation: which row of the table.
        max_tokens: the constant of the last row, needed there only.

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
    """``sum(per_token * weights)``: a part of the step's loss; the parts add up. A scalar."""
    return (per_token * weights).sum()
