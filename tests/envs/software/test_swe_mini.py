"""swe-mini-v0: the tasks, the contract, the tools' forms, and what decides the reward."""

from __future__ import annotations

import numpy as np
import pytest

import envs
from envs.play import gold_of, play
from envs.software.faults import KINDS
from envs.software.programs import parse
from envs.software.tasks import loaded, software_tasks

VARIANTS = (
    {},
    {"files": 1, "tools": "read, fix"},
    {"files": 1, "tools": "fix", "show": True, "max_turns": 2},
    {"files": 4, "tools": "bash", "syntax": "json"},
    {"files": 2, "tools": "edit, read", "syntax": "chat"},
)


def test_tasks_are_thousands_and_a_split_shares_no_composition():
    drawn = {}
    for split in ("train", "validation", "test"):
        tasks = software_tasks(split, 0, 3, KINDS)
        drawn[split] = [tasks[index] for index in range(0, 1000, 10)]
        again = software_tasks(split, 0, 3, KINDS)[0]
        assert (again.files, again.hidden) == (drawn[split][0].files, drawn[split][0].hidden)
    compositions = {s: {t.program.composition for t in tasks} for s, tasks in drawn.items()}
    assert not compositions["train"] & compositions["test"]
    assert not compositions["train"] & compositions["validation"]
    assert len(software_tasks("train", 0, 3, KINDS)) == 1_000_000
    assert len({repr(task.files) for task in drawn["train"]}) == 100
    assert {task.fault.kind for task in drawn["train"]} == set(KINDS)


@pytest.mark.parametrize("files", [1, 2, 3, 4])
def test_a_fault_is_one_line_that_visible_and_hidden_tests_show(files):
    for index in range(20):
        task = software_tasks("train", 1, files, KINDS)[index]
        right = task.program.files(files)
        assert len(right) == files
        changed = [path for path in right if right[path] != task.modules[path]]
        assert changed == [task.fault.path]
        assert task.modules[task.fault.path].count(task.fault.wrong + "\n") == 1
        assert parse(task.program.sentence) == task.program

        def failures(tests, function):
            count = 0
            for test in tests:
                try:
                    count += repr(function(*test.args)) != repr(test.expected)
                except Exception:
                    count += 1
            return count

        mended, broken = (loaded(f, task.program.name) for f in (right, task.modules))
        assert failures(task.visible + task.hidden, mended) == 0
        assert failures(task.visible, broken) >= 1
        assert failures(task.hidden, broken) >= 2
        assert not {repr(t.args) for t in task.visible} & {repr(t.args) for t in task.hidden}


@pytest.mark.parametrize("options", VARIANTS)
def test_the_gold_policy_earns_1_and_an_idle_one_0(options):
    env = envs.make("swe-mini", **options)
    try:
        for task in range(3):
            played = play(env, gold_of(env), seed=0, task=task)
            assert played.steps[-1].reward == 1.0, played
            assert played.steps[-1].info["scores"] == {"passed": 1.0, "hidden_passed": 1.0}
        idle = play(env, lambda _: "It is mended.", seed=0, task=0).steps
        assert [(step.reward, step.terminated) for step in idle] == [(0.0, True)]
    finally:
        env.close()


@pytest.mark.parametrize("options", VARIANTS[:2])
def test_it_keeps_the_contract(options):
    env = envs.make("swe-mini", **options)
    envs.check_env(
        env,
        num_tasks=1,
        num_gold_tasks=5,
        num_interleaved=8,
        num_threads=4,
        max_block_s=0.5,
        max_rule_s=600,
    )
    env.close()


def test_the_shell_keeps_its_state_and_the_turn_limit_grades():
    env = envs.make("swe-mini", max_turns=3)
    try:
        env.reset(seed=0, options={"task": 0})
        first = env.step("<bash> cd tests; x=1 </bash>")
        assert first.observation == " <result> (no output) </result> "
        shown = env.step('<bash> {"command": "ls; echo $x", "timeout": 20} </bash>').observation
        assert shown == " <result> __init__.py\ntest_main.py\n1 </result> "
        last = env.step("<read> main.py </read>")
        assert (last.reward, last.truncated, last.terminated) == (0.0, True, False)
    finally:
        env.close()


def test_the_repositorys_own_tests_fail_until_it_is_mended():
    env = envs.make("swe-mini")
    try:
        env.reset(seed=0, options={"task": 2})
        task = env.state.task
        assert "FAILED" in env.step("<bash> python -m unittest </bash>").observation
        path, line = task.fault.path, task.fault.line
        right = task.fault.right.replace("/", r"\/").replace("*", r"\*")
        env.step(f"<bash> sed -i '{line}s/.*/{right}/' {path} </bash>")
        assert "\nOK" in env.step("<bash> python -m unittest </bash>").observation
        assert env.step("Done.").reward == 1.0
    finally:
        env.close()


def test_a_careless_policy_is_right_about_half_the_time():
    env = envs.make("swe-mini", files=1, tools="read, fix")
    try:
        rewards = []
        for task in range(24):
            policy = env.demonstrator(np.random.default_rng(task))
            rewards.append(play(env, policy, seed=0, task=task).steps[-1].reward)
        assert 4 <= sum(rewards) <= 20
    finally:
        env.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"files": 5}, "files (5) must be from 1 to 4"),
        ({"faults": "typo"}, "faults ('typo') must be all, or of operator"),
        ({"syntax": "xml"}, "syntax ('xml') must be one of tags, json, chat"),
        ({"tools": "read"}, "tools (read) must allow reading files"),
        ({"tools": "read, fix"}, "tools (read, fix): fix changes main.py only; set files=1"),
    ],
)
def test_a_wrong_option_is_one_line(options, message):
    with pytest.raises(ValueError) as raised:
        envs.make("swe-mini", **options)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_blank_feedback_shows_no_value_of_a_result():
    shown = {}
    for feedback in ("results", "blank"):
        env = envs.make("swe-mini", files=1, tools="read, fix", feedback=feedback)
        try:
            env.reset(seed=0, options={"task": 0})
            shown[feedback], *_ = env.step("<read> main.py </read>")
        finally:
            env.close()
    inside = shown["blank"].partition("<result>")[2].partition("</result>")[0]
    assert len(shown["blank"]) == len(shown["results"])
    assert inside.count("?") > 100
    assert not any(character.isalnum() for character in inside)
    with pytest.raises(ValueError, match=r"feedback \('no'\) must be results or blank"):
        envs.make("swe-mini", feedback="no")
