"""The names that an algorithm's settings choose among."""

from __future__ import annotations

from typing import Literal

Std = Literal["unbiased", "biased", "mean", "none"]
"""What centred rewards are divided by: their standard deviation (over n - 1, or over n), their
group's mean, or 1."""
TurnStd = Literal["unbiased", "biased", "none"]
"""The same for the rewards of turns, whose mean may be below 0."""
Baseline = Literal["mean", "leave-one-out", "length-weighted"]
"""What a group's rewards are compared with; :func:`rl.credit.advantages.group_advantages`."""
KLEstimator = Literal["k1", "k2", "k3", "k3+"]
"""Estimators of the divergence from the reference (Schulman, Approximating KL Divergence, 2020)."""
KLPlace = Literal["loss", "reward"]
Aggregation = Literal[
    "token-mean", "seq-mean-token-mean", "prompt-mean", "outcome-mean", "seq-mean-token-sum-norm"
]
"""How a step's token losses become one number; ``rl.credit.losses`` has the denominators."""
OldLogprobs = Literal["update", "sampling"]
CorrectionKind = Literal[
    "none",
    "tis",
    "icepop",
    "token-mask",
    "outlier-mask",
    "seq-tis",
    "seq-icepop",
    "seq-mask",
    "geo-mask",
]
"""How tokens that other weights sampled are weighted; :mod:`rl.credit.corrections`."""
Critic = Literal["head", "model"]
TokenRewardsKind = Literal["none", "implicit", "head"]
"""Models that are trained beside the policy; :mod:`rl.learner.token_rewards` has them."""
Reduction = Literal["sum", "mean", "turn-mean"]
"""How an answer's token log-ratios become one; :func:`rl.credit.preferences.answer_log_ratios`."""
