"""What studies compute: shares, corrupted chains, choices among samples, intervals."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.studies.crosscheck import Sample, check_rates, chosen
from benchmarks.studies.difficulty import BINS, shares
from benchmarks.studies.tables import as_text, interval
from benchmarks.studies.transfer import EPISODES, RUNS, TRAININGS, UPDATES
from benchmarks.studies.worlds.reflective import KINDS, PLACES, chain, corrupted, terms_of
from envs.math.generated import GeneratedTasks
from rl.settings.evaluate import EvaluateConfig
from rl.settings.finetuning import SFTConfig
from rl.settings.parsing.command_line import parse
from rl.settings.train import TrainConfig

QUESTION, ANSWER = "Compute 7 + 5 - 4 + 8.", "16"


def group(right, size=8):
    return [1.0] * right + [0.0] * (size - right)


@pytest.mark.parametrize(
    ("std", "weight"),
    [
        # With k of n right the sum of absolute centred rewards is 2 k (n - k) / n; the deviation
        # (over n - 1) is sqrt(k (n - k) / (n (n - 1))), the mean k / n.
        ("none", lambda k, n: 2 * k * (n - k) / n),
        ("unbiased", lambda k, n: 2 * math.sqrt(k * (n - k) * (n - 1) / n)),
        ("mean", lambda k, n: 2 * (n - k)),
    ],
)
def test_shares_are_those_of_the_formulas(std, weight):
    rights = (0, 1, 4, 7, 8)
    weights = [weight(k, 8) if 0 < k < 8 else 0.0 for k in rights]
    found = shares([group(k) for k in rights], std)
    assert list(found) == list(BINS)
    assert list(found.values()) == pytest.approx([w / sum(weights) for w in weights], abs=1e-5)


def test_a_corruption_is_the_right_chain_with_one_error_that_is_carried_on():
    assert terms_of(QUESTION) == (7, [5, -4, 8])
    assert chain(7, [(5, 0), (-4, 0), (8, 0)]) == "7 + 5 = 12\n12 - 4 = 8\n8 + 8 = 16\n\\boxed{16}"
    assert corrupted(QUESTION, "omission", "start", random.Random(0)) == (
        "7 - 4 = 3\n3 + 8 = 11\n\\boxed{11}"
    )
    assert corrupted(QUESTION, "omission", "end", random.Random(0)) == (
        "7 + 5 = 12\n12 - 4 = 8\n\\boxed{8}"
    )
    lines = corrupted(QUESTION, "extraneous", "middle", random.Random(0)).split("\n")
    assert lines[0] == "7 + 5 = 12" and lines[1].startswith("12 ") and len(lines) == 5
    lines = corrupted(QUESTION, "arithmetic", "middle", random.Random(0)).split("\n")
    assert lines[0] == "7 + 5 = 12" and lines[1].startswith("12 - 4 = ") and len(lines) == 4


@given(st.integers(0, 1023), st.sampled_from(KINDS), st.sampled_from(PLACES), st.integers(0, 99))
def test_a_corrupted_chain_ends_wrong(index, kind, place, seed):
    task = GeneratedTasks("test", 0, "arithmetic", 1)[index]
    first, terms = terms_of(task.question)
    assert chain(first, [(t, 0) for t in terms]).endswith(rf"\boxed{{{task.answer}}}")
    wrong = corrupted(task.question, kind, place, random.Random(seed))
    assert not wrong.endswith(rf"\boxed{{{task.answer}}}")
    assert len(wrong.split("\n")) - len(terms) - 1 == {"extraneous": 1, "omission": -1}.get(kind, 0)


def sample(public, right, answers, agrees=True):
    return Sample(public, right, {10: agrees} if public else {}, answers)


def test_precision_and_recall_are_of_the_programs_that_pass_the_public_tests():
    samples = [
        sample(3, True, ("1",)),
        sample(3, True, ("1",), agrees=False),
        sample(3, False, ("1",), agrees=False),
        sample(3, False, ("1",)),
        sample(3, False, ("1",), agrees=False),
        sample(1, False, ("1",), agrees=False),
        sample(0, False, ("1",)),
    ]
    assert check_rates(samples, 3, 10) == pytest.approx(
        {"wrong": 3 / 5, "rejected": 3 / 5, "precision": 2 / 3, "recall": 2 / 3}
    )
    assert check_rates(samples, 1, 10) == pytest.approx(
        {"wrong": 4 / 6, "rejected": 4 / 6, "precision": 3 / 4, "recall": 3 / 4}
    )


def test_each_rule_submits_its_own_sample():
    samples = [
        sample(0, False, ("a",)),
        sample(1, False, ("b",)),
        sample(0, False, ("a",)),
        sample(3, True, ("c",)),
        sample(3, True, ("c",)),
        sample(0, False, ("a",)),
        sample(0, False, None),
    ]
    assert [samples.index(one) for one in chosen(samples, 1).values()] == [0, 1, 0, 3, 3]
    assert [samples.index(one) for one in chosen(samples, 3).values()] == [0, 3, 0, 3, 3]


def test_an_interval_is_student_s():
    # t(0.975, 2) = 4.302653, the standard error of 1, 2, 3 is 1 / sqrt(3).
    found = interval([1.0, 2.0, 3.0])
    assert found.pop("each") == [1.0, 2.0, 3.0]
    assert list(found.values()) == pytest.approx([2.0, 2 - 2.484138, 2 + 2.484138], abs=1e-5)
    assert math.isnan(interval([1.0])["low"])
    assert as_text([{"row": "a", "value": {"mean": 0.5, "low": 0.25, "high": 12.0}}]) == (
        "| row | value |\n| --- | --- |\n| a | 0.500 [0.250, 12.0] |\n"
    )


def test_trainings_of_the_transfer_study_have_as_many_updates_and_episodes():
    configs = {"rl.train": TrainConfig, "rl.sft": SFTConfig, "rl.eval": EvaluateConfig}
    parsed = {
        name: parse(configs[module], words, command=module, presets={})
        for name, (module, *words) in RUNS.items()
    }
    for name in TRAININGS:
        config = parsed[name]
        assert config.steps == UPDATES and config.optimizer.lr == 4e-4
        if isinstance(config, TrainConfig):
            assert config.prompts * config.group_size == EPISODES
        else:
            assert config.batch_size == EPISODES and config.demonstrations == UPDATES * EPISODES
    parts = {part.env_id: part.options for part in parsed["warm start"].env.options.parts()}
    for name in ("knights-knaves", "math"):
        played = parsed[f"reinforcement on {name}"].env
        assert played.options == parts[played.env_id]
        measured = parsed[f"success on {name}"].env
        assert (measured.env_id, measured.options) == (played.env_id, played.options)
