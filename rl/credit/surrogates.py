"""Built-in surrogates, the losses of the policy: one plug-in for each value of ``surrogate``.

Shapes: ``[n]`` is the sampled tokens of a micro-batch; r is pi / pi_old of a token, A its
advantage, and [.] stops the gradient. Losses are minimised. Where pi equals pi_old, all surrogates
have the same gradient, summed over sequences with the weights of ``seq-mean-token-mean``.

This module does not import torch, because command lines are parsed without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl.credit.options import require
from rl.credit.plugin import Surrogate, register
from rl.credit.ratios import Ratios, SurrogateLoss

if TYPE_CHECKING:
    from torch import Tensor


SAMPLING_DUAL_CLIP = 3.0
"""Default of dual_clip with old_logprobs=sampling, where a ratio can be as large as e^20."""
SAPO_TAU = (1.0, 1.05)
"""Temperatures of SAPO's gate for A > 0 and for A < 0. A higher temperature closes the gate sooner
(section 3)."""
DPPO_MAX_RATIO = 20.0
"""Upper bound of a token's weight in dppo-tv."""


@dataclass(frozen=True, kw_only=True)
class _Bounded(Surrogate):
    """Options of surrogates that bound a ratio."""

    clip_low: float = 0.2
    """Lower bound of the ratio, as a distance from 1."""
    clip_high: float = 0.2
    """Upper bound of the ratio, as a distance from 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("clip_low", self.clip_low, self.clip_low >= 0, ">= 0")
        require("clip_high", self.clip_high, self.clip_high >= 0, ">= 0")


@dataclass(frozen=True, kw_only=True)
class _Clipped(_Bounded):
    """Options of surrogates with PPO's clip."""

    dual_clip: float | None = None
    """Bound of the loss of a token with a negative advantage, as a multiple of that advantage; 0
    means no bound. None means 3 with old_logprobs=sampling, otherwise no bound."""

    def __post_init__(self) -> None:
        super().__post_init__()
        c = self.dual_clip
        require("dual_clip", c, c is None or c == 0 or c > 1, "above 1, 0 or None")

    def _clip(self, ratios: Ratios, ratio: Tensor) -> SurrogateLoss:
        bound = self.dual_clip or None
        if self.dual_clip is None and ratios.of_sampler:
            bound = SAMPLING_DUAL_CLIP
        return ratios.clipped(ratio, self.clip_low, self.clip_high, bound)


@register
@dataclass(frozen=True, kw_only=True)
class Clip(_Clipped):
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A): PPO, arXiv 1707.06347, equation 7."""

    name = "clip"

    def loss(self, ratios: Ratios) -> SurrogateLoss:
        """PPO's clipped loss of each token (:func:`rl.credit.ratios.clipped_surrogate`)."""
        return self._clip(ratios, ratios.log_ratio().exp())


@register
@dataclass(frozen=True, kw_only=True)
class Reinforce(Surrogate):
    """-A log pi: Williams 1992."""

    name = "reinforce"
    has_ratio = False

    def loss(self, ratios: Ratios) -> SurrogateLoss:
        """The negative product of log-probability and advantage."""
        return SurrogateLoss(-ratios.advantages * ratios.logprobs)


@register
@dataclass(frozen=True, kw_only=True)
class Cispo(_Bounded):
    """-[clip(r, 1 - clip_low, 1 + clip_high)] A log pi: MiniMax-M1, arXiv 2506.13585, equation 4.

    The paper does not state the bounds. SkyRL's upper bound is 5, which is 1 + clip_high.
    """

    name = "cispo"
    clip_low: float = 1.0
    """Lower bound of a token's weight, as a distance from 1."""
    clip_high: float = 4.0
    """Upper bound of a token's weight, as a distance from 1."""

    def loss(self, ratios: Ratios) -> SurrogateLoss:
        """Bound the weight of each token. Every token keeps a gradient."""
        low, high = 1 - self.clip_low, 1 + self.clip_high
        ratio = ratios.log_ratio().detach().exp()
        loss = -ratio.clamp(low, high) * ratios.advantages * ratios.logprobs
        return SurrogateLoss(loss, ratio < low, ratio > high)


@register
@dataclass(frozen=True, kw_only=True)
class Sapo(Surrogate):
    """-(4 / tau) sigmoid(tau (r - 1)) A: SAPO, arXiv 2511.20347, with its two temperatures."""

    name = "sapo"

    def loss(self, ratios: Ratios) -> SurrogateLoss:
        """Weight tokens by a gate that closes gradually as r moves away from 1."""
        advantages = ratios.advantages
        for_gain, for_loss = (advantages.new_full(advantages.shape, tau) for tau in SAPO_TAU)
        tau = for_gain.where(advantages > 0, for_loss)
        ratio = ratios.log_ratio().exp()
        return SurrogateLoss(-4 / tau * (tau * (ratio - 1)).sigmoid() * advantages)


