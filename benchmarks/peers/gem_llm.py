"""GEM (gem-llm), as its README uses it."""

from __future__ import annotations

import re
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import metadata
from pathlib import Path

import gem
from datasets import Dataset
from gem.tools.python_code_tool import PythonCodeTool
from gem.wrappers.observation_wrapper import ObservationWrapper
from report import Finding, main, probe, waits

NUM_ENVS = 8
ROWS = [{"problem": "Half of 5?", "answer": r"\frac{5}{2}"}]
MOVES = ["left", "up", "right", "down"] * 3


class Waiting(gem.Env):
    """One of the group waits in its step: ``how`` is a number of seconds, or what it does."""

    def __init__(self, how=0.0, **_):
        super().__init__()
        self.how = how

    def reset(self, seed=None):
        super().reset(seed)
        return "go", {}

    def step(self, action):
        if self.how == "fail":
            raise ConnectionError("the database is gone")
        if self.how == "hang":
            threading.Event().wait()
        time.sleep(self.how)
        return "done", 1.0, True, False, {}


gem.register("pains:Waiting-v0", Waiting)


def vector(how, asynchronous=True):
    kinds = [{"how": how if i == 0 else 0.0} for i in range(NUM_ENVS)]
    ids = ["pains:Waiting-v0"] * NUM_ENVS
    made = gem.make_vec(ids, vec_kwargs=kinds, async_mode=asynchronous)
    made.reset(seed=0)
    return made


@probe(1)
def blocking():
    took = {}
    for asynchronous in (False, True):
        envs = vector(0.5, asynchronous)
        began = time.perf_counter()
        envs.step(["go"] * NUM_ENVS)
        took[asynchronous] = time.perf_counter() - began
    saw = (
        f"of {NUM_ENVS} environments one takes 0.5 s: a step of all takes {took[True]:.2f} s in "
        f"threads and {took[False]:.2f} s without; the others wait"
    )
    return Finding(min(took.values()) >= 0.5, saw)


def in_thread(env):
    """The reward of a right answer in a thread."""
    env.reset(seed=0)
    answer = r"So it is \boxed{5/2}"
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: env.step(answer)[1]).result(30)


@probe(2)
def math_in_threads():
    # Needs pylatexenc, which the distribution does not ask for.
    from gem.envs.math_env import MathEnv

    data = Dataset.from_list(ROWS)
    here = MathEnv(dataset=data)
    here.reset(seed=0)
    for _ in range(20):  # The pool's process imports for longer than an answer may take.
        if here.step(r"So it is \boxed{5/2}")[1]:
            break
        time.sleep(0.5)
    warm = in_thread(here)
    try:
        without = f"is worth {in_thread(MathEnv(dataset=data, use_mp=False))}"
    except Exception as error:
        without = f"raises {type(error).__name__}"
    saw = f"in a thread a right answer is worth {warm} by default; with use_mp=False it {without}"
    return Finding(warm != 1.0, saw)


def boards(envs):
    """The boards that environments in turn show, each with the same moves."""
    seen = [[] for _ in envs]
    for env in envs:
        env.reset(seed=7)
    for move in MOVES:
        for env, shown in zip(envs, seen, strict=True):
            env.step(rf"\boxed{{{move}}}")
            shown.append(env.unwrapped._get_board_str())
    return seen


@probe(3)
def seeds():
    (alone,) = boards([gem.make("game:Game2048-v0-hard")])
    again = boards([gem.make("game:Game2048-v0-hard")])[0]
    assert alone == again, "alone, a seed is an episode"
    members = boards([gem.make("game:Game2048-v0-hard") for _ in range(4)])
    different = len({tuple(shown) for shown in members})
    saw = f"4 members of a group, same seed, same moves, in turn: {different} different games"
    return Finding(different > 1, saw)


@probe(4)
def failing():
    try:
        vector("fail").step(["go"] * NUM_ENVS)
    except ConnectionError:
        return Finding(True, f"one of {NUM_ENVS} fails: the step of all raises, nothing comes back")
    return Finding(False, "the others' results come back")


@probe(11)
def hanging():
    envs = vector("hang")
    still, how = waits(lambda: envs.step(["go"] * NUM_ENVS))
    return Finding(still, f"one of {NUM_ENVS} never answers: the step of all {how}")


@probe(13)
def readme():
    text = metadata("gem-llm").get_payload()
    (code,) = re.findall(r"```python\s*\n(.*?)```", text, re.DOTALL)[:1]
    try:
        exec(compile(code, "README", "exec"), {})
    except Exception as error:
        return Finding(True, f"the first example raises {type(error).__name__}: {error}")
    return Finding(False, "the first example runs")


@probe(14)
def isolation():
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "mark"
        action = f"<python>open({str(mark)!r}, 'w').write('x')</python>"
        PythonCodeTool().execute_action(action)
        wrote = mark.exists()
    saw = "a program of the Python tool writes the trainer's files" if wrote else "it cannot write"
    return Finding(wrote, f"{saw}, by default (sandbox_type='none')")


@probe(15)
def leaks():
    env = ObservationWrapper(gem.make("game:Game2048-v0-hard"), include_chat_template=False)
    first, _ = env.reset(seed=3)
    env.step(r"\boxed{left}")
    second, _ = env.reset(seed=3)
    return Finding(first != second, "the observation wrapper forgets at each reset")


main("gem-llm")
