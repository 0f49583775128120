"""The numbers of an evaluation, from episodes to keys."""

from __future__ import annotations

import numpy as np
import pytest

from agents.completion import Completion, FinishReason
from agents.segment import Segment
from rl.errors import UsageError
from rl.evaluation.comparison import Evaluated, compare, warning
from rl.evaluation.measures import WITHIN, Sample, measures, points_of
from rl.evaluation.picture import picture
from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn
from rl.run.evaluation_table import columns_of, table_text
from rl.run.metrics.intervals import pass_rate

RESULT = {"env": "e-v0", "split": "test", "score": "right", "model": "A", "played": "8 of 8 tasks"}
RESULT |= {"temperature": 1.0, "seed": 0}
ROWS = {"episodes": 32, "top_p": 1.0, "top_k": 0, "max_tokens": 9}


def episode(right, task=0, tokens=1, action="x", observation=""):
    """An episode with a success score and a number of sampled tokens."""
    segment = Segment()
    segment.append_context([1], turn=0)
    versions, logprobs = (0,) * tokens, (0.0,) * tokens
    ids = (2,) * tokens
    segment.append_completion(Completion(ids, logprobs, versions, FinishReason.STOP_TOKEN), turn=0)
    turn = Turn(action, "", "stop_token", tokens, {"right": right}, {"right": right})
    return Trajectory(
        "e-v0", {}, task, 0, 0, [segment], [turn], terminated=True, observation=observation
    )


def groups(by_task):
    return [
        TrajectoryGroup([episode(r, task, observation=str(task)) for r in rights])
        for task, rights in enumerate(by_task)
    ]


def test_pass_at_k_goes_up_to_the_episodes_that_every_task_has():
    found = measures(Sample(groups([[1.0, 0.0, 0.0, 0.0], [1.0, 0.0]]), "right", 1.0))
    passes = {key: value for key, value in found.items() if key.startswith("pass@")}
    passes = {key: value for key, value in passes.items() if "/" not in key}
    assert passes == pytest.approx({"pass@1": (1 / 4 + 1 / 2) / 2, "pass@2": (1 / 2 + 1) / 2})
    assert found["pass@1/low"] < passes["pass@1"] < found["pass@1/high"]


@pytest.mark.parametrize(("best", "expected"), [(1.0, [0.5, 5 / 6]), (2.5, [0.25, 0.5])])
def test_pass_at_k_counts_episodes_with_the_best_return(best, expected):
    """Of four episodes two have it where it is 1, one where it is 2.5; rounding costs nothing."""
    found = measures(Sample(groups([[0.0, 1.0, best - 1e-9, 0.5]]), "", best))
    assert [found["pass@1"], found["pass@2"]] == pytest.approx(expected)
    assert ("maj@2" in found) == (best == 1.0)


def test_k_selects_the_reported_values_and_one_episode_has_none():
    found = measures(Sample(groups([[1.0, 0.0, 1.0, 0.0]] * 3), "right", 1.0, ks=(1, 3)))
    assert points_of(found, "pass@") == [(1, 0.5), (3, 1.0)]
    assert [k for k, _ in points_of(found, "maj@")] == [1, 3]
    assert not points_of(measures(Sample(groups([[1.0], [0.0]]), "right", 1.0)), "pass@")
    assert measures(Sample([], "right", 1.0)) == {}


def test_answers_votes_and_budgets_of_tokens():
    rights = [(1.0, 4, "A"), (1.0, 20, "a"), (0.0, 9, "B")]
    task = TrajectoryGroup([episode(r, tokens=n, action=text) for r, n, text in rights])
    found = measures(Sample([task], "right", 1.0), rewards=[[0.0, 1.0, 2.0]])
    assert points_of(found, "maj@") == [
        (1, pytest.approx(2 / 3)),
        (2, pytest.approx(2 / 3, abs=0.03)),
    ]
    assert points_of(found, "best@")[1] == (2, pytest.approx(1 / 3))
    assert found["answers/distinct"] == 2
    assert points_of(found, "success_within_tokens/") == [
        (4, pytest.approx(1 / 3)),
        (8, pytest.approx(1 / 3)),
        (16, pytest.approx(1 / 3)),
        (32, pytest.approx(2 / 3)),
    ]
    assert (found["passes"], found["passes/std"]) == (3, pytest.approx(1 / np.sqrt(3)))


def test_a_paired_comparison_and_its_warning():
    ours, theirs = [[1.0]] * 6 + [[0.0]] * 2, [[0.0]] * 8
    this = Evaluated(RESULT, groups(ours))
    other = Evaluated(RESULT | {"model": "B"}, groups(theirs))
    numbers = compare(this, other, 1.0, ())
    assert (numbers["compare/model"], numbers["compare/difference"]) == ("B", 0.75)
    assert (numbers["compare/p_value"], numbers["compare/p_value_by"]) == (0.03125, "exact")
    assert numbers["compare/p_value_wilcoxon_one_sided"] == pytest.approx(1 / 64)
    assert warning(numbers) == ""
    few = compare(Evaluated(RESULT, groups([[1.0]] * 5 + [[0.0]] * 3)), other, 1.0, ())
    assert "within noise (p = 0.062)" in warning(few)
    same = compare(other, other, 1.0, ())
    assert (same["compare/difference"], same["compare/p_value"]) == (0.0, 1.0)


