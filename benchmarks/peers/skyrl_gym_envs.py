"""skyrl-gym: SkyRL's environments, without its trainer, which is not on PyPI with them."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import skyrl_gym
from report import Finding, main, probe
from skyrl_gym.envs.search import env as search
from skyrl_gym.tools.python import PythonCodeExecutorToolGroup

HOLDS_ON = """
import subprocess, time
subprocess.Popen(["sleep", "6"])
time.sleep(60)
"""
EQUAL = """```python
class Yes(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def f(x): return Yes()
```"""


def graded(answer):
    tests = [
        {"input": "1", "output": "2", "testtype": "functional", "metadata": {"func_name": "f"}}
    ]
    extras = {"reward_spec": {"ground_truth": json.dumps(tests)}}
    return skyrl_gym.make("lcb", extras=extras).step(answer)["reward"]


@probe(4)
def failing():
    # Its ten attempts with pauses take 45 s.
    search_env = search.SearchEnv(
        search.SearchEnvConfig(search_url="http://127.0.0.1:9/retrieve", timeout=1),
        {"reward_spec": {"ground_truth": {"target": ["Paris"]}}, "max_turns": 2},
    )
    result = search_env.step("<search> capital of France </search>")
    (message,) = result["observations"]
    last = search_env.step("<answer> I do not know </answer>")
    saw = (
        f"the retriever is unreachable: the agent reads {message['content'].strip()[:60]!r}, and "
        f"the episode is worth {last['reward']}, as any other"
    )
    return Finding(not result["done"] and last["reward"] == 0, saw)


@probe(5)
def turn_rewards():
    extras = {"reward_spec": {"ground_truth": "4"}, "max_turns": 3, "extra_info": {}}
    env = skyrl_gym.make("gsm8k_multi_turn", extras=extras)
    env.init([{"role": "user", "content": "2 + 2?"}])
    rewards = [round(env.step(said)["reward"], 3) for said in ("#### 5", "#### 4")]
    return Finding(len(set(rewards)) < 2, f"each step returns its own reward: {rewards}")


@probe(11)
def hanging():
    group = PythonCodeExecutorToolGroup(timeout=1.0)
    began = time.perf_counter()
    group.execute_tool("python", HOLDS_ON)
    took = time.perf_counter() - began
    saw = f"a program whose child holds its output: with timeout=1 the tool takes {took:.1f} s"
    return Finding(took > 4, saw)


@probe(14)
def forging():
    right, wrong = (graded(f"```python\ndef f(x): return x + {n}\n```") for n in (1, 2))
    assert (right, wrong) == (1.0, 0.0), (right, wrong)
    forged = graded(EQUAL)
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "mark"
        graded(f"```python\nopen({str(mark)!r}, 'w').write('x')\ndef f(x): return x\n```")
        wrote = mark.exists()
    saw = (
        f"lcb: a value that says it equals everything earns {forged}; an answer "
        f"{'writes' if wrote else 'cannot write'} the trainer's files"
    )
    return Finding(forged == 1.0 or wrote, saw)


main("skyrl-gym")
