"""``reasoning-gym/TASK-v0``: tasks that the library reasoning-gym generates and scores.

Making an environment imports the library. A hash of the question selects its split. Each task is
generated again, with another seed, until its question belongs to the split, so no question is in
two splits. A second process draws the tasks, because some of the library's depend on the seed of
Python's hashes and on the global generators: see ``serve_draws``.
"""

from __future__ import annotations

import atexit
import hashlib
import inspect
import json
import os
import pickle
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, ClassVar, cast

from envs.adapters import reasoning_gym_tasks as gym
from envs.datasets.generated import NUM_TASKS, task_rng
from envs.env import TextEnv
from envs.episode import Action, EnvFailure, Reply, finish
from envs.logic.answers import only_answer

_MOST_DRAWS, _MOST_CHARACTERS, _LOCK = 500, 10_000, threading.Lock()
_DRAW_S = 600.0
"""Time limit in seconds of one draw."""


class ReasoningGymEnv(TextEnv[int, dict[str, Any]]):
    """A question of the library; the reward is the library's score of the answer."""

    Options = gym.GymOptions
    blocking = True
    success_score = "solved"
    system_prompt = "Think first, then write the answer alone between <answer> and </answer>."
    dataset: ClassVar[str]
    """The library's name of the task."""

    def __init__(self, options: gym.GymOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, range(NUM_TASKS[options.split]), services)
        if self.dataset in gym.COMPUTES and not options.trust_answers:
            raise ValueError(
                f"trust_answers (False) must be True: reasoning-gym's scorer of {self.dataset} "
                f"evaluates answers as Python in this process, where they may do anything"
            )
        self._scorer = _make(self.dataset, options.config)
        # For the gold policy; copies of this environment share it.
        self._known: dict[str, str | None] = {}

    def begin(self, task: int) -> str:
        """The question."""
        split, config = self.options.split, cast(gym.GymOptions, self.options).config
        rng = task_rng(f"{self.dataset} {config}", split, self.options.seed, task)
        for _ in range(_MOST_DRAWS):
            entry = _draw(self.dataset, config, rng.getrandbits(31))
            question = str(entry["question"])
            digest = hashlib.blake2b(question.encode(), digest_size=4).digest()
            if {0: "test", 1: "validation"}.get(digest[0] % 4, "train") == split:
                self.state = entry
                self._known[question] = entry["answer"]
                return question
        raise ValueError(f"{self.env_id}: {_MOST_DRAWS} draws gave none for {split!r}")

    def turn(self, action: Action) -> Reply:
        """Score the answer and end the episode."""
        answer, score = only_answer(action.content), 0.0
        if answer and len(answer) <= _MOST_CHARACTERS:
            score = gym.score_of(self.dataset, self._scorer, answer, self.state)
        return finish({"score": score}, scores={"solved": float(score >= 1.0)})

    def gold_policy(self) -> Callable[[str], str]:
        """A policy that gives the library's answer, which no agent sees; a few tasks have none."""
        return lambda question: f"<answer>{self._known[question]}</answer>"


@lru_cache(maxsize=64)
def _make(dataset: str, config: str) -> Any:
    """The library's data set for a task, which scores answers."""
    library = gym.import_library(dataset)
    try:
        return library.create_dataset(dataset, seed=0, size=1, **json.loads(config))
    except (TypeError, AssertionError) as error:
        raise ValueError(f"config ({config}): {error}") from error


class _Drawing:
    """The process that draws tasks, started at the first draw."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def draw(self, *request: Any) -> Any:
        if self._process is None or self._owner != os.getpid():
            self._start()
        process = cast("subprocess.Popen[bytes]", self._process)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(request, process.stdin)
            process.stdin.flush()
            if not select.select([process.stdout], [], [], _DRAW_S)[0]:
                raise TimeoutError(f"no answer in {_DRAW_S:g} s")
            return pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            self.close()
            raise EnvFailure(
                f"reasoning-gym/{request[0]}-v0: the process that draws tasks failed: {error}",
                retryable=True,
            ) from error

    def _start(self) -> None:
        source = f"from typing import Any\n{inspect.getsource(gym.serve_draws)}\nserve_draws()"
        path = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-c", source],
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._owner = os.getpid()

    def close(self) -> None:
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None


_drawing = _Drawing()
atexit.register(_drawing.close)


def _draw(dataset: str, config: str, number: int) -> dict[str, Any]:
    with _LOCK:
        entry, error = _drawing.draw(dataset, config, number)
    if error:
        raise ValueError(f"reasoning-gym/{dataset}-v0: a task cannot be drawn: {error}")
    return cast(dict[str, Any], entry)


@cache
def __getattr__(name: str) -> type[ReasoningGymEnv]:
    """The environment of a task, as ``envs.adapters.reasoning_gym.TASK``."""
    if name not in gym.TASKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return type(
        name, (ReasoningGymEnv,), {"dataset": name, "card": gym.CARD, "__module__": __name__}
    )
