import re
from pathlib import Path

import pytest

from rl.credit.algorithms import ALGORITHMS
from rl.credit.plugin import ADVANTAGES, SURROGATES
from rl.settings.parsing.files import flatten
from rl.settings.parsing.plain import to_plain
from tools.field_docs import field_docs

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "algorithms.md").read_text()


def choices(row):
    """Every choice of a row, by the keys of the command line."""
    return {key.removesuffix(".name"): value for key, value in flatten(to_plain(row)).items()}


def differences(one, other):
    a, b = choices(ALGORITHMS[one]), choices(ALGORITHMS[other])
    return {key: (a.get(key), b.get(key)) for key in {**a, **b} if a.get(key) != b.get(key)}


def test_grpo_is_the_paper_without_kl():
    row = ALGORITHMS["grpo"]
    assert (row.advantage.name, row.advantage.std, row.kl.coef) == ("group-outcome", "unbiased", 0)
    clip = row.surrogate
    assert (clip.clip_low, clip.clip_high, clip.dual_clip) == (0.2, 0.2, None)
    assert row.aggregation == "seq-mean-token-mean"
    assert (row.epochs, row.minibatches) == (1, 1)


def test_dr_grpo_differs_from_grpo_in_its_two_divisors():
    assert differences("grpo", "dr-grpo") == {
        "advantage.std": ("unbiased", "none"),
        "aggregation": ("seq-mean-token-mean", "seq-mean-token-sum-norm"),
        "max_tokens": (None, 3000),
    }


def test_dapo_differs_from_grpo_in_clip_and_mean():
    assert differences("grpo", "dapo-loss") == {
        "surrogate.clip_high": (0.2, 0.28),
        "aggregation": ("seq-mean-token-mean", "token-mean"),
    }


def test_ppo_row():
    row = ALGORITHMS["ppo"]
    assert (row.advantage.gamma, row.advantage.lam, row.whiten) == (1.0, 1.0, True)
    assert (row.surrogate.clip_low, row.surrogate.clip_high, row.value.clip) == (0.2, 0.2, 0.2)
    assert (row.value.coef, row.epochs, row.uses_values) == (0.1, 1, True)


