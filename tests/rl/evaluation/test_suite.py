"""Suites of data sets, from their file to one table."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rl
import rl.eval
from rl.errors import UsageError
from rl.evaluation.suite import check_words, read_suite, stratified_mean
from rl.run.metrics.intervals import pass_rate

SUITE = """
[settings]
episodes = 2
sampling.temperature = 0.5

[[set]]
name = "few"
env = "toy-copy"
tasks = 4

[[set]]
name = "more"
env = "toy-copy"
tasks = 6
episodes = 1
seed = 3
"""


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "suite.toml"
    path.write_text(SUITE)
    return path


def test_two_data_sets_make_one_table(suite, toy_model, tmp_path, capfd):
    out = tmp_path / "out"
    words = [f"suite={suite}", f"model={toy_model}", f"out={out}", "sampling.max_tokens=3"]
    assert rl.eval.main(words) == 0
    table, _ = capfd.readouterr()
    rows = table.splitlines()
    assert rows[0].split() == ["data", "set", "tasks", "episodes", "success", "95%", "interval"]
    assert rows[1].split()[:3] == ["few", "4", "8"]
    assert rows[2].split()[:3] == ["more", "6", "6"]
    assert rows[3].startswith("average over tasks      10     14")
    found = json.loads((out / "suite.json").read_text())
    few, more = (json.loads((out / n / "result.json").read_text()) for n in ("few", "more"))
    assert found["sets"] == {"few": few, "more": more}
    assert (few["temperature"], more["seed"]) == (0.5, 3)
    assert found["success"] == pytest.approx((4 * few["success"] + 6 * more["success"]) / 10)
    assert found["average_over_sets"] == pytest.approx((few["success"] + more["success"]) / 2)
    # The same line again plays nothing, and compares each data set with itself.
    assert rl.eval.main([*words, f"compare={out}"]) == 0
    table, progress = capfd.readouterr()
    assert progress.count("already") == 2
    assert table.splitlines()[1].split()[-4] == "+0.000"


@pytest.mark.parametrize("word", ["env=math", "env=code-sandbox", "--env.max_turns=2"])
def test_an_environment_beside_a_suite_is_refused(suite, word, capfd):
    """env=code-sandbox is the default, so that only the command line shows it."""
    assert rl.eval.main([f"suite={suite}", word]) == 1
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith(f"error: {word} must be left out with suite={suite}: each [[set]]")


@pytest.mark.parametrize(
    ("word", "there"),
    [
        ("episodes=8", "[settings] has episodes=2"),
        # The default of the command line.
        ("--sampling.temperature=1.0", "[settings] has sampling.temperature=0.5"),
        ("tasks=4", "set 2 has tasks=6"),
    ],
)
def test_a_word_that_contradicts_the_suite_is_refused(suite, word, there, toy_model, capfd):
    assert rl.eval.main([f"suite={suite}", f"model={toy_model}", word]) == 1
    word = word.removeprefix("--")
    assert capfd.readouterr().err.splitlines()[-1] == (
        f"error: {word} must be left out with suite={suite}, whose {there}: leave it out, or "
        "change the file"
    )


def test_settings_that_agree_with_a_suite_or_are_not_in_it_are_accepted(suite):
    config = rl.EvaluateConfig(suite=str(suite), episodes=2, threads=1)
    with pytest.raises(UsageError, match="set 2 has episodes=1"):
        read_suite(config)
    suite.write_text(SUITE.replace("episodes = 1\n", ""))
    check_words(config, [f"suite={suite}", "episodes=2", "threads=1"])
    few, more = read_suite(config)
    assert (few.config.episodes, more.config.episodes, more.config.threads) == (2, 2, 1)


def test_settings_of_a_policy_that_contradict_a_suite_are_refused_in_python(suite):
    suite.write_text(SUITE.replace("[settings]", '[settings]\npolicy.url = "http://a/v1"'))
    policy = {"name": "openai", "model": "m"}
    for one in read_suite(rl.EvaluateConfig(suite=str(suite), policy=policy)):
        assert one.config.policy.settings.url == "http://a/v1"
    other = rl.EvaluateConfig(suite=str(suite), policy=policy | {"url": "http://b/v1"})
    with pytest.raises(UsageError, match=r"policy.url=http://b/v1 must be left out"):
        read_suite(other)


def test_an_environment_beside_a_suite_is_refused_in_python(suite):
    with pytest.raises(UsageError, match=r"env \(toy-copy-v0\) must be left out with suite="):
        rl.evaluate(rl.EvaluateConfig(suite=str(suite), env="toy-copy"))


def test_a_suite_in_python(suite, toy_model):
    config = rl.EvaluateConfig(suite=str(suite), model=str(toy_model), sampling={"max_tokens": 3})
    played = rl.evaluate(config)
    assert played.success.count == 14
    assert len(played.groups) == 10


def test_a_stratified_mean_against_resampling_within_data_sets():
    rng = np.random.default_rng(0)
    values = [rng.binomial(1, 0.3, 200).astype(float), rng.binomial(1, 0.8, 150).astype(float)]
    mean = stratified_mean([pass_rate(v.tolist()) for v in values], [200, 150])
    assert mean.rate == pytest.approx(np.concatenate(values).mean())
    draws = [sum(rng.choice(v, len(v)).sum() for v in values) / 350 for _ in range(2000)]
    assert (mean.low, mean.high) == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=0.006)


def test_a_stratified_mean_of_data_sets_that_are_all_right_is_not_certain():
    right = pass_rate([1.0] * 3)
    one = stratified_mean([right], [3])
    assert (one.low, one.high) == pytest.approx((right.low, 1.0))
    two = stratified_mean([right, right], [3, 3])
    # Two independent distances of 1 - 0.4385, each with half the weight.
    assert (two.low, two.high) == pytest.approx((1 - (1 - 0.438503) / 2**0.5, 1.0), abs=1e-6)
    mixed = stratified_mean([pass_rate([1.0]), pass_rate([0.0])], [1, 1])
    assert 0 < mixed.low < mixed.rate == 0.5 < mixed.high < 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"must hold \[\[set\]\] tables"),
        ("[[sets]]\nname='a'", r"must hold \[\[set\]\] tables"),
        (
            "[settings]\nout='x'\n[[set]]\nname='a'\nenv='toy-copy'",
            r"\[settings\] has out: give it",
        ),
        ("[[set]]\nname='a'\nenv='math'\nenv.max_turns=1", r"its table: env = \{name = "),
        ("[[set]]\nname='a'", "set 1 needs a name and an env"),
        ("[[set]]\nname='a/b'\nenv='toy-copy'", "set 1 needs a name and an env"),
        ("[[set]]\nname='a'\nenv='toy-copy'\n" * 2, r"two sets have the same name \(a, a\)"),
        ("[[set]]\nname='a'\nenv='toy-copy'\ntask=3", r"set a: unknown key 'task'"),
    ],
)
def test_a_wrong_file_is_one_line(text, message, tmp_path):
    path = tmp_path / "suite.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_suite(rl.EvaluateConfig(suite=str(path)))
