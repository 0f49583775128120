"""Numbers of how far learner and sampler are apart; the expected ones were computed by hand."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from rl.credit.algorithms import ALGORITHMS
from rl.learner.metrics import effective_share, mismatch
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater

GRPO = ALGORITHMS["grpo"]
LOGS = torch.tensor([0.0, math.log(1.2), math.log(0.5)])


def test_every_number_of_three_tokens():
    results = mismatch(LOGS, torch.zeros(3, dtype=torch.long))
    assert results == {
        # ln 1.2 = 0.182322, ln 2 = 0.693147
        "sampling/logp_difference_mean": pytest.approx((0.182322 + 0.693147) / 3, rel=1e-5),
        "sampling/logp_difference_max": pytest.approx(0.693147, rel=1e-5),
        "sampling/k1": pytest.approx((0.693147 - 0.182322) / 3, rel=1e-5),
        # r - 1 - log r: 0, 0.2 - 0.182322, -0.5 + 0.693147
        "sampling/k3": pytest.approx((0.017678 + 0.193147) / 3, rel=1e-4),
        "sampling/ratio_outside": pytest.approx(2 / 3),
        # (1 + 1.2 + 0.5)^2 / (3 (1 + 1.44 + 0.25)) = 7.29 / 8.07
        "sampling/effective_share": pytest.approx(7.29 / 8.07, rel=1e-5),
    }


def test_stale_tokens_have_metrics_by_age():
    results = mismatch(LOGS, torch.tensor([0, 2, 2]))
    assert {name: value for name, value in results.items() if name.startswith("staleness/")} == {
        "staleness/share/0": pytest.approx(1 / 3),
        "staleness/ratio_mean/0": pytest.approx(1.0),
        "staleness/effective_share/0": pytest.approx(1.0),
        "staleness/share/2": pytest.approx(2 / 3),
        "staleness/ratio_mean/2": pytest.approx(0.85),
        # (1.2 + 0.5)^2 / (2 (1.44 + 0.25)) = 2.89 / 3.38
        "staleness/effective_share/2": pytest.approx(2.89 / 3.38, rel=1e-5),
    }


def test_ratios_of_a_hundredth_are_no_mismatch_and_huge_ones_are_finite():
    near = mismatch(torch.log(torch.tensor([0.91, 1.09])), torch.zeros(2))
    assert near["sampling/ratio_outside"] == 0
    assert effective_share(torch.tensor([800.0, 0.0], dtype=torch.double)) == pytest.approx(0.5)


def test_an_update_reports_the_ages_of_its_tokens(make_model, groups):
    stale = copy.deepcopy(groups)
    tokens = [0, 0]
    for number, trajectory in enumerate(t for group in stale for t in group.trajectories):
        for segment in trajectory.segments:
            old = number % 2
            segment.versions = [5 - old if mask else -1 for mask in segment.loss_mask]
            tokens[old] += sum(segment.loss_mask)
    free = OptimizerConfig(lr=1e-3, max_grad_norm=1e9)
    results = Updater(make_model(), GRPO, free).update(stale, version=7)
    share = tokens[0] / sum(tokens)
    assert results["staleness/share/2"] == pytest.approx(share)
    assert results["staleness/share/3"] == pytest.approx(1 - share)
    fresh = Updater(make_model(), GRPO, free).update(groups)
    assert not any(name.startswith("staleness/") for name in fresh)
    assert fresh["sampling/k3"] > 0