@register
@dataclass(frozen=True, kw_only=True)
class DppoTV(_Bounded):
    """-[min(r, 20)] A log pi, while pi has moved less than clip_low or clip_high: DPPO, as in verl.

    Only a change of probability in the direction of A counts.
    """

    name = "dppo-tv"
    clip_low: float = 0.2
    """Maximum decrease of the probability of a token with A < 0."""
    clip_high: float = 0.2
    """Maximum increase of the probability of a token with A > 0."""

    def loss(self, ratios: Ratios) -> SurrogateLoss:
        """Bound the weight of each token. Tokens beyond a bound have loss 0."""
        logprobs, advantages = ratios.logprobs, ratios.advantages
        change = logprobs.detach().exp() - ratios.old.exp()
        above = (change > self.clip_high) & (advantages > 0)
        below = (change < -self.clip_low) & (advantages < 0)
        weight = ratios.log_ratio().detach().exp().clamp(max=DPPO_MAX_RATIO)
        loss = -weight * advantages * logprobs
        return SurrogateLoss(loss.masked_fill(above | below, 0.0), below, above)


@dataclass(frozen=True, kw_only=True)
class _PulledBack(Surrogate):
    """Options of surrogates that pull the policy back to pi_old, for every A."""

    gradient_at_zero = True
    tau: float = 0.1
    """Weight of the squared log-ratio."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("tau", self.tau, self.tau >= 0, ">= 0")


@register
@dataclass(frozen=True, kw_only=True)
class Dro(_PulledBack):
    """-A log pi + (tau / 2) (log r)^2: DRO, arXiv 2405.19107."""

    name = "dro"

    def loss(self, ratios: Ratios) -> SurrogateLoss:
        """Pull each token back to pi_old by the square of its own log-ratio."""
        pull = self.tau / 2 * ratios.log_ratio().square()
        return SurrogateLoss(-ratios.advantages * ratios.logprobs + pull)


@register
@dataclass(frozen=True, kw_only=True)
class MirrorDescent(_PulledBack):
    """``dro`` of a whole sequence, with the product of its r: Kimi k1.5, arXiv 2501.12599, eq. 3.

    The paper does not give tau.
    """

    name = "mirror-descent"
    by_sequence = True

    def loss(self, ratios: Ratios) -> SurrogateLoss:
        """Pull each sequence back to pi_old by the square of the sequence's log-ratio."""
        log_ratio = ratios.log_ratio()
        pull = self.tau / 2 * ratios.sums(log_ratio) * log_ratio
        return SurrogateLoss(-ratios.advantages * ratios.logprobs + pull)


@register
@dataclass(frozen=True, kw_only=True)
class Oreal(Surrogate):
    """-A log pi where A > 0, -loss_coef r A where A < 0: OREAL, arXiv 2502.06781, equation 13."""

    name = "oreal"
    has_ratio = False
    loss_coef: float = 1.0
    """Weight of negative advantages."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("loss_coef", self.loss_coef, self.loss_coef >= 0, ">= 0")

    def loss(self, ratios: Ratios) -> SurrogateLoss:
        """Imitate tokens with A > 0, and make tokens with A < 0 less likely."""
        advantages = ratios.advantages
        unlikely = self.loss_coef * ratios.log_ratio().exp()
        return SurrogateLoss(-advantages * ratios.logprobs.where(advantages > 0, unlikely))


@dataclass(frozen=True, kw_only=True)
class _OfSequences(_Clipped):
    """Options of surrogates that clip the ratio of a whole sequence (GSPO, section 5.1)."""

    by_sequence = True
    aggregation = "seq-mean-token-mean"
    clip_low: float = 3e-4
    """Lower bound of the ratio, as a distance from 1."""
    clip_high: float = 4e-4
    """Upper bound of the ratio, as a distance from 1."""


@register
@dataclass(frozen=True, kw_only=True)
class Gspo(_OfSequences):
    """``clip`` of the geometric mean of a sequence's ratios: GSPO, arXiv 2507.18071, equation 5."""

    name = "gspo"

    def loss(self, ratios: Ratios) -> SurrogateLoss:
        """PPO's clipped loss, where all tokens of a sequence have the sequence's ratio."""
        return self._clip(ratios, ratios.means(ratios.log_ratio()).exp())


@register
@dataclass(frozen=True, kw_only=True)
class GspoToken(_OfSequences):
    """``clip`` with [s] r / [r]: GSPO, equation 13, for advantages that differ by token."""

    name = "gspo-token"

    def loss(self, ratios: Ratios) -> SurrogateLoss:
        """PPO's clipped loss of a ratio with the sequence's value and the token's gradient."""
        own = ratios.log_ratio()
        return self._clip(ratios, (ratios.means(own).detach() + own - own.detach()).exp())


@register
@dataclass(frozen=True, kw_only=True)
class Gmpo(_Bounded):
    """-A times the geometric mean of r, each bounded in log space: GMPO, arXiv 2507.20673."""

    name = "gmpo"
    by_sequence = True
    aggregation = "seq-mean-token-mean"
    clip_low: float = 0.4
    """Lower bound of the log of a ratio, as a distance from 0."""
    clip_high: float = 0.4
    """Upper bound of the log of a ratio, as a distance from 0."""

    def loss(self, ratios: Ratios) -> SurrogateLoss:
        """Bound each log-ratio before taking the mean."""
        log_ratio, advantages = ratios.log_ratio(), ratios.advantages
        low, high, sign = self.clip_low, self.clip_high, advantages.sign()
        bounded = sign * (sign * log_ratio).minimum(sign * log_ratio.clamp(-low, high))
        now = log_ratio.detach()
        # A = 0 has no direction, and its tokens have no gradient.
        bounded = now.where(sign == 0, bounded)
        below, above = (now < -low) & (sign < 0), (now > high) & (sign > 0)
        return SurrogateLoss(-advantages * ratios.means(bounded).exp(), below, above)
