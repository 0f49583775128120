"""``math-v0``: rewards, tools, copies, and failures without a reward."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time

import backends
import pytest

import envs
import tools
from envs.episode import Action, EnvFailure, StopReason
from envs.math.verification.verifier import MathVerifier
from envs.play import aplay, play
from tools.sandbox import SandboxUnavailable, make_sandbox

TAGGED = "<think>\nhm\n</think>\n<answer>\n{}\n</answer>"


@pytest.fixture(scope="module", autouse=True)
def sandbox_or_skip():
    async def start():
        async with make_sandbox():
            return True

    try:
        asyncio.run(start())
    except SandboxUnavailable as error:
        return str(error)
    return ""


def needs_sandbox(reason):
    if reason:
        backends.missing("auto", reason)


@pytest.fixture(scope="module")
def services():
    """What many episodes share, whatever their loop."""
    verifier = MathVerifier(workers=1)
    yield {"verifier": verifier, "calculator": tools.make("calculator")}
    verifier.close()


def step(services, action, **options):
    """The step that an action leads to; it may name the right answer as GOLD."""
    env = envs.make("math", services, split="test", **options)
    try:
        env.reset(options={"task": 0})
        return env.step(action.replace("GOLD", env.state.task.answer))
    finally:
        env.close()


@pytest.mark.parametrize(
    ("action", "right"),
    [
        (r"\boxed{GOLD}", 1),
        (r"so it is \boxed{ GOLD }.", 1),
        (r"\boxed{1000} or rather \boxed{GOLD}", 1),
        (r"\boxed{GOLD} or rather \boxed{1000}", 0),
        (r"\boxed{GOLD} \boxed{1000} \boxed{GOLD} \boxed{1001}", 0),
        (r"\boxed{GOLD} \boxed{}", 0),
        (r"\boxed{GOLD} \boxed{7", 0),
        (r"\boxed{\boxed{GOLD}}", 1),
        (r"\boxed{GOLD, 1000}", 0),
        (r"\boxed{\{GOLD, 1000\}}", 0),
        (r"\boxed{GOLD \text{ or } 1000}", 0),
        (r"\boxed{1000 = GOLD}", 1),
        ("GOLD", 0),
        ("", 0),
        ("<answer>GOLD</answer>", 0),
        (r"\boxed{x}", 0),
    ],
)
def test_the_last_box_counts(services, action, right):
    result = step(services, action)
    assert (result.reward, result.terminated, result.truncated) == (right, True, False)
    assert result.info["rewards"] == {"accuracy": right}
    assert result.info["scores"]["right"] == right


@pytest.mark.parametrize(
    ("action", "scores"),
    [
        (r"\boxed{GOLD}", {"right": 1, "answered": 1, "unverifiable": 0}),
        (r"\boxed{1000}", {"right": 0, "answered": 1, "unverifiable": 0}),
        (r"\boxed{\frac{}", {"right": 0, "answered": 0, "unverifiable": 0}),
        (r"\boxed{\frac{1}}", {"right": 0, "answered": 1, "unverifiable": 1}),
        ("GOLD", {"right": 0, "answered": 0, "unverifiable": 0}),
    ],
)
def test_scores_say_what_is_known(services, action, scores):
    assert step(services, action).info["scores"] == scores


def test_an_answer_that_was_cut_does_not_count():
    env = envs.make("math")
    for reason, reward in (("length", 0.0), ("context_full", 0.0), ("stop", 1.0), (None, 1.0)):
        env.reset(options={"task": 0})
        action = Action(rf"\boxed{{{env.state.task.answer}}}", reason)
        assert env.step(action).reward == reward
    env.close()


@pytest.mark.parametrize(
    ("reward", "paid"),
    [
        # right and tagged, right alone, tagged alone, boxed in the thought that it closes, nothing
        ("accuracy", (1, 1, 0, 0, 0)),
        ("r1-zero", (2, 1, 1, 0, 0)),
        ("open-r1-tags", (2, 1, 1, 1, 0)),
        ("open-rs", (3, 2, 1, 1, 0)),
        ("orz", (1, 0, 0, 0, 0)),
    ],
)
def test_each_reward(services, reward, paid):
    texts = (
        TAGGED.format(r"\boxed{GOLD}"),
        r"\boxed{GOLD}",
        TAGGED.format("7"),
        "\\boxed{GOLD}\n</think>\n<think>\nx\n<answer>\n7\n</answer>",
        "GOLD",
    )
    assert tuple(step(services, text, reward=reward).reward for text in texts) == paid
    env = envs.make("math", reward=reward)
    assert env.reward_range == (0.0, max(paid))
    assert env.reward_floor == paid[2]
    assert env.system_prompt is not None and r"\boxed" in env.system_prompt
    assert ("<think>" in env.system_prompt) == (reward != "accuracy")
    assert envs.make("math", reward=reward, instructions=False).system_prompt is None


@pytest.mark.parametrize(
    "spam", [TAGGED.format("") * 5, TAGGED.format(r"\boxed{}"), "<answer>" * 9]
)
@pytest.mark.parametrize("reward", ["accuracy", "r1-zero", "open-r1-tags", "open-rs", "orz"])
def test_tag_spam_stays_at_the_floor(spam, reward):
    env = envs.make("math", reward=reward)
    assert play(env, lambda question: spam + question, task=0).reward <= env.reward_floor
    env.close()


VARIANTS = [
    {"level": 1},
    {"level": 2, "topic": "arithmetic", "split": "validation"},
    {"level": 3, "topic": "algebra"},
    {"level": 3, "topic": "arithmetic", "split": "test"},
    {"reward": "r1-zero", "level": 2},
    {"reward": "open-r1-tags"},
    {"reward": "open-rs"},
    {"reward": "orz"},
    {"tools": "calculator", "max_turns": 3},
    {"tools": "calculator", "max_turns": 2, "reward": "r1-zero", "level": 2},
]
WITH_PYTHON = [
    pytest.param({"tools": "python", "max_turns": 2, "level": 2}),
    pytest.param({"tools": "python", "max_turns": 2, "level": 2, "syntax": "chat"}),
    pytest.param(
        {"tools": "python", "max_turns": 4, "level": 3, "reward": "open-r1-tags"},
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_it_keeps_the_contract(services, options):
    env = envs.make("math", services, **options)
    assert envs.check_env(env).env_id == "math-v0"
    env.close()


@pytest.mark.parametrize("options", WITH_PYTHON, ids=str)
def test_it_keeps_the_contract_with_an_interpreter(sandbox_or_skip, options):
    needs_sandbox(sandbox_or_skip)
    env = envs.make("math", **options)
    assert envs.check_env(env, num_tasks=1, num_gold_tasks=5).env_id == "math-v0"
    env.close()


def test_the_gold_policy_earns_all_there_is_on_many_tasks(services):
    for level in (1, 2, 3):
        env = envs.make("math", services, split="test", level=level)
        assert all(play(env, env.gold_policy(), task=i).reward == 1.0 for i in range(100))
        env.close()


def rows_file(tmp_path, *rows):
    path = tmp_path / "math-test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_are_problems(tmp_path):
    rows = [{"question": f"{i}?", "answer": f"#### {i}"} for i in range(9)]
    path = rows_file(tmp_path, *rows, {"problem": "p", "solution": r"\boxed{\frac{1}{2}}"})
    env = envs.make("math", tasks=path, split="test")
    assert envs.check_env(env).tasks == (0, 3, 6)
    assert env.reset(options={"task": 9})[0] == "p"
    assert env.step(r"\boxed{\frac{2}{4}}").reward == 1.0
    with pytest.raises(NotImplementedError):
        env.demonstrator(None)
    env.close()


def test_a_gold_answer_that_cannot_be_verified_fails_its_episode_and_no_other(
    tmp_path, monkeypatch
):
    # Loading does not check gold answers that look certain, as this one does here.
    monkeypatch.setattr("envs.math.gold_answers.is_doubtful", lambda gold: False)
    path = rows_file(
        tmp_path,
        {"problem": "bad", "answer": r"12_{\text{nine}}"},
        {"problem": "good", "answer": r"\frac{1}{2}"},
    )
    env = envs.make("math", tasks=path, split="test")
    for answer in (r"\boxed{1}", r"\boxed{x+1}"):
        env.reset(options={"task": 0})
        with pytest.raises(EnvFailure, match=r"math-v0: .*math-test\.jsonl, line 1: the gold") as e:
            env.step(answer)
        assert not e.value.retryable
    env.reset(options={"task": 1})
    assert env.step(r"\boxed{\sqrt{1/4}}").reward == 1.0
    env.close()


async def test_a_dead_verifier_is_a_failure_to_try_again():
    async with envs.env_type("math").open_services(envs.env_type("math").Options()) as services:
        env = envs.make("math", services=services, level=3, topic="algebra")
        services["verifier"].close()
        await env.areset(seed=0)
        with pytest.raises(EnvFailure, match="the verifier is closed") as failed:
            await env.astep(r"\boxed{x + 1}")
        assert failed.value.retryable
        await env.aclose()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "geometry"}, r"topic \('geometry'\) must be one of arithmetic, algebra, mixed"),
        ({"level": 4}, r"level \(4\) must be one of 1, 2, 3"),
        ({"tools": "search"}, r"tools \(search\): tool 'search' needs the option 'retriever'"),
        ({"reward": "f1"}, r"reward \('f1'\) must be one of accuracy, r1-zero"),
        ({"tools": "python"}, r"tools \(python\) need max_turns \(1\) >= 2"),
        ({"verify_s": 0.0}, r"verify_s \(0.0\) must be from 0.01"),
        ({"tasks": "nowhere.jsonl"}, "nowhere.jsonl: no such file"),
    ],
)
def test_options_out_of_range(options, says):
    with pytest.raises(ValueError, match=says):
        envs.make("math", **options)


def test_making_it_imports_no_algebra():
    program = (
        "import sys, envs\nenv = envs.make('math')\n_, info = env.reset(seed=0)\n"
        "env.step(chr(92) + 'boxed{3}')\nenv.close()\n"
        "print([m for m in ('sympy', 'math_verify', 'torch', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "[]\n"


# ---- with a tool ---------------------------------------------------------------------------


def test_a_call_is_answered_in_place_and_recorded():
    env = envs.make("math", tools="calculator", max_turns=3)
    assert (env.stop, env.continues) == (("</calculator>",), True)
    assert "<calculator>" in env.system_prompt
    env.reset(options={"task": 0})
    result = env.step("hm <calculator> 1/2 + 1 </calculator> unseen")
    assert result.observation == " <result> 3/2 = 1.5 </result> "
    (call,) = result.info["tool_calls"]
    assert (call.name, call.arguments, call.error) == (
        "calculator",
        {"expression": "1/2 + 1"},
        None,
    )
    assert env.step("<calculator> 1/0 </calculator>").observation == (
        " <result> Error: division by zero </result> "
    )
    last = env.step("<calculator> 1 </calculator>")
    assert (last.reward, last.info["stop_reason"]) == (0.0, StopReason.TURN_LIMIT)
    env.close()


def test_what_a_tool_prints_is_no_answer(sandbox_or_skip):
    needs_sandbox(sandbox_or_skip)
    env = envs.make("math", tools="python", max_turns=3)
    env.reset(options={"task": 0})
    gold = env.state.task.answer
    result = env.step(f"<code>print(r'\\boxed{{{gold}}}')</code>")
    assert f"\\boxed{{{gold}}}" in result.observation
    assert env.step("done").reward == 0.0
    env.close()


def answer(code):
    return f"<code>\n```python\n{code}\n```\n</code>"


def seen(text):
    return f"\n<interpreter>\n{text}\n</interpreter>\n"


def test_forks_have_interpreters_of_their_own(sandbox_or_skip):
    needs_sandbox(sandbox_or_skip)
    env = envs.make("math", tools="python", max_turns=8)
    env.reset(options={"task": 0})
    env.step(answer("x = [1]"))
    twin = env.fork()
    assert twin.step(answer("x.append(2); x")).observation == seen("(no output)").replace(
        "(no output)", "[1, 2]"
    )
    assert env.step(answer("x")).observation == seen("[1]")
    tool = twin._lease._own.services["python"]
    assert len(tool._sessions) == 2
    twin.step("no more")
    assert len(tool._sessions) == 1, "an episode that is over has no interpreter"
    assert env.step(answer("x")).observation == seen("[1]")
    twin.close()
    env.reset(options={"task": 1})
    assert len(tool._sessions) == 0, "nor has one that was given up"
    assert "NameError" in env.step(answer("x")).observation
    env.close()
    assert len(tool._sessions) == 0


def test_a_snapshot_goes_on_with_its_variables_in_another_environment(sandbox_or_skip):
    needs_sandbox(sandbox_or_skip)
    env = envs.make("math", tools="python", max_turns=8)
    env.reset(options={"task": 0})
    env.step(answer("x = 1"))
    env.step(answer("x += 1"))
    before = env.snapshot()
    env.step(answer("x = 100"))
    (other,) = env.group(1)
    other.restore(before)
    assert other.step(answer("x")).observation == seen("2")
    assert env.step(answer("x")).observation == seen("100")
    env.restore(before)
    assert env.step(answer("x + 1")).observation == seen("3")
    assert env.state.task == other.state.task
    for one in (env, other):
        one.close()


@pytest.mark.parametrize(
    "options", [{}, {"level": 3}, {"tools": "python", "max_turns": 2}], ids=str
)
async def test_64_interleaved_episodes_are_the_episodes_alone(sandbox_or_skip, options):
    if "tools" in options:
        needs_sandbox(sandbox_or_skip)
    kind = envs.env_type("math")
    chosen = kind.Options(split="test", **options)
    async with kind.open_services(chosen) as services:
        members = [envs.make_from("math-v0", chosen, services) for _ in range(64)]
        started = time.monotonic()
        played = await asyncio.gather(
            *(aplay(env, env.gold_policy(), seed=i, task=i) for i, env in enumerate(members))
        )
        assert [episode.reward for episode in played] == [1.0] * 64
        alone = envs.make_from("math-v0", chosen, services)
        for i in range(0, 64, 9):
            assert await aplay(alone, alone.gold_policy(), seed=i, task=i) == played[i]
        for env in (*members, alone):
            await env.aclose()
    assert time.monotonic() - started < 120
