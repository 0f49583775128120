"""The learning curve is drawn from whatever a run has logged."""

from __future__ import annotations

import pytest

from rl.run.curve import draw_curve
from rl.run.metrics import pass_rate


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
