"""The learning curve is drawn from whatever a run has logged."""

from __future__ import annotations

import pytest

from rl.run.curve import curve, draw_curve
from rl.run.metrics.intervals import pass_rate


@pytest.mark.parametrize(
    "successes",
    [[0.0] * 7, [1.0] * 10, [0.0, 1.0], [-3.0, 5.0]],
    ids=["none", "all", "half", "odd"],
)
def test_every_rate_can_be_drawn(tmp_path, successes):
    rate = pass_rate(successes)
    test = {"test/success": rate.rate, "test/success_low": rate.low, "test/success_high": rate.high}
    records = [{"step": 0, **test}, {"step": 0, "eval/success": 0.5}, {"step": 1, "reward": 0.25}]
    draw_curve(records, tmp_path / "curve.png", "title")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_logged_nothing_can_be_drawn(tmp_path):
    draw_curve([], tmp_path / "curve.png", "title")
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_the_reward_has_its_interval_and_crosses_where_there_was_no_gradient():
    records = [
        {"step": 1, "reward": 0.5, "reward_low": 0.25, "reward_high": 0.75},
        {"step": 2, "reward": 0.625, "reward_low": 0.5, "reward_high": 1.0, "no_gradient/cut": 1.0},
    ]
    axes = curve(records, "title").axes[0]
    band = axes.collections[0].get_paths()[0].vertices
    assert {tuple(point) for point in band} == {(1, 0.25), (1, 0.75), (2, 0.5), (2, 1.0)}
    crosses = next(x for x in axes.lines if x.get_label() == "no gradient from rewards")
    assert crosses.get_xydata().tolist() == [[2, 0.625]]
    assert "no gradient from rewards" in [text.get_text() for text in axes.get_legend().texts]


def test_the_updates_of_a_short_run_are_whole_numbers():
    axes = curve([{"step": n, "reward": 0.5} for n in (1, 2)], "t").axes[0]
    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_a_run_with_a_gradient_in_every_step_has_no_crosses():
    labels = [line.get_label() for line in curve([{"step": 1, "reward": 0.5}], "t").axes[0].lines]
    assert "no gradient from rewards" not in labels
