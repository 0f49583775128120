import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from rl.credit.algorithm import Algorithm
from rl.credit.algorithms import ALGORITHMS


def differences(one, other):
    a, b = ALGORITHMS[one], ALGORITHMS[other]
    return {
        f.name: (getattr(a, f.name), getattr(b, f.name))
        for f in fields(Algorithm)
        if getattr(a, f.name) != getattr(b, f.name)
    }


def test_grpo_is_the_paper_without_kl():
    row = ALGORITHMS["grpo"]
    assert (row.advantage, row.std, row.kl_coef) == ("group-outcome", "unbiased", 0.0)
    assert (row.clip_low, row.clip_high, row.dual_clip) == (0.2, 0.2, None)
    assert row.aggregation == "seq-mean-token-mean"
    assert (row.epochs, row.minibatches) == (1, 1)


def test_dr_grpo_differs_from_grpo_in_its_two_divisors():
    assert differences("grpo", "dr-grpo") == {
        "std": ("unbiased", "none"),
        "aggregation": ("seq-mean-token-mean", "seq-mean-token-sum-norm"),
        "max_tokens": (None, 3000),
    }


def test_dapo_differs_from_grpo_in_clip_and_mean():
    assert differences("grpo", "dapo-loss") == {
        "clip_high": (0.2, 0.28),
        "aggregation": ("seq-mean-token-mean", "token-mean"),
    }


