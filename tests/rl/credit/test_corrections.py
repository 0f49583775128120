"""Weights of tokens that other weights sampled: worked numbers, and what they leave alone."""

import pytest
import torch

from rl.credit.algorithms import ALGORITHMS
from rl.credit.assignment import correction_weights

RHO = [0.5, 1.0, 4.0, 0.9, 1.2]
EPISODES = torch.tensor([0, 0, 0, 1, 1])
"""Products 2 and 1.08, geometric means 1.26 and 1.04."""


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("kind", "low", "high", "expected", "bounded"),
    [
        ("none", 0.5, 2, [1, 1, 1, 1, 1], 0),
        ("tis", 0.5, 2, [0.5, 1, 2, 0.9, 1.2], 0.2),
        ("icepop", 0.4, 2, [0.5, 1, 0, 0.9, 1.2], 0.2),
        ("icepop", 0.6, 2, [0, 1, 0, 0.9, 1.2], 0.4),
        ("seq-tis", 0.5, 5, [2, 2, 2, 1.08, 1.08], 0),
        ("seq-tis", 0.5, 1.5, [1.5, 1.5, 1.5, 1.08, 1.08], 0.6),
        # TRL's sequence_mask: the product itself is the weight, and 0 outside of the bounds.
        ("seq-icepop", 0, 3, [2, 2, 2, 1.08, 1.08], 0),
        ("seq-icepop", 0, 1.5, [0, 0, 0, 1.08, 1.08], 0.6),
        ("seq-icepop", 0.99, 2, [2, 2, 2, 1.08, 1.08], 0),
        ("seq-mask", 0.5, 3, [1, 1, 1, 1, 1], 0),
        ("seq-mask", 0.5, 1.5, [0, 0, 0, 1, 1], 0.6),
        ("token-mask", 0.6, 2, [0, 1, 0, 1, 1], 0.4),
        ("token-mask", 0.4, 4.1, [1, 1, 1, 1, 1], 0),
        ("outlier-mask", 0.6, 4.1, [0, 0, 0, 1, 1], 0.6),
        ("outlier-mask", 0.4, 3.9, [0, 0, 0, 1, 1], 0.6),
        ("outlier-mask", 0.4, 4.1, [1, 1, 1, 1, 1], 0),
        ("geo-mask", 0.99, 1.1, [0, 0, 0, 1, 1], 0.6),
        ("geo-mask", 0.99, 1.01, [0, 0, 0, 0, 0], 1),
    ],
)
def test_weights(kind, low, high, expected, bounded):
    row = ALGORITHMS["grpo"].changed(
        {"correction.kind": kind, "correction.low": low, "correction.high": high}
    )
    sampling = f64([-1, -2, -3, -0.5, -4])
    weights, metrics = correction_weights(row, sampling + f64(RHO).log(), sampling, EPISODES)
    torch.testing.assert_close(weights, f64(expected))
    assert metrics == pytest.approx(
        {
            "correction/ratio_mean": 7.6 / 5,
            "correction/ratio_max": 4.0,
            "correction/effective_samples": 7.6**2 / (5 * 19.5),
            "correction/bounded": bounded,
        }
    )


def test_nothing_overflows():
    row = ALGORITHMS["grpo"].changed({"correction.kind": "seq-tis", "correction.high": 5.0})
    old, sampling = torch.zeros(600, dtype=torch.float64), f64([-800.0] * 600)
    weights, metrics = correction_weights(row, old, sampling, torch.zeros(600, dtype=torch.int64))
    assert weights.tolist() == [5.0] * 600
    assert all(torch.tensor(value).isfinite() for value in metrics.values())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # Products .495, .56, 1.2 and 3; SkyRL's product mask keeps those from .5 to 2.
        ("seq-mask", [0, 0, 1, 1, 1, 0]),
        # TRL's sequence_mask keeps the same, each with its product as the weight.
        ("seq-icepop", [0, 0, 0.56, 0.56, 1.2, 0]),
        # Ratios .55 to 3; only the last lies outside.
        ("token-mask", [1, 1, 1, 1, 1, 0]),
        ("outlier-mask", [1, 1, 1, 1, 1, 0]),
        # Geometric means .70, .75, 1.2 and 3.
        ("geo-mask", [1, 1, 1, 1, 1, 0]),
    ],
)
def test_sequences_outside_of_the_bounds_have_weight_zero(kind, expected):
    row = ALGORITHMS["grpo"].changed({"correction.kind": kind})
    assert (row.correction.low, row.correction.high) == (0.5, 2.0)  # SkyRL's defaults
    rho, episodes = f64([0.55, 0.9, 0.8, 0.7, 1.2, 3.0]), torch.tensor([0, 0, 1, 1, 2, 3])
    weights, metrics = correction_weights(row, rho.log() - 1, f64([-1] * 6), episodes)
    torch.testing.assert_close(weights, f64(expected))
    assert metrics["correction/bounded"] == pytest.approx(expected.count(0) / 6)
