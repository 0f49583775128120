"""Built-in corrections: importance weights for the mismatch of sampler and learner.

The sampler may use older weights or round differently. rho is the probability of a token under the
policy at the start of the update, divided by the probability with which the token was sampled. The
weights multiply the surrogate only; advantages and denominators do not change.

This module does not import torch, because command lines are parsed without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl.credit.plugin import CORRECTIONS, CorrectionRule, register
from rl.credit.ratios import SamplerRatios

if TYPE_CHECKING:
    from torch import Tensor


def correction_kinds() -> list[str]:
    """The values of ``correction.kind``."""
    return ["none", *CORRECTIONS.names()]


@register
@dataclass(frozen=True, kw_only=True)
class Tis(CorrectionRule):
    """min(rho, high) of each token: truncated importance sampling."""

    name = "tis"

    def weights(self, ratios: SamplerRatios, low: float, high: float) -> tuple[Tensor, Tensor]:
        """The token's rho, bounded from above."""
        return ratios.rho.clamp(max=high), ratios.rho > high


@register
@dataclass(frozen=True, kw_only=True)
class Icepop(CorrectionRule):
    """rho of each token, but 0 if it is below low or above high."""

    name = "icepop"

    def weights(self, ratios: SamplerRatios, low: float, high: float) -> tuple[Tensor, Tensor]:
        """The token's rho inside the bounds, 0 outside."""
        return ratios.inside(ratios.rho, ratios.rho, low, high)


@register
@dataclass(frozen=True, kw_only=True)
class TokenMask(CorrectionRule):
    """1 for each token whose rho is from low to high, else 0: SkyRL's token mask."""

    name = "token-mask"

    def weights(self, ratios: SamplerRatios, low: float, high: float) -> tuple[Tensor, Tensor]:
        """1 if rho of the token is inside the bounds, 0 otherwise."""
        return ratios.inside(1.0, ratios.rho, low, high)


@register
@dataclass(frozen=True, kw_only=True)
class OutlierMask(CorrectionRule):
    """1 if every rho of the episode is from low to high, else 0: SkyRL's outlier token mask."""

    name = "outlier-mask"

    def weights(self, ratios: SamplerRatios, low: float, high: float) -> tuple[Tensor, Tensor]:
        """0 for episodes in which some rho is outside the bounds, 1 for all other episodes."""
        outside = ratios.anywhere((ratios.rho < low) | (ratios.rho > high))
        return (~outside).to(ratios.rho.dtype), outside


@register
@dataclass(frozen=True, kw_only=True)
class SequenceTis(CorrectionRule):
    """min(product of the episode's rho, high): TRL's ``sequence_truncate``."""

    name = "seq-tis"

    def weights(self, ratios: SamplerRatios, low: float, high: float) -> tuple[Tensor, Tensor]:
        """The product of the episode's rho, bounded from above."""
        return ratios.product.clamp(max=high), ratios.product > high


@register
@dataclass(frozen=True, kw_only=True)
class SequenceIcepop(CorrectionRule):
    """Product of the episode's rho, 0 if it is below low or above high: TRL's ``sequence_mask``."""

    name = "seq-icepop"

    def weights(self, ratios: SamplerRatios, low: float, high: float) -> tuple[Tensor, Tensor]:
        """The product of the episode's rho inside the bounds, 0 outside."""
        return ratios.inside(ratios.product, ratios.product, low, high)


@register
@dataclass(frozen=True, kw_only=True)
class SequenceMask(CorrectionRule):
    """1 if the product of the episode's rho is from low to high, else 0: SkyRL's product mask."""

    name = "seq-mask"

    def weights(self, ratios: SamplerRatios, low: float, high: float) -> tuple[Tensor, Tensor]:
        """1 if the product of the episode's rho is inside the bounds, 0 otherwise."""
        return ratios.inside(1.0, ratios.product, low, high)


@register
@dataclass(frozen=True, kw_only=True)
class GeometricMask(CorrectionRule):
    """1 if the geometric mean of the episode's rho is from low to high, else 0: SkyRL."""

    name = "geo-mask"

    def weights(self, ratios: SamplerRatios, low: float, high: float) -> tuple[Tensor, Tensor]:
        """1 if the geometric mean of the episode's rho is inside the bounds, 0 otherwise."""
        return ratios.inside(1.0, ratios.geometric_mean, low, high)
