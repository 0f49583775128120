"""Names that an algorithm's options choose among, and checks of the options' values."""

from __future__ import annotations

import math
import typing
from collections.abc import Hashable, Iterable
from dataclasses import fields
from functools import cache
from typing import Any, Literal, cast

from tools.registry import closest

Std = Literal["unbiased", "biased", "mean", "none"]
"""Divisor of centred rewards: their standard deviation (``unbiased`` divides by n - 1, ``biased``
by n), their group's mean, or 1 (``none``)."""
TurnStd = Literal["unbiased", "biased", "none"]
"""Divisor of centred turn rewards. ``mean`` is not offered, because the mean of turn rewards can be
negative."""
Baseline = Literal["mean", "leave-one-out", "length-weighted"]
"""Baseline of a group's rewards; see :func:`rl.credit.advantages.math.group_advantages`."""
KLEstimator = Literal["k1", "k2", "k3", "k3+"]
"""Estimators of the divergence from the reference (Schulman, Approximating KL Divergence, 2020)."""
KLPlace = Literal["loss", "reward"]
Aggregation = Literal[
    "token-mean", "seq-mean-token-mean", "prompt-mean", "outcome-mean", "seq-mean-token-sum-norm"
]
"""How a step's loss sums token losses; see :func:`rl.credit.losses.token_weights`."""
OldLogprobs = Literal["update", "sampling"]
Critic = Literal["head", "model"]
TokenRewardsKind = Literal["none", "implicit", "head"]
"""Token reward models, which are trained with the policy; see :mod:`rl.learner.token_rewards`."""
Reduction = Literal["sum", "mean", "turn-mean"]
"""How an answer's log-ratio is computed from the log-ratios of its tokens; see
:func:`rl.preferences.losses.answer_log_ratios`."""


def require(key: str, value: Any, fine: bool, expected: str) -> None:
    """Check a value. The error message has the key, the value and what was expected.

    Raises:
        ValueError: ``fine`` is False.
    """
    if not fine:
        raise ValueError(f"{key} ({value}) must be {expected}")


@cache
def _hints_of(kind: Hashable) -> dict[str, Any]:
    """The types of a class's fields. They are computed once, as each start makes many objects."""
    return typing.get_type_hints(kind)


def check_fields(settings: Any) -> None:
    """Check that numbers are finite and that each ``Literal`` field has one of its values.

    Raises:
        ValueError: a field has an invalid value; the message names the field.
    """
    hints = _hints_of(cast(Hashable, type(settings)))
    for field in fields(settings):
        key, value, hint = field.name, getattr(settings, field.name), hints[field.name]
        require(key, value, not isinstance(value, float) or math.isfinite(value), "finite")
        if typing.get_origin(hint) is Literal:
            names = typing.get_args(hint)
            require(key, value, value in names, f"one of {', '.join(names)}")


def check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Check that every given option exists.

    Args:
        what: the owner of the options, for the message.
        given: option names to check.
        known: all option names.

    Raises:
        ValueError: an option does not exist. The message names the closest option and lists all.
    """
    known = list(known)
    for name in given:
        if name not in known:
            hint = closest(name, known)
            meant = f" Did you mean {hint!r}?" if hint else ""
            listed = ", ".join(known) or "none"
            raise ValueError(f"{what} has no option {name!r}.{meant} Known: {listed}.")
