"""An environment under examination: copies, episodes of it, and policies that know nothing."""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from envs.env import TextEnv
from envs.loop import loop_thread
from envs.play import Played, TextPolicy, aplay, gold_of

AnyEnv = TextEnv[Any, Any]


class Probe:
    """An environment under examination, and what is known of it so far."""

    def __init__(self, env: AnyEnv, tasks: tuple[int, ...], seed: int, max_block_s: float) -> None:
        self.env, self.tasks, self.seed, self.max_block_s = env, tasks, seed, max_block_s
        self.longest_block_s = math.inf

    @contextmanager
    def copies(self, count: int) -> Iterator[list[AnyEnv]]:
        """Fresh copies, closed afterwards."""
        made = self.env.group(count)
        try:
            yield made
        finally:
            for one in made:
                one.close()

    def play(self, policy: TextPolicy, task: int) -> Played:
        """An episode on a copy of its own, through the asynchronous face."""
        with self.copies(1) as [env]:
            return loop_thread.run(aplay(env, policy, seed=self.seed, task=task))

    def gold(self, task: int) -> Played:
        """An episode of the gold policy."""
        return self.play(gold_of(self.env), task)

    def spam(self) -> dict[str, TextPolicy]:
        """Policies that know nothing, by name."""
        letters = np.random.default_rng(self.seed).integers(32, 127, size=200)
        noise = "".join(chr(letter) for letter in letters)
        return {
            "empty text": lambda _: "",
            "random text": lambda _: noise,
            "the observation repeated": lambda observation: observation,
            "a bare stop string": lambda _: "".join(self.env.stop),
            "many words": lambda _: "yes no 0 1 " * 100,
        }


@contextmanager
def global_generators() -> Iterator[list[str]]:
    """Lists, afterwards, the global generators that were used or seeded; puts them back."""
    changed: list[str] = []
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    yield changed
    if random.getstate() != python:
        changed.append("Python's global generator")
        random.setstate(python)
    if pickle.dumps(np.random.get_state(legacy=False)) != pickle.dumps(numpy):
        changed.append("NumPy's global generator")
        np.random.set_state(numpy)
