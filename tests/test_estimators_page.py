"""docs/estimators.md shows the measured tables, and its statements hold."""

import json
from pathlib import Path

from benchmarks.estimators.bias_and_variance import RESULTS, page_tables
from rl.credit.algorithms import ALGORITHMS

PAGE = (Path(__file__).parents[1] / "docs" / "estimators.md").read_text(encoding="utf-8")
FINDINGS = json.loads(RESULTS.read_text(encoding="utf-8"))["findings"]


def noise(name, setting):
    (found,) = [f for f in FINDINGS if (f["name"], f["setting"]) == (name, setting)]
    return found["noise"]


def test_the_tables_are_the_results():
    for table in page_tables(FINDINGS):
        assert table in PAGE
    assert {f["name"] for f in FINDINGS if f["part"] == "rows"} <= set(ALGORITHMS)


def test_unbiased_estimators_have_the_exact_gradient():
    known = [f for f in FINDINGS if f["error"] is not None]
    assert len([f for f in known if f["unbiased"]]) > 30
    for f in known:
        assert f["error"] <= 3 and f["standard_error"] <= 0.02, f
    # Where theory gives no mean, less precision is enough to show a bias.
    assert all(f["standard_error"] <= 0.04 for f in FINDINGS)


def test_credit_by_turns_has_less_noise_where_early_turns_decide():
    grpo = noise("group-outcome baseline=mean std=none", "decided")
    for name in ("turn-gae lam=1 exact", "vine rollouts=9", "group-in-group std=none"):
        assert noise(name, "decided") < 0.7 * grpo
    grpo = noise("group-outcome baseline=mean std=none", "delayed")
    assert noise("turn-gae lam=1 exact", "delayed") < grpo
    assert noise("group-in-group std=none", "delayed") > grpo