GAE = {"advantage": "gae", "value.coef": 0.1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({**GAE, "advantage.gamma": 1.5}, r"advantage.gamma \(1.5\) must be from 0 to 1"),
        (
            {"advantage": "vine", "advantage.gamma_turn": 1.5},
            r"advantage.gamma_turn \(1.5\) must be from 0 to 1",
        ),
        ({"correction.kind": "clip"}, r"correction.kind \(clip\) must be one of none, geo-mask"),
        ({"correction.high": 0.9}, r"correction.low, high \(0.5, 0.9\) must be from"),
        (
            {"correction.kind": "tis", "old_logprobs": "sampling"},
            r"must be none without old_logprobs=update",
        ),
        ({"kl.target": 6.0}, r"kl.target \(6.0\) must be None without coef"),
        ({"kl.target": 0.0, "kl.coef": 0.1}, r"kl.target \(0.0\) must be above 0, or None"),
        ({"kl.horizon": 0}, r"kl.horizon \(0\) must be >= 1"),
        ({"advantage": "vine", "advantage.rollouts": 0}, r"advantage.rollouts \(0\) must be >= 1"),
        (
            {"advantage": "group-in-group", "advantage.turn_weight": -1.0},
            r"advantage.turn_weight \(-1.0\) must be >= 0",
        ),
        ({**GAE, "advantage.lam_alpha": 0.0}, r"lam_alpha \(0.0\) must be above 0, or None"),
        ({"advantage.lam_alpha": 0.1}, r"advantage=group-outcome has no option 'lam_alpha'"),
        ({**GAE, "advantage.lam": -0.1}, r"advantage.lam \(-0.1\) must be from 0 to 1"),
        ({"surrogate.clip_low": -1.0}, r"surrogate.clip_low \(-1.0\) must be >= 0"),
        ({"surrogate.clip_high": -0.1}, r"surrogate.clip_high \(-0.1\) must be >= 0"),
        ({"surrogate.clip_high": float("nan")}, r"surrogate.clip_high \(nan\) must be finite"),
        ({"surrogate.dual_clip": 1.0}, r"surrogate.dual_clip \(1.0\) must be above 1, 0 or None"),
        (
            {"surrogate": "reinforce", "old_logprobs": "sampling"},
            r"^old_logprobs \(sampling\) must be update for surrogate=reinforce, which has no",
        ),
        (
            {"correction.drop_divergence": 0.1, "mask_observations": False},
            r"correction.drop_divergence \(0.1\) must be None without a mask",
        ),
        ({"kl.coef": -1.0}, r"kl.coef \(-1.0\) must be >= 0"),
        ({"entropy_coef": -1.0}, r"entropy_coef \(-1.0\) must be >= 0"),
        ({"value.coef": 0.5}, r"value.coef \(0.5\) must be 0 for advantage=group-outcome"),
        ({"value.clip": 0.0}, r"value.clip \(0.0\) must be above 0, or None"),
        ({"kl.place": "reward"}, r"kl.place \(reward\) must be loss for advantage=group-outcome"),
        ({"kl.estimator": "k4"}, r"kl.estimator \(k4\) must be one of k1, k2, k3, k3\+"),
        ({"advantage": "gae"}, r"value.coef \(0.0\) must be above 0 for advantage=gae"),
        ({**GAE, "advantage.baseline": "leave-one-out"}, r"advantage=gae has no option 'baseline'"),
        ({"advantage.baseline": "length-weighted"}, r"must be mean without std=none"),
        ({"advantage.baseline": "best"}, r"advantage.baseline \(best\) must be one of mean, leave"),
        (
            {"surrogate": "cispo", "surrogate.dual_clip": 3.0},
            r"surrogate=cispo has no option 'dual_clip'",
        ),
        (
            {"surrogate": "gspo", "aggregation": "token-mean"},
            r"must be seq-mean-token-mean for surrogate=gspo: its ratio is a sequence's",
        ),
        (
            {"advantage": "group-process", "advantage.std": "mean"},
            r"advantage.std \(mean\) must be one of unbiased, biased, none",
        ),
        (
            {"advantage.std": "median"},
            r"std \(median\) must be one of unbiased, biased, mean, none",
        ),
        (
            {"token_rewards.kind": "implicit"},
            r"token_rewards.kind \(implicit\) must be none or head for advantage=group-outcome",
        ),
        (
            {"advantage": "group-dense"},
            r"token_rewards.kind \(none\) must be implicit for advantage=group-dense",
        ),
        (
            {"token_rewards.kind": "head", "advantage": "reward-to-go"},
            r"token_rewards.kind \(head\) must be none for advantage=reward-to-go",
        ),
        ({"token_rewards.beta": 0.0}, r"token_rewards.beta \(0.0\) must be above 0"),
        ({"token_rewards.lr_ratio": 0.0}, r"token_rewards.lr_ratio \(0.0\) must be above 0"),
        (
            {
                "advantage": "group-dense",
                "token_rewards.kind": "implicit",
                "advantage.token_coef": -1.0,
            },
            r"advantage.token_coef \(-1.0\) must be >= 0",
        ),
        (
            {"surrogate": "oreal", "surrogate.loss_coef": -1.0},
            r"surrogate.loss_coef \(-1.0\) must be >= 0",
        ),
        ({"surrogate": "dro", "surrogate.tau": -0.1}, r"surrogate.tau \(-0.1\) must be >= 0"),
        ({"correction.drop_divergence": 0.0}, r"drop_divergence \(0.0\) must be above 0, or None"),
        ({"ptx_coef": -1.0}, r"ptx_coef \(-1.0\) must be >= 0"),
        ({"kl.ref_every": 5}, r"kl.ref_every \(5\) must be 0 without coef"),
        ({"kl.ref_every": -1, "kl.coef": 0.1}, r"kl.ref_every \(-1\) must be >= 0"),
        ({"kl.ratio": True}, r"kl.ratio \(True\) must be False without a divergence in the loss"),
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
        ALGORITHMS["grpo"].changed(changes)


def shown(value):
    words = {"True": "yes", "False": "no", "None": "none"}
    return words.get(str(value), str(value).removesuffix(".0"))


def table(heading):
    """The rows of the page's table that begins with this line."""
    return PAGE.split(heading)[1].split("\n\n")[0].splitlines()[2:]


def documented(name):
    """What the page says of a row: of grpo all, of others what is not grpo's.

    Where a plug-in is another, its options that are not its own defaults.
    """
    grpo, row = choices(ALGORITHMS["grpo"]), ALGORITHMS[name]
    if name == "grpo":
        return grpo
    plain = dict(grpo)
    for key, default in (("advantage", row.advantage), ("surrogate", row.surrogate)):
        if default.name != grpo[key]:
            own = {f"{key}.{k}": v for k, v in to_plain(type(default)()).items() if k != "name"}
            plain.update(own)
    return {k: v for k, v in choices(row).items() if k not in plain or plain[k] != v}


def test_the_documentation_shows_the_table():
    expected = {
        name: {key: shown(value) for key, value in documented(name).items()} for name in ALGORITHMS
    }
    found = {}
    for line in table("| `algo=` | its choices;"):
        name, *pairs = re.findall(r"`([^`]+)`", line)
        found[name] = dict(pair.split("=") for pair in pairs)
    assert found == expected and list(found) == list(ALGORITHMS)


@pytest.mark.parametrize(
    ("heading", "plug_ins"),
    [("| `algo.advantage=` |", ADVANTAGES), ("| `algo.surrogate=` |", SURROGATES)],
    ids=["advantages", "surrogates"],
)
def test_the_documentation_shows_every_plug_in(heading, plug_ins):
    """Its first sentence, and its options with their defaults."""
    found = {}
    for line in table(heading):
        name, sentence, options = (cell.strip() for cell in line.strip("|").split(" | "))
        found[name.strip("`")] = (sentence, dict(re.findall(r"`(\w+)=([^`]+)`", options)))
    expected = {}
    for name in plug_ins.names():
        plugin = plug_ins.find(name)
        if plugin.__module__.startswith("rl.credit."):
            options = {k: shown(v) for k, v in to_plain(plugin()).items() if k != "name"}
            expected[name] = (plugin.__doc__.split("\n")[0], options)
            assert set(field_docs(plugin)) >= set(options)
    assert found == expected
