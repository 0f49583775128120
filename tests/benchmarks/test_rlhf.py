"""The arithmetic of the RLHF benchmark, and the hidden rule of its world."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning.rlhf import fallen_from_best, last_half, ppo_curve, reported, table
from benchmarks.studies.worlds.letters import Letter, LettersEnv, liking
from envs.env import EnvOptions

HOME = Path(__file__).resolve().parents[2]
TASK = Letter("Ann", ("tea", "rain"))


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        # 1 for the greeting, 0.5 for a topic, four times 0.5 for kind words, 1 for the thanks.
        ("dear Ann , the tea is lovely . it is calm . it is sweet . it is bright . thank you", 4.5),
        ("dear Ben , the tea is lovely . the rain is calm . thank you", 2.5),
        ("the tea is lovely . the tea is lovely . the tea is lovely .", 1.0),
        ("the tea is awful . the sea is dull . thank you Ann", -0.5),
        ("awful awful awful awful awful", -2.0),
        ("", 0.0),
        (" ".join(["awful"] * 25), -2.5),
        (" ".join(["the", "tea", *["is"] * 22, "."]), 0.5),
        (" ".join(["the", "tea", *["is"] * 23, "."]), 0.0),
    ],
)
def test_the_rule_is_that_of_its_table(text, reward):
    assert sum(liking(TASK, text).values()) == reward


def test_every_letter_is_in_one_split_and_its_author_is_careless():
    tasks = {s: LettersEnv(EnvOptions(split=s)).tasks for s in ("train", "validation", "test")}
    letters = [task[i] for task in tasks.values() for i in range(len(task))]
    assert len(letters) == len(set(letters)) == 20 * 24 * 23
    env, earned = LettersEnv(EnvOptions()), []
    for index in range(400):
        observation, _ = env.reset(seed=index, options={"task": index})
        name, one, other = re.fullmatch(r"To (\w+), about (\w+) and (\w+)\.", observation).groups()
        assert env.state.task == Letter(name, (one, other))
        _, reward, terminated, _, info = env.step(
            env.demonstrator(np.random.default_rng(index))(observation)
        )
        assert terminated and sum(info["rewards"].values()) == reward
        earned.append(reward)
    assert 0 < np.mean(earned) < 2 and -2.5 <= min(earned) < 0 < max(earned) <= 4.5


def test_kl_is_of_an_episode_and_the_curve_of_ppo_alone():
    names = {"shaping/reward_model": 2.0, "completions/mean_length": 12.5, "kl_coef": 0.1}
    names |= {"agreement/reward_model/pairs": 0.9, "agreement/reward_model/ranks": 0.8}
    step = {"step": 1, "reward": 1.5, "kl": 0.25, "num_tokens": 100.0, **names}
    (point,) = ppo_curve([{"step": 0, "eval/success": 1.0}, step], episodes=8)
    assert point["kl"] == 0.25 * 100 / 8 == 3.125
    assert (point["true"], point["proxy"], point["pairs"]) == (1.5, 2.0, 0.9)


def test_the_end_of_a_curve():
    rising = [{"true": float(x)} for x in range(8)]
    assert last_half(rising, "true") == 5.5 and last_half(rising[:3], "true") == 1.5
    assert fallen_from_best(rising, window=2) == 0.0
    hacked = [{"true": x} for x in (0.0, 2.0, 4.0, 1.0, 0.0)]
    assert fallen_from_best(hacked, window=2) == 3.0 - 0.5
    assert fallen_from_best(hacked[:2], window=5) == 0.0


def test_what_stages_say_is_read_from_the_log():
    log = """model=tiny: {not JSON's line}
stage 1/2, sft: python -m rl.sft seed=0
step 50/100  loss 0.5
{"last_loss": 0.5}
stage 2/2, pairs: python -m rl.distill
{"num_pairs": 7}
{"sft": "a/path", "pairs": "another"}
"""
    assert reported(log) == {"sft": {"last_loss": 0.5}, "pairs": {"num_pairs": 7}}


def row(gain):
    point = {"true": gain, "proxy": 2.0, "pairs": 0.9, "kl": 4.0}
    return {
        "sft_loss": [3.0, 1.0],
        "reward_model": {"accuracy": 0.95},
        "true_reward": {"sft": [1.0], "ppo": [1.0 + gain], "dpo": [2.0]},
        "ppo": [point, point],
        "kl_target": 4.0,
    }


def test_the_table_is_over_seeds():
    # Of 2, 3 and 4 the half width is t(0.975, 2) / sqrt(3) = 4.302653 / 1.732051.
    lines = {line["figure"]: line for line in table([row(1.0), row(2.0), row(3.0)])}
    ppo = lines["true reward, test prompts: ppo"]
    assert (ppo["mean"], ppo["each"]) == (3.0, [2.0, 3.0, 4.0])
    assert ppo["high"] - ppo["mean"] == pytest.approx(2.484138, abs=1e-5)
    assert lines["KL, nats an episode, last half of PPO"]["high"] == 4.0
    assert lines["the same, of its target"]["each"] == [1.0, 1.0, 1.0]


def test_the_documentation_shows_measured_values():
    results = json.loads((HOME / "benchmarks" / "results" / "rlhf.json").read_text())
    page = (HOME / "docs" / "preferences.md").read_text()
    shown = dict(re.findall(r"^\| (.+?) \| (.+? \[.+?\] \| .+?) \|$", page, flags=re.M))
    for line in results["table"]:
        each = ", ".join(f"{value:.2f}" for value in line["each"])
        measured = "{mean:.2f} [{low:.2f}, {high:.2f}] | ".format(**line) + each
        # A share of what another line shows.
        if line["figure"] != "the same, of its target":
            assert shown[line["figure"]] == measured
    for row in results["seeds"]:
        assert row["reward_model"]["accuracy_low"] >= 0.9 and row["seconds"] < 900
        assert row["true_reward"]["ppo"][1] > row["true_reward"]["sft"][2]
    assert table(results["seeds"]) == results["table"]
