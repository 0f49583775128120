"""Built-in corrections, importance weights for the mismatch of sampler and learner.

The sampler may run older weights or round differently. rho is a token's probability under the
policy at the start of the update, divided by the probability with which it was sampled. The weights
multiply the surrogate only; advantages and denominators do not change.

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
        """The ratio of the token, bounded from above."""
        return ratios.rho.clamp(max=high), ratios.rho > high


@register
@dataclass(frozen=True, kw_only=True)
class Icepop(CorrectionRule):
    """rho of each token from low to high, else 0."""

    name = "icepop"

    def weights(self, ratios: SamplerRatios, low: float, high: float) -> tuple[Tensor, Tensor]:
        """The ratio of the token, inside of the bounds."""
        return ratios.inside(ratios.rho, ratios.rho, low, high)


@register
@dataclass(frozen=True, kw_only=True)
class TokenMask(CorrectionRule):
    """1 for each token whose rho is from low to high, else 0: SkyRL's token mask."""

    name = "token-mask"

    def weights(self, ratios: SamplerRatios, low: float, high: float) -> tuple[Tensor, Tensor]:
        """1 inside of the bounds."""
        return ratios.inside(1.0, ratios.rho, low, high)


@register
@dataclass(frozen=True, kw_only=True)
class OutlierMask(CorrectionRule):
    """1 if every rho of the episode is from low to high, else 0: SkyRL's outlier token mask."""

    name = "outlier-mask"

    def weights(self, ratios: SamplerRatios, low: float, high: float) -> tuple[Tensor, Tensor]:
        """0 in episodes with a ratio outside of the bounds."""
        outside = ratios.anywhere((ratios.rho < low) | (ratios.rho > high))
        return (~outside).to(ratios.rho.dtype), outside


@register
@dataclass(frozen=True, kw_only=True)
class SequenceTis(CorrectionRule):
    """min(product of the episode's rho, high): TRL's ``sequence_truncate``."""

    name = "seq-tis"

    def weights(self, ratios: SamplerRatios, low: float, high: float) -> tuple[Tensor, Tensor]:
        """The ratio of the episode, bounded from above."""
        return ratios.product.clamp(max=high), ratios.product > high


@register
@dataclass(frozen=True, kw_only=True)
class SequenceIcepop(CorrectionRule):
    """Product of the episode's rho from low to high, else 0: TRL's ``sequence_mask``."""

    name = "seq-icepop"

    def weights(self, ratios: SamplerRatios, low: float, high: float) -> tuple[Tensor, Tensor]:
        """The ratio of the episode, inside of the bounds."""
        return ratios.inside(ratios.product, ratios.product, low, high)


@register
@dataclass(frozen=True, kw_only=True)
class SequenceMask(CorrectionRule):
    """1 if the product of the episode's rho is from low to high, else 0: SkyRL's product mask."""

    name = "seq-mask"

    def weights(self, ratios: SamplerRatios, low: float, high: float) -> tuple[Tensor, Tensor]:
        """1 inside of the bounds of the episode's ratio."""
        return ratios.inside(1.0, ratios.product, low, high)


@register
@dataclass(frozen=True, kw_only=True)
class GeometricMask(CorrectionRule):
    """1 if the geometric mean of the episode's rho is from low to high, else 0: SkyRL."""

    name = "geo-mask"

    def weights(self, ratios: SamplerRatios, low: float, high: float) -> tuple[Tensor, Tensor]:
        """1 inside of the bounds of the episode's geometric mean."""
        return ratios.inside(1.0, ratios.geometric_mean, low, high)
