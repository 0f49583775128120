"""Losses of reward models and of DPO, and their training labels.

Pure functions. Shapes: ``[P]`` one entry per pair of answers, ``[K]`` one per answer of a prompt or
per turn, ``[N]`` one per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from rl.credit.options import Reduction
from rl.data.comparisons import ranked_pairs


def bradley_terry(
    better: Tensor, worse: Tensor, margin: Tensor | float = 0.0, label: Tensor | float = 1.0
) -> Tensor:
    """``-log sigma(better - worse - margin)``, per pair: the cross-entropy of a preference.

    The loss is InstructGPT's (arXiv 2203.02155, equation 1), the margin Llama 2's (arXiv
    2307.09288, equation 2). A soft label p is the probability that "better" is better (RLAIF, arXiv
    2309.00267): ``-p log sigma(d - margin) - (1 - p) log sigma(-d - margin)``, with ``d = better -
    worse``.

    Args:
        better: ``[P]``, rewards of the preferred answers.
        worse: ``[P]``, rewards of the other answers.
        margin: required difference of the two rewards; ``[P]`` or one number.
        label: probability that the preferred answer is better, from 0 to 1; ``[P]`` or one number.
    """
    difference = better - worse
    return -label * logsigmoid(difference - margin) - (1 - label) * logsigmoid(-difference - margin)


def ranking_loss(rewards: Tensor, ranking: Sequence[float]) -> Tensor:
    """The mean Bradley-Terry loss over the C(K, 2) pairs of K answers to one prompt. A scalar.

    This is InstructGPT's loss (arXiv 2203.02155, equation 1). A pair of equal grades adds no loss,
    but counts as one of the C(K, 2) pairs.

    Args:
        rewards: ``[K]``, the reward of each answer.
        ranking: a grade for each answer. Greater is better.

    Raises:
        ValueError: there are fewer than two answers, or the numbers of rewards and grades differ.
    """
    count = len(rewards)
    if count < 2 or len(ranking) != count:
        raise ValueError(f"{count} rewards and {len(ranking)} grades: give two or more of each")
    pairs = torch.tensor(ranked_pairs(ranking), dtype=torch.int64, device=rewards.device)
    better, worse = rewards[pairs.reshape(-1, 2)].unbind(1)
    return bradley_terry(better, worse).sum() / (count * (count - 1) / 2)


def answer_log_ratios(
    log_ratios: Tensor, answer_ids: Tensor, turn_ids: Tensor, reduction: Reduction
) -> Tensor:
    """``log(pi / pi_ref)`` of whole answers, from the log-ratios of their tokens.

    ===============  ==============================================  ============================
    ``sum``          the sum over the answer's tokens                DPO, arXiv 2305.18290
    ``mean``         ``sum`` divided by the answer's length           length-averaged DPO
    ``turn-mean``    the sum over turns of the mean over a turn      SWEET-RL, arXiv 2503.15478
    ===============  ==============================================  ============================

    Args:
        log_ratios: ``[N]``, ``log(pi / pi_ref)`` of each token.
        answer_ids: ``[N]`` integers from 0 to K - 1: the answer of each token. Every answer has a
            token.
        turn_ids: ``[N]`` integers: the turn of each token within its answer.
        reduction: a row of the table.

    Returns:
        ``[K]``.

    Raises:
        ValueError: the reduction is unknown.
    """
    if reduction not in get_args(Reduction):
        raise ValueError(f"reduction ({reduction}) must be one of {', '.join(get_args(Reduction))}")
    if reduction == "turn-mean":
        turns, parts = torch.stack([answer_ids, turn_ids]).unique(dim=1, return_inverse=True)
        return _sums(_means(log_ratios, parts), turns[0])
    return (_sums if reduction == "sum" else _means)(log_ratios, answer_ids)


def turn_advantages(logprobs: Tensor, ref_logprobs: Tensor, turn_ids: Tensor) -> Tensor:
    """The mean of ``log(pi / pi_ref)`` over each turn's tokens.

    This is SWEET-RL's advantage of a turn (arXiv 2503.15478), where pi reads information that is
    available in training only. In SWEET-RL's ablation, training fails without the mean over length.

    Args:
        logprobs: ``[N]``, ``log(pi)`` of each token.
        ref_logprobs: ``[N]``, ``log(pi_ref)`` of each token.
        turn_ids: ``[N]`` integers from 0 to K - 1: the turn of each token. Every turn has a token.

    Returns:
        ``[K]``.
    """
    return _means(logprobs - ref_logprobs, turn_ids)


def dpo_loss(better: Tensor, worse: Tensor, beta: float, label: Tensor | float = 1.0) -> Tensor:
    """``-log sigma(beta (better - worse))``, per pair.

    This is DPO's loss (Rafailov et al., arXiv 2305.18290, equation 7). With the log-ratios of
    :func:`answer_log_ratios` by ``turn-mean``, it is SWEET-RL's loss, ``-log sigma(sum beta A+ -
    sum beta A-)``.

    Args:
        better: ``[P]``, ``log(pi / pi_ref)`` of the preferred answers.
        worse: ``[P]``, ``log(pi / pi_ref)`` of the other answers.
        beta: how strongly the policy is kept near the reference.
        label: see :func:`bradley_terry`.
    """
    return bradley_terry(beta * better, beta * worse, label=label)


def step_labels(right: Tensor, estimate: Literal["hard", "soft"]) -> Tensor:
    """Labels of a solution's steps, from completions that continue after each step.

    Math-Shepherd (arXiv 2312.08935, section 3.3): ``hard`` is 1 if any completion is right,
    ``soft`` is the share of right completions.

    Args:
        right: ``[S, N]``, whether completion n from step s is right.
        estimate: hard or soft.

    Returns:
        ``[S]`` float64.

    Raises:
        ValueError: the estimate is unknown.
    """
    if estimate not in ("hard", "soft"):
        raise ValueError(f"estimate ({estimate}) must be hard or soft")
    shares = right.double().mean(1)
    return (shares > 0).double() if estimate == "hard" else shares


def solution_score(step_scores: Tensor, by: Literal["min", "product"]) -> Tensor:
    """A solution's score, a scalar, from the scores of its steps (``[S]``, from 0 to 1).

    Math-Shepherd (section 3.4) takes the minimum; Lightman et al. (arXiv 2305.20050) take the
    product.

    Raises:
        ValueError: ``by`` is neither "min" nor "product".
    """
    if by not in ("min", "product"):
        raise ValueError(f"by ({by}) must be min or product")
    return step_scores.min() if by == "min" else step_scores.prod()


def long2short_pairs(
    lengths: Sequence[int], right: Sequence[bool], longer: float = 1.5
) -> list[tuple[int, int]]:
    """Pairs (preferred, other) of answers to one task that teach a model to be short.

    Kimi k1.5 (arXiv 2501.12599, section 2.4): the shortest right answer is preferred to longer
    wrong answers, and to right answers of at least ``longer`` times its length.

    Args:
        lengths: length of each answer, in tokens.
        right: whether each answer is right.
        longer: minimum length of a right answer that is not preferred, as a multiple of the
            shortest right answer's length.

    Returns:
        Pairs of positions; empty if no answer is right.
    """
    correct = [i for i, is_right in enumerate(right) if is_right]
    if not correct:
        return []
    best = min(correct, key=lambda i: lengths[i])
    shortest = lengths[best]
    return [
        (best, i)
        for i, (length, is_right) in enumerate(zip(lengths, right, strict=True))
        if i != best and (length >= longer * shortest if is_right else length > shortest)
    ]


def _sums(x: Tensor, ids: Tensor) -> Tensor:
    """``[K]``, for each id the sum of the entries of ``x`` with this id."""
    return x.new_zeros(_count(ids)).index_add(0, ids, x)


def _means(x: Tensor, ids: Tensor) -> Tensor:
    return _sums(x, ids) / ids.bincount(minlength=_count(ids))


def _count(ids: Tensor) -> int:
    return int(ids.max()) + 1 if len(ids) else 0
