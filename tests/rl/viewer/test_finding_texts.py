"""The sentences of findings, and findings about time, from the records of steps alone."""

from __future__ import annotations

import re

import pytest

from agents.completion import Completion, FinishReason
from rl.rollout.trajectory import Segment, Trajectory, Turn
from rl.viewer.finding import Played, RunData
from rl.viewer.findings import findings

END = FinishReason.STOP_TOKEN
SINGULARS = re.compile(
    r"\b1 (of 1 )?(steps|episodes|updates|groups|tasks|answers|tokens|validations)\b"
    r"|\bof the last 1\b|\b0 steps before the end"
)


def records(count, **columns):
    named = {name.replace("__", "/"): value for name, value in columns.items()}
    return [{"step": n, "num_groups": 2} | named for n in range(1, count + 1)]


def found(run):
    return {finding.key: finding for finding in findings(run)}


@pytest.mark.parametrize(
    ("columns", "key", "title"),
    [
        (
            {"completions__clipped_ratio": 0.5},
            "answers_cut",
            "50% of the answers of the last step were cut at the token limit.",
        ),
        (
            {"failures": 1.0, "failures__EnvFailure": 1.0},
            "failures",
            "1 episode (12%) of the last step failed: EnvFailure (1).",
        ),
        (
            {"frac_reward_zero_std": 1.0},
            "tied_rewards",
            "100% of the groups of the last step had equal rewards.",
        ),
        (
            {"staleness__oldest": 1.0},
            "stale_sampler",
            "The sampler was up to 1 update behind the learner; staleness=0 allows 0.",
        ),
        ({"scores__format": 0.0}, "format", "format is 0.00 over the last step."),
        (
            {"tools__failure_frequency": 0.8},
            "format",
            "80% of the tool calls of the last step failed.",
        ),
        (
            {"no_gradient__none_succeeded": 1.0},
            "tied_rewards",
            "The only step had no gradient from rewards: all rewards were equal: no episode "
            "succeeded.",
        ),
    ],
)
def test_a_finding_of_one_step_is_in_the_singular(columns, key, title):
    finding = found(RunData(records(1, **columns), config={"group_size": 4}))[key]
    assert finding.title == title
    assert not SINGULARS.search(finding.title + finding.detail)
    several = found(RunData(records(3, **columns), config={"group_size": 4}))[key]
    assert (several.title, several.detail) != (title, finding.detail)


def test_one_update_of_age_is_in_the_singular():
    shares = {"staleness__oldest": 1.0, "staleness__effective_share__1": 0.3}
    finding = found(RunData(records(1, **shares), config={"staleness": 1}))["stale_sampler"]
    assert finding.title == "Tokens that were 1 update old counted as only 30% of their number."


@pytest.mark.parametrize(
    ("without", "detail"),
    [
        ((1, 2, 3, 4), " they taught nothing. No step had a gradient."),
        ((2,), " it taught nothing. The last step had a gradient."),
        ((4,), " it taught nothing. The last step with a gradient was 1 step before the end."),
        ((3, 4), " The last step with a gradient was 2 steps before the end."),
    ],
)
def test_the_last_gradient_is_named_in_words(without, detail):
    steps = records(4)
    for step in without:
        steps[step - 1]["no_gradient/equal"] = 1.0
    finding = found(RunData(steps))["tied_rewards"]
    assert finding.detail.endswith(detail)
    assert not SINGULARS.search(finding.detail)


def test_one_repeated_episode_is_in_the_singular():
    pair = []
    for member in range(2):
        segment = Segment()
        segment.append_context([6], 0)
        segment.append_completion(Completion([7] * 7, [-5.0] * 7, [0] * 7, END), 0)
        turns = [Turn("7", "", END, 7)]
        ended = {"terminated": True, "outcome": 0.0}
        pair.append(Trajectory("toy", {}, 0, 0, member, [segment], turns, **ended))
    finding = found(RunData([], [Played("step-000001", 1, pair)]))["identical"]
    assert "(1 of 1 group)" in finding.title
    assert "1 of 2 episodes repeats another one of its group" in finding.detail


# ---- time ----------------------------------------------------------------------------------------


def test_an_environment_that_holds_all_other_episodes_for_most_of_a_step():
    held = {"time__wall": 8.0, "time__policy__held": 7.2, "time__rollout__environment": 7.8}
    finding = found(RunData(records(3, **held)))["held"]
    assert (finding.severity, finding.steps) == ("medium", (1, 2, 3))
    assert finding.title == (
        "For 90% of the time of the last 3 steps, the environment's own code held all other "
        "episodes."
    )
    assert "21.6 of 24 s" in finding.detail
    assert "make it async and await there, or set blocking = True in its class" in finding.advice
    assert found(RunData(records(1, **held)))["held"].title.startswith("For 90% of the last step,")


@pytest.mark.parametrize(
    ("seconds", "severity"), [(0.5, None), (2.0, "low"), (3.9, "low"), (4.0, "medium")]
)
def test_a_hold_counts_by_its_share_of_the_time(seconds, severity):
    run = RunData(records(2, time__wall=8.0, time__policy__held=seconds))
    assert {f.severity for f in findings(run)} == ({severity} if severity else set())


def test_steps_without_a_ledger_hold_nothing():
    assert found(RunData(records(2))) == {}
    assert found(RunData(records(2, time__wall=0.0, time__policy__held=0.0))) == {}
