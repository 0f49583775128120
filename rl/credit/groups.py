"""Groups of an algorithm's settings: divergence, values, corrections, rewards of tokens."""

from __future__ import annotations

from dataclasses import dataclass

from rl.credit.checks import check_fields, require
from rl.credit.choices import CorrectionKind, Critic, KLEstimator, KLPlace, TokenRewardsKind


@dataclass(frozen=True, kw_only=True)
class KL:
    """The divergence from the reference model."""

    coef: float = 0.0
    """Weight of the divergence from the initial model; at 0 no reference model is kept."""
    estimator: KLEstimator = "k3"
    """k1, k2, k3 or k3+; :func:`rl.credit.losses.kl_penalty`."""
    ratio: bool = False
    """Whether a divergence in the loss is multiplied by pi / pi_old, which makes the gradient of k1
    and k3 that of the divergence (DeepSeek-V3.2, section 3.1); k2 and k3+ have it without."""
    place: KLPlace = "loss"
    """``loss``: added to the token's loss. ``reward``: taken from the token's reward (advantages
    with values only)."""
    target: float | None = None
    """Nats per episode that coef is adapted to after each update; None: coef stays."""
    horizon: int = 10_000
    """Episodes after which an adapted coef may have changed by a fifth."""
    ref_every: int = 0
    """Updates after which the reference becomes the policy as it is then; 0: it stays the initial
    model."""

    def __post_init__(self) -> None:
        check_fields(self)
        adapts = self.coef > 0
        require("coef", self.coef, self.coef >= 0, ">= 0")
        target = self.target
        require("target", target, target is None or target > 0, "above 0, or None")
        require("target", target, target is None or adapts, "None without coef")
        require("horizon", self.horizon, self.horizon >= 1, ">= 1")
        require("ref_every", self.ref_every, self.ref_every >= 0, ">= 0")
        refers = adapts or self.ref_every == 0
        require("ref_every", self.ref_every, refers, "0 without coef: there is no reference")
        in_loss = not self.ratio or (adapts and self.place == "loss")
        require("ratio", self.ratio, in_loss, "False without a divergence in the loss")


@dataclass(frozen=True, kw_only=True)
class Value:
    """The value head and its loss."""

    coef: float = 0.0
    """Weight of the value loss (advantages with values only)."""
    clip: float | None = None
    """How far a value may move in one update; None: unbounded."""
    critic: Critic = "head"
    """Where values come from. ``head``: a linear layer on the policy's last hidden state, whose
    gradient goes into the policy. ``model``: the same on a copy of the policy's model as it is
    initially, trained apart, which takes as much memory again."""

    def __post_init__(self) -> None:
        check_fields(self)
        require("coef", self.coef, self.coef >= 0, ">= 0")
        require("clip", self.clip, self.clip is None or self.clip > 0, "above 0, or None")


@dataclass(frozen=True, kw_only=True)
class Correction:
    """What tokens weigh that the policy would not have sampled quite so."""

    kind: CorrectionKind = "none"
    """How; :mod:`rl.credit.corrections` has the formulas (old_logprobs=update only)."""
    low: float = 0.5
    """The least ratio that counts (all but tis and seq-tis)."""
    high: float = 2.0
    """The greatest."""
    drop_divergence: float | None = None
    """Sequences with a negative advantage whose mean log(pi_sampler / pi) exceeds it teach nothing;
    None: all do. DeepSeek-V3.2's mask (arXiv 2512.02556, section 3.1)."""

    def __post_init__(self) -> None:
        check_fields(self)
        bounds = 0 <= self.low <= 1 <= self.high
        require("low, high", f"{self.low}, {self.high}", bounds, "from 0 to 1, and 1 or more")
        drop = self.drop_divergence
        require("drop_divergence", drop, drop is None or drop > 0, "above 0, or None")


@dataclass(frozen=True, kw_only=True)
class TokenRewardModel:
    """A model that learns from outcomes what each token is worth."""

    kind: TokenRewardsKind = "none"
    """PRIME's ``implicit`` one pays the tokens of advantage=group-dense, OREAL's ``head`` weighs
    those of group-outcome."""
    beta: float = 0.05
    """By which the model's log-ratios are multiplied where it is trained (implicit only)."""
    lr_ratio: float = 2.0
    """Its learning rate, in units of the policy's."""

    def __post_init__(self) -> None:
        check_fields(self)
        require("beta", self.beta, self.beta > 0, "above 0")
        require("lr_ratio", self.lr_ratio, self.lr_ratio > 0, "above 0")
