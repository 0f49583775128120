"""reasoning-gym's tasks as environments: against the library itself."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest

import envs
from envs.adapters.reasoning_gym_tasks import COMPUTES, TASKS
from envs.play import play
from tools.registry import PluginImportError, UnknownNameError

pytest.importorskip("reasoning_gym")

WITHOUT_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Tasks that the library draws without an answer of its own."""
SOME = ("ab", "gcd", "knights_knaves", "leg_counting", "spell_backward", "time_intervals")


def make(task: str, **options):
    return envs.make(f"reasoning-gym/{task}", trust_answers=task in COMPUTES, **options)


def test_every_task_of_the_library_is_known_without_importing_it():
    program = "import sys, envs; print('reasoning_gym' in sys.modules, *envs.ids())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    imported, *known = done.stdout.split()
    assert imported == "False"
    from reasoning_gym.factory import DATASETS

    assert {name for name in known if name.startswith("reasoning-gym/")} == {
        f"reasoning-gym/{name}-v0" for name in set(DATASETS) - {"composite", "codeio"}
    }
    assert set(COMPUTES) < set(TASKS)


def test_the_librarys_question_answer_and_score():
    env = make("gcd", config='{"min_numbers": 3, "max_numbers": 3}')
    question, _ = env.reset(seed=0)
    assert question.startswith("Find the Greatest Common Divisor (GCD) of these numbers: ")
    assert question.split(":")[1].split(".")[0].count(",") == 2
    answer = env.state["answer"]
    assert env.step(f"<think> </think> <answer> {answer} </answer>").reward == 1.0
    for wrong in ("", answer, f"<answer>{answer}</answer>" * 2, "<answer></answer>"):
        env.reset(seed=0)
        last = env.step(wrong)
        assert (last.reward, last.terminated, last.info["scores"]) == (0.0, True, {"solved": 0.0})


def test_the_librarys_partial_scores_are_rewards():
    env = make("knights_knaves", config='{"n_people": 2}')
    env.reset(seed=0)
    terms = env.state["metadata"]["knight_knave_terms"]
    other = {terms["a_knight"]: terms["a_knave"], terms["a_knave"]: terms["a_knight"]}
    first, rest = env.state["answer"].split(",", 1)
    for role in other:
        if role in first:
            first = first.replace(role, other[role])
            break
    step = env.step(f"<answer>{first},{rest}</answer>")
    assert step.reward == pytest.approx(0.65)
    assert step.info["scores"] == {"solved": 0.0}


def test_an_answer_that_breaks_the_scorer_earns_nothing():
    env = make("prime_factorization")
    env.reset(seed=0)
    with pytest.raises(ValueError, match="invalid literal"):
        env._scorer.score_answer("yes", env.state)
    assert env.step("<answer>yes</answer>").reward == 0.0


@pytest.mark.parametrize("answer", ["nan", "NaN", "-nan", "1+nanj", "nan + nanj", "(nanj)"])
def test_no_number_is_no_answer(answer):
    env = make("complex_arithmetic")
    for task in range(3):
        env.reset(seed=0, options={"task": task})
        assert env.step(f"<answer>{answer}</answer>").reward == 0.0


def test_a_scorer_that_takes_any_answer_is_not_asked():
    env = make("game_of_life_halting")
    for task in range(6):
        env.reset(seed=0, options={"task": task})
        gold, other = sorted(("True", "False"), key=lambda word: word != env.state["answer"])
        earned = []
        for answer in (gold, gold.lower(), other, "x"):
            env.reset(seed=0, options={"task": task})
            earned.append(env.step(f"<answer>{answer}</answer>").reward)
        assert earned == [1.0, 1.0, 0.0, 0.0]


def test_words_that_hold_those_letters_are_answers():
    env = make("letter_counting")
    env.reset(seed=0)
    env.state["answer"], env.state["metadata"] = "nan", {}
    assert env.step("<answer>nan</answer>").reward == 1.0


