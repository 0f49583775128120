"""reference-qa-v0: who judges what, what it earns, and how a judge's failure ends an episode."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

import envs
from envs import Action, EnvFailure
from envs.datasets import Row
from envs.play import play
from envs.reference.env import ReferenceQAEnv, ReferenceQAOptions
from envs.reference.judges import JudgeFailure, Judgement
from envs.reference.reports import CarelessReader, ReportTasks, read
from envs.reference.rows import questions_from
from envs.reference.task import ReferenceTask

FLOOD = ReferenceTask("Why was the mill of Rumi closed?", "a flood in the cellar")


def make(service=None, /, **options) -> ReferenceQAEnv:
    services = None if service is None else {"judge": service}
    env = ReferenceQAEnv(ReferenceQAOptions(**options), services)
    env.env_id = "reference-qa-v0"
    env.tasks = [FLOOD]
    assert env.reset(seed=0)[0] == FLOOD.question
    return env


@pytest.mark.parametrize("options", [{}, {"reward": "soft"}, {"sentences": 12, "reward": "soft"}])
def test_the_contract(options):
    env = envs.make("reference-qa", **options)
    try:
        envs.check_env(env)
    finally:
        env.close()


@pytest.mark.parametrize(
    ("action", "binary", "soft"),
    [
        ("Let me see.\na flood in the cellar", 1.0, 1.0),
        ("Flood in the cellar.\n\n", 1.0, 1.0),
        ("a flood in the roof", 0.0, 4 / 6),
        ("a flood in the cellar\nI am sure.", 0.0, 0.0),
        ("", 0.0, 0.0),
        (Action("a flood in the cellar", "length"), 0.0, 0.0),
    ],
)
def test_the_rule_judges_the_last_line(action, binary, soft):
    for reward, worth in (("binary", binary), ("soft", soft)):
        env = make(reward=reward)
        last = env.step(action)
        env.close()
        assert last.terminated
        assert last.info["rewards"] == {"judge": pytest.approx(worth)}
        answered = bool(action) and not isinstance(action, Action)
        assert last.info["scores"] == {
            "correct": binary,
            "probability": pytest.approx(soft),
            "answered": float(answered),
        }


def test_an_injected_judge_decides_and_is_not_asked_about_nothing():
    asked = []

    async def judge(question, reference, answer):
        asked.append((question, reference, answer))
        return Judgement("flood" in answer, 0.8)

    for reward, worth in (("binary", [1.0, 0.0]), ("soft", [0.8, 0.2])):
        env = make(judge, reward=reward)
        earned = []
        for action in ("hm\nwater, a flood", "rust"):
            env.reset(seed=0)
            earned.append(env.step(action).reward)
        env.reset(seed=0)
        assert env.step(" \n").reward == 0.0
        assert earned == [pytest.approx(one) for one in worth]
    assert (
        asked
        == [(FLOOD.question, FLOOD.reference, said) for said in ("water, a flood", "rust")] * 2
    )


def test_a_judges_failure_is_the_environments_and_never_a_reward():
    def broken(retryable):
        async def judge(question, reference, answer):
            raise JudgeFailure("said MAYBE", retryable=retryable)

        return judge

    for retryable in (True, False):
        env = make(broken(retryable))
        with pytest.raises(EnvFailure, match="reference-qa-v0: said MAYBE") as failed:
            env.step("a flood")
        assert failed.value.retryable is retryable


async def test_a_judge_that_hangs_is_a_failure():
    async def judge(question, reference, answer):
        await asyncio.sleep(60)

    env = make(judge, step_timeout_s=0.05)
    await env.areset(seed=0)
    with pytest.raises(EnvFailure, match="longer than step_timeout_s") as late:
        await env.astep("a flood")
    assert late.value.retryable


def test_an_endpoint_that_is_away_gives_no_reward():
    env = make(judge="http://127.0.0.1:9/v1", judge_model="fair-1", judge_retries=0)
    with pytest.raises(EnvFailure, match=r"the judge 'fair-1' at http://127\.0\.0\.1:9/v1/chat"):
        env.step("a flood")
    env.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"reward": "hard"}, r"reward \('hard'\) must be one of binary, soft"),
        ({"sentences": 0}, r"sentences \(0\) must be from 1 to 12"),
        ({"judge": "gpt"}, r"judge \('gpt'\) must be 'rule' or begin with http://"),
        ({"judge": "http://x/v1"}, "needs judge_model, its name there"),
        (
            {"judge": "http://x/v1", "judge_model": "m", "judge_key": "NO_SUCH_KEY"},
            r"judge_key \('NO_SUCH_KEY'\) names no environment variable that is set",
        ),
        ({"judge_retries": -1}, r"a judge's retries \(-1\) must be >= 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        ReferenceQAOptions(**options)


# ---- generated reports ----------------------------------------------------------------------


def test_a_report_says_what_it_asks():
    for sentences in (1, 3, 12):
        tasks = ReportTasks("train", 0, sentences)
        for task in map(tasks.__getitem__, range(200)):
            *lines, question = task.question.split("\n")
            assert len(lines) == sentences and question.startswith("Why was the ")
            assert sum(task.reference in line for line in lines) == 1
            assert read(task.question) == task.reference
    with pytest.raises(ValueError, match="does not say what it asks"):
        read("Why was the mill of Rumi closed?")


def test_careless_readers_err_as_often_as_they_should():
    rng = np.random.default_rng(0)
    tasks, right, part = ReportTasks("train", 0, 3), 0, 0
    for task in map(tasks.__getitem__, range(2000)):
        said = CarelessReader(rng)(task.question)
        right += said == task.reference
        part += " in " not in said
    # The right sentence: found, or hit by chance; then the whole phrase of it.
    assert right / 2000 == pytest.approx((0.6 + 0.4 / 3) * 0.7, abs=0.03)
    assert part / 2000 == pytest.approx(0.3, abs=0.03)


# ---- rows -----------------------------------------------------------------------------------


def test_rows_of_a_file(tmp_path):
    rows = [
        {"question": "Why?", "reference": "since it\nrained", "split": "test"},
        {"question": "Who?", "reference_answer": "Rumi", "split": "train"},
        {"question": "Where?", "answer": "Bako", "split": "test"},
    ]
    path = tmp_path / "free.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    env = envs.make("reference-qa", tasks=str(path), split="test")
    try:
        assert [env.tasks[i].question for i in range(len(env.tasks))] == ["Why?", "Where?"]
        for task in range(2):
            assert play(env, env.gold_policy(), seed=0, task=task).reward == 1.0
        with pytest.raises(NotImplementedError, match="no imperfect author"):
            env.demonstrator(np.random.default_rng(0))
    finally:
        env.close()


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (
            {"question": "Why?"},
            "r 1: no column with a reference answer .reference, ref.*it has que",
        ),
        ({"question": "Why?", "reference": " "}, "r 1, column reference: expected a text, got ' '"),
        ({"question": 3, "answer": "x"}, "r 1, column question: expected a text, got 3"),
    ],
)
def test_broken_rows_are_named(columns, says):
    with pytest.raises(ValueError, match=says):
        questions_from([Row("r 1", columns)])


def test_a_split_without_rows_is_reported():
    with pytest.raises(ValueError, match=r"rows: no rows in split 'test'; it has \{'train': 1\}"):
        row = Row("r", {"question": "q", "answer": "a", "split": "train"})
        questions_from([row]).split("test")