def test_a_comparison_needs_the_same_tasks():
    this = Evaluated(RESULT, groups([[1.0]] * 3))
    with pytest.raises(UsageError, match="split is 'train' there and 'test' here"):
        compare(this, Evaluated(RESULT | {"split": "train"}, this.groups), 1.0, ())
    moved = [TrajectoryGroup([episode(1.0, task, observation="?")]) for task in range(3)]
    with pytest.raises(UsageError, match="task 0 differs"):
        compare(this, Evaluated(RESULT, moved), 1.0, ())
    with pytest.raises(UsageError, match="1 tasks were played by both"):
        compare(this, Evaluated(RESULT, this.groups[:1]), 1.0, ())


def test_the_picture_shows_both_models():
    sample = Sample(groups([[1.0, 0.0, 1.0, 0.0]] * 8), "right", 1.0)
    other = Evaluated(RESULT | {"model": "B"}, sample.groups)
    result = RESULT | measures(sample) | compare(Evaluated(RESULT, sample.groups), other, 1.0, ())
    left, middle, right = picture(result).axes
    labels = [line.get_label() for line in left.get_lines()]
    assert labels == ["pass@k", "maj@k", "pass@k of B", "maj@k of B"]
    assert left.get_lines()[0].get_xdata().tolist() == [1, 2, 4]
    assert "budget" in middle.get_xlabel()
    assert [line.get_label() for line in middle.get_lines()] == ["A", "B"]
    assert "difference of pass@k" in right.get_ylabel()
    assert right.get_lines()[0].get_ydata().tolist() == [0, 0, 0]
    assert len(picture(RESULT | measures(sample)).axes) == 2


def columns(result):
    """The rows of a comparison by their labels."""
    return {label: cells for label, *cells in columns_of(result)}


def test_both_models_are_columns_with_paired_differences():
    """Six of eight tasks: the model is right in two of four episodes, the other one in none."""
    ours = Sample(groups([[1.0, 0.0, 1.0, 0.0]] * 6 + [[0.0] * 4] * 2), "right", 1.0)
    theirs = groups([[0.0] * 4] * 6 + [[0.0, 0.0, 0.0, 1.0]] * 2)
    result = RESULT | {"success": 0.375, "success_low": 0.2, "success_high": 0.6} | measures(ours)
    other = Evaluated(RESULT | {"model": "B"}, theirs)
    result |= compare(Evaluated(RESULT, ours.groups), other, 1.0, ())
    # pass@2 of two right of four is 1 - 1 / 6, and of one right of four 1 / 2.
    difference = (6 * 5 / 6 - 2 * 1 / 2) / 8
    assert result["compare/difference/pass@2"] == pytest.approx(difference)
    low, high = (result[f"compare/difference/pass@2/{end}"] for end in ("low", "high"))
    assert low < difference < high
    assert result["compare/difference/pass@1"] == pytest.approx(result["compare/difference"])
    assert result["compare/difference/pass@1/low"] == pytest.approx(
        result["compare/difference_low"]
    )
    assert (result["compare/maj@1"], result["compare/tokens/total"]) == (1 / 16, 32)
    rows = columns(result)
    assert rows["95% intervals"] == ["A", "B", "difference, paired by 8 tasks"]
    assert rows["pass@2"][2] == f"{difference:+.3f} [{low:+.3f}, {high:+.3f}]"
    assert [cell[:5] for cell in rows["pass@4"]] == ["0.750", "0.250", "+0.50"]
    assert rows["maj@4"][2] == ""
    assert rows["sampled tokens in all"] == ["32", "32", ""]
    lines = table_text(ROWS | result).splitlines()
    (line,) = (line for line in lines if line.startswith("pass@2"))
    assert "0.625 [" in line
    assert "0.125 [" in line
    assert f"{difference:+.3f} [" in line


def test_budgets_of_tokens_of_either_model_are_those_of_both():
    short = [TrajectoryGroup([episode(1.0, t, tokens=4, observation=str(t))]) for t in range(6)]
    long = [TrajectoryGroup([episode(1.0, t, tokens=30, observation=str(t))]) for t in range(6)]
    numbers = compare(Evaluated(RESULT, short), Evaluated(RESULT, long), 1.0, ())
    ours, theirs = points_of(numbers, WITHIN), points_of(numbers, f"compare/{WITHIN}")
    assert ours == [(4, 1.0), (16, 1.0), (32, 1.0)]
    assert theirs == [(4, 0.0), (16, 0.0), (32, 1.0)]
    assert numbers[f"{WITHIN}32/low"] == pytest.approx(pass_rate([1.0] * 6).low)


def test_best_of_k_of_the_other_model_by_the_reward_model():
    ours = [[1.0, 0.0]] * 4
    this = Evaluated(RESULT, groups(ours))
    numbers = compare(this, this, 1.0, (), lambda sample: sample.successes)
    assert (numbers["compare/best@1"], numbers["compare/best@2"]) == (0.5, 1.0)
    assert "compare/best@2" not in compare(this, this, 1.0, ())