@pytest.mark.parametrize("task", COMPUTES)
def test_answers_are_evaluated_as_python_only_where_they_are_trusted(task):
    with pytest.raises(ValueError, match=rf"trust_answers \(False\) must be True.* {task} "):
        envs.make(f"reasoning-gym/{task}")


PLAYED = """
import json, random, sys, envs
found = []
random.seed(int(sys.argv[1]))
for name in sys.argv[2:]:
    env = envs.make(f"reasoning-gym/{name}", trust_answers=True)
    for task in range(4):
        question, _ = env.reset(seed=random.getrandbits(9), options={"task": task})
        found.append([question, env.state["answer"], str(env.state["metadata"])])
print(json.dumps(found))
"""


@pytest.mark.slow
def test_tasks_are_the_same_in_every_process():
    names = ("isomorphic_strings", "ransom_note", "polynomial_multiplication", "list_functions")
    found = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PLAYED, seed, *order],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, order in (("1", names), ("2", names[::-1]))
    ]
    one, other = (json.loads(text.splitlines()[-1]) for text in found)
    by_name = [other[4 * i : 4 * i + 4] for i in range(4)][::-1]
    assert one == [entry for entries in by_name for entry in entries]


def test_drawing_leaves_the_global_generators_alone():
    env = make("pool_matrix")
    random.seed(1)
    np.random.seed(1)
    expected = random.getstate(), np.random.get_state()[1].tolist()
    env.reset(options={"task": 0})
    assert (random.getstate(), np.random.get_state()[1].tolist()) == expected


def test_a_lost_process_of_tasks_is_a_failure_and_starts_again():
    from envs.adapters import reasoning_gym

    env = make("gcd")
    question, _ = env.reset(options={"task": 0})
    reasoning_gym._drawing._process.kill()
    reasoning_gym._drawing._process.wait()
    with pytest.raises(envs.EnvFailure, match="the process that draws tasks failed") as failure:
        env.reset(options={"task": 0})
    assert failure.value.retryable
    assert env.reset(options={"task": 0})[0] == question


@pytest.mark.parametrize(
    ("task", "answer", "right", "wrong"),
    [
        (
            "puzzle24",
            "10*(8 - 5) - 6",
            ("10 * (8-5) - 6", "(8 - 5)*10 - 6", "-6 + 10*(8-5)", "(-5 + 8)*10 - 6"),
            ("6+6+6+6", "24", "10+8+6", "(10+8+6)*1", "10*(8-5)-6+0*7", "__import__('os')", "9**9"),
        ),
        ("coin_flip", "0.3125", ("0.3125", "5/16", "0.31250"), ("0", "0.3", "1", "x", "1/0", "0.")),
        ("coin_flip", "0.00003052", ("0.00003052", "1/32768"), ("0", "0.0001", "1e-9")),
        (
            "number_sorting",
            "['52.2', '30.0', '-81.0']",
            ("['52.2', '30.0', '-81.0']", "[52.2, 30, -81]", '["52.20", "30", "-81"]'),
            ("['52', '30', '-81']", "['53.1', '30.9', '-81']", "[52.2, 30]", "52.2, 30, -81", "[]"),
        ),
        (
            "letter_jumble",
            "Fritz Napoleon Smith",
            ("Fritz Napoleon Smith", "fritz  napoleon smith"),
            ("Fritz Napoleon Smith is", "Fritz Napoleon", "Smith Napoleon Fritz", "Fritz"),
        ),
        (
            "game_of_life",
            "[[0,1],[0,0]]",
            ("[[0,1],[0,0]]", "[[0, 1], [0, 0]]"),
            ("[[0,0],[0,0]]", "[]", "[[0,1]]", "0100", "[[0,1],[0,0],[0,0]]", '{"0": 1}'),
        ),
    ],
)
def test_wrong_answers_that_the_librarys_scorers_take_earn_nothing(task, answer, right, wrong):
    env = make(task)
    env.reset(options={"task": 0})
    env.state = {"answer": answer, "metadata": {"numbers": [8, 5, 10, 6]}, "question": ""}
    earned = {text: env.fork().step(f"<answer>{text}</answer>").reward for text in right + wrong}
    assert earned == {**dict.fromkeys(right, 1.0), **dict.fromkeys(wrong, 0.0)}


