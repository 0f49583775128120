"""Options of an algorithm: the names that they choose among, and checks of their values."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Literal

from tools.registry import closest

Std = Literal["unbiased", "biased", "mean", "none"]
"""What centred rewards are divided by: their standard deviation (over n - 1, or over n), their
group's mean, or 1."""
TurnStd = Literal["unbiased", "biased", "none"]
"""The same for the rewards of turns, whose mean may be below 0."""
Baseline = Literal["mean", "leave-one-out", "length-weighted"]
"""What a group's rewards are compared with; :func:`rl.credit.advantage_math.group_advantages`."""
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
"""How an answer's token log-ratios become one; :func:`rl.preferences.losses.answer_log_ratios`."""


def require(key: str, value: Any, fine: bool, expected: str) -> None:
    """Refuse a value.

    Raises:
        ValueError: it is not ``fine``; names the key, the value and what was expected.
    """
    if not fine:
        raise ValueError(f"{key} ({value}) must be {expected}")


def check_fields(settings: Any) -> None:
    """Refuse numbers that are not finite, and names that a ``Literal`` does not list.

    Raises:
        ValueError: names the field.
    """
    hints = typing.get_type_hints(type(settings))
    for field in fields(settings):
        key, value, hint = field.name, getattr(settings, field.name), hints[field.name]
        require(key, value, not isinstance(value, float) or math.isfinite(value), "finite")
        if typing.get_origin(hint) is Literal:
            names = typing.get_args(hint)
            require(key, value, value in names, f"one of {', '.join(names)}")


def check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse options that do not exist.

    Raises:
        ValueError: names the option, the one most like it, and all there are.
    """
    known = list(known)
    for name in given:
        if name not in known:
            hint = closest(name, known)
            meant = f" Did you mean {hint!r}?" if hint else ""
            listed = ", ".join(known) or "none"
            raise ValueError(f"{what} has no option {name!r}.{meant} Known: {listed}.")