def test_ppo_row():
    row = ALGORITHMS["ppo"]
    assert (row.gamma, row.lam, row.whiten) == (1.0, 1.0, True)
    assert (row.clip_low, row.clip_high, row.value_clip) == (0.2, 0.2, 0.2)
    assert (row.value_coef, row.epochs, row.uses_values) == (0.1, 1, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gamma": 1.5}, r"gamma \(1.5\) must be from 0 to 1"),
        ({"gamma_turn": 1.5}, r"gamma_turn \(1.5\) must be from 0 to 1"),
        ({"correction": "clip"}, r"correction \(clip\) must be one of none, tis"),
        ({"correction_high": 0.9}, r"correction_low, correction_high \(0.5, 0.9\) must be from"),
        (
            {"correction": "tis", "old_logprobs": "sampling"},
            r"must be none without old_logprobs=update",
        ),
        ({"kl_target": 6.0}, r"kl_target \(6.0\) must be None without kl_coef"),
        ({"kl_target": 0.0, "kl_coef": 0.1}, r"kl_target \(0.0\) must be above 0, or None"),
        ({"kl_horizon": 0}, r"kl_horizon \(0\) must be >= 1"),
        ({"vine_rollouts": 0}, r"vine_rollouts \(0\) must be >= 1"),
        ({"turn_weight": -1.0}, r"turn_weight \(-1.0\) must be >= 0"),
        ({"lam_alpha": 0.0}, r"lam_alpha \(0.0\) must be above 0, or None"),
        ({"lam_alpha": 0.1}, r"lam_alpha \(0.1\) must be None without advantage=gae"),
        ({"lam": -0.1}, r"lam \(-0.1\) must be from 0 to 1"),
        ({"clip_low": -1.0}, r"clip_low \(-1.0\) must be >= 0"),
        ({"clip_high": -0.1}, r"clip_high \(-0.1\) must be >= 0"),
        ({"dual_clip": 1.0}, r"dual_clip \(1.0\) must be above 1, 0 or None"),
        (
            {"surrogate": "reinforce", "old_logprobs": "sampling"},
            r"^old_logprobs \(sampling\) must be update for surrogate=reinforce, which has no",
        ),
        (
            {"drop_divergence": 0.1, "mask_observations": False},
            r"drop_divergence \(0.1\) must be None without a mask",
        ),
        ({"kl_coef": -1.0}, r"kl_coef \(-1.0\) must be >= 0"),
        ({"entropy_coef": -1.0}, r"entropy_coef \(-1.0\) must be >= 0"),
        ({"value_coef": 0.5}, r"value_coef \(0.5\) must be 0 for advantage=group-outcome"),
        ({"value_clip": 0.0}, r"value_clip \(0.0\) must be above 0, or None"),
        ({"kl_place": "reward"}, r"kl_place \(reward\) must be loss for advantage=group-outcome"),
        ({"kl_estimator": "k4"}, r"kl_estimator \(k4\) must be one of k1, k2, k3, k3\+"),
        ({"advantage": "gae"}, r"value_coef \(0.0\) must be above 0 for advantage=gae"),
        ({"advantage": "grpo"}, r"advantage \(grpo\) must be one of group-outcome, batch-outcome"),
        ({"advantage": "gae", "value_coef": 0.1, "baseline": "leave-one-out"}, r"baseline \(leave"),
        ({"baseline": "length-weighted"}, r"must be mean without .* std=none"),
        ({"baseline": "best"}, r"baseline \(best\) must be one of mean, leave-one-out"),
        ({"surrogate": "trpo"}, r"surrogate \(trpo\) must be one of clip, reinforce"),
        ({"surrogate": "cispo", "dual_clip": 3.0}, r"must be None without surrogate=clip"),
        (
            {"surrogate": "gspo", "aggregation": "token-mean"},
            r"must be seq-mean-token-mean for surrogate=gspo: its ratio is a sequence's",
        ),
        (
            {"std": "mean", "advantage": "group-process"},
            r"std \(mean\) must be unbiased, biased or none without advantage=group-outcome",
        ),
        ({"std": "median"}, r"std \(median\) must be one of unbiased, biased, mean, none"),
        ({"token_rewards": "implicit"}, r"token_rewards \(implicit\) must be implicit for adv"),
        ({"advantage": "group-dense"}, r"token_rewards \(none\) must be implicit for advantage=g"),
        (
            {"token_rewards": "head", "advantage": "reward-to-go"},
            r"token_rewards \(head\) must be head for advantage=group-outcome only",
        ),
        ({"token_beta": 0.0}, r"token_beta \(0.0\) must be above 0"),
        ({"token_lr_ratio": 0.0}, r"token_lr_ratio \(0.0\) must be above 0"),
        ({"token_coef": -1.0}, r"token_coef \(-1.0\) must be >= 0"),
        ({"loss_coef": -1.0}, r"loss_coef \(-1.0\) must be >= 0"),
        ({"tau": -0.1}, r"tau \(-0.1\) must be >= 0"),
        ({"drop_divergence": 0.0}, r"drop_divergence \(0.0\) must be above 0, or None"),
        ({"ptx_coef": -1.0}, r"ptx_coef \(-1.0\) must be >= 0"),
        ({"ref_every": 5}, r"ref_every \(5\) must be 0 without kl_coef"),
        ({"ref_every": -1, "kl_coef": 0.1}, r"ref_every \(-1\) must be >= 0"),
        ({"kl_ratio": True}, r"kl_ratio \(True\) must be False without a divergence in the loss"),
        ({"old_logprobs": "now"}, r"old_logprobs \(now\) must be one of update, sampling"),
        ({"aggregation": "sum"}, r"aggregation \(sum\) must be one of token-mean"),
        ({"aggregation": "seq-mean-token-sum-norm"}, r"max_tokens \(None\) must be set"),
        ({"max_tokens": 0}, r"max_tokens \(0\) must be >= 1, or None"),
        ({"epochs": 0}, r"epochs \(0\) must be >= 1"),
        ({"minibatches": 0}, r"minibatches \(0\) must be >= 1"),
    ],
)
def test_a_wrong_choice_names_its_key(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(ALGORITHMS["grpo"], **changes)


def test_the_documentation_shows_the_table():
    """All of grpo's choices, and of every other row those that are not grpo's."""
    page = Path(__file__).resolve().parents[3] / "docs" / "algorithms.md"
    lines = page.read_text().split("\n\n")[2].splitlines()[2:]
    words = {"True": "yes", "False": "no", "None": "none"}
    expected = {}
    for name, row in ALGORITHMS.items():
        choices = {f.name: getattr(row, f.name) for f in fields(Algorithm)}
        told = (
            choices if name == "grpo" else {key: choices[key] for key in differences("grpo", name)}
        )
        expected[name] = {
            key: words.get(str(value), str(value).removesuffix(".0")) for key, value in told.items()
        }
    shown = {}
    for line in lines:
        name, *pairs = re.findall(r"`([^`]+)`", line)
        shown[name] = dict(pair.split("=") for pair in pairs)
    assert shown == expected and list(shown) == list(ALGORITHMS)