def test_no_question_is_in_two_splits():
    asked = {}
    for split in ("train", "validation", "test"):
        env = make("leg_counting", split=split)
        asked[split] = {env.reset(seed=0, options={"task": i})[0] for i in range(40)}
    assert all(len(questions) == 40 for questions in asked.values())
    assert len(set.union(*asked.values())) == 120


def test_a_task_with_no_question_for_a_split_says_so(monkeypatch):
    from envs.adapters import reasoning_gym

    always = {"question": "What is 1 + 1?", "answer": "2"}
    monkeypatch.setattr(reasoning_gym, "_draw", lambda *_: always)
    started = []
    for split in ("train", "validation", "test"):
        try:
            started.append(make("gcd", split=split).reset(seed=0)[0])
        except ValueError as error:
            assert f"500 draws gave none for {split!r}" in str(error)
    assert started == ["What is 1 + 1?"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"config": "{"}, "must be JSON"),
        ({"config": "[]"}, "must be an object without seed and size"),
        ({"config": '{"seed": 1}'}, "must be an object without seed and size"),
        ({"config": '{"people": 3}'}, "unexpected keyword argument 'people'"),
        ({"config": '{"min_numbers": 0}'}, "min_numbers must be at least 2"),
        ({"max_turns": 2}, r"max_turns \(2\) must be 1"),
    ],
)
def test_options_out_of_range(options, says):
    with pytest.raises(ValueError, match=says):
        make("gcd", **options)


def test_without_the_library_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    from envs.adapters import reasoning_gym

    reasoning_gym._make.cache_clear()
    with pytest.raises(PluginImportError) as failure:
        make("gcd")
    assert str(failure.value).startswith("reasoning-gym/gcd-v0 needs the library reasoning-gym (")
    assert str(failure.value).endswith("pip install 'turnwise[reasoning-gym]'")


def test_an_unknown_task_is_guessed_and_the_family_is_not_listed_whole():
    with pytest.raises(UnknownNameError) as failure:
        envs.make("reasoning-gym/gcdd")
    assert "Did you mean 'reasoning-gym/gcd-v0'?" in str(failure.value)
    assert f"reasoning-gym/... ({len(TASKS)})" in str(failure.value)
    assert "reasoning-gym/lcm-v0" not in str(failure.value)


def test_classes_pickle_and_are_made_once():
    from envs.adapters import reasoning_gym

    assert pickle.loads(pickle.dumps(reasoning_gym.gcd)) is envs.env_type("reasoning-gym/gcd")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        reasoning_gym.nothing  # noqa: B018


def contract(task: str) -> None:
    env = make(task)
    assert json.loads(env.options.config) == {}
    if task in WITHOUT_ANSWER:
        assert play(env, env.gold_policy(), task=0).steps[-1].terminated
        assert env.state["answer"] is None
    else:
        assert (
            envs.check_env(env, num_tasks=2, num_gold_tasks=2).env_id == f"reasoning-gym/{task}-v0"
        )


@pytest.mark.parametrize("task", SOME)
def test_they_keep_the_contract(task):
    contract(task)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files left open
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("task", sorted(set(TASKS) - set(SOME)))
def test_all_the_others_are_played(task):
    # Once each: the whole contract would draw hundreds of questions, some of which take seconds.
    last = play(env := make(task), env.gold_policy(), task=0).steps[-1]
    assert last.terminated
    assert task in WITHOUT_ANSWER or last.reward == 1
