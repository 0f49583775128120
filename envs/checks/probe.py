"""An environment under examination: copies, episodes of it, and policies that know nothing."""

from __future__ import annotations

import math
import pickle
import random
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from envs.base.loop import loop_thread
from envs.env import TextEnv
from envs.play import Played, TextPolicy, aplay, gold_of

AnyEnv = TextEnv[Any, Any]
GOLD = "gold"
WITHOUT_GOLD = "tags around a word"
"""The policy that takes the gold one's place: of those that know nothing, it calls most tools."""
_TAG = re.compile(r"</?([A-Za-z][\w-]*)>|<\|(?:begin|end)_of_(\w+)\|>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strength:
    """How much is played."""

    gold_tasks: tuple[int, ...]
    """What the gold policy plays."""
    num_interleaved: int = 64
    """Episodes at once in one loop."""
    num_threads: int = 16
    """Threads that play at once."""
    max_block_s: float = 0.02
    """How long a turn may keep the loop from others, in seconds."""


class Probe:
    """An environment under examination, and what is known of it so far."""

    def __init__(
        self, env: AnyEnv, tasks: tuple[int, ...], seed: int, strength: Strength | None = None
    ) -> None:
        self.env, self.tasks, self.seed = env, tasks, seed
        self.strength = strength or Strength(gold_tasks=tasks)
        self.longest_block_s = math.inf
        self._known: dict[tuple[str, int], Played] = {}

    @contextmanager
    def copies(self, count: int) -> Iterator[list[AnyEnv]]:
        """Fresh copies, closed afterwards."""
        made = self.env.group(count)
        try:
            yield made
        finally:
            for one in made:
                one.close()

    def build(self, split: str = "") -> AnyEnv:
        """Another environment with the same options, of another split if one is named.

        It opens services of its own, unless somebody injected this one's.
        """
        kind, options = cast(Any, type(self.env)), self.env.options
        if split:
            options = replace(options, split=split)
        made: AnyEnv = kind(options, services=self.env._lease.injected)
        made.env_id = self.env.env_id
        return made

    def play(self, name: str, task: int) -> Played:
        """An episode on a copy of its own, through the asynchronous face."""
        with self.copies(1) as [env]:
            policy = self.policy(name)
            return loop_thread.run(aplay(env, policy, seed=self.seed, task=task))

    def alone(self, name: str, task: int) -> Played:
        """The episode that such a policy has when nothing else is played; played once."""
        if (name, task) not in self._known:
            self._known[name, task] = self.play(name, task)
        return self._known[name, task]

    @cached_property
    def player(self) -> str:
        """Name of the policy whose episodes the rules compare: the gold one, where there is one."""
        try:
            self.env.gold_policy()
        except NotImplementedError:
            return WITHOUT_GOLD
        return GOLD

    def reference(self, task: int) -> Played:
        """The episode of :attr:`player`."""
        return self.alone(self.player, task)

    def pairs(self) -> list[tuple[str, int]]:
        """Every policy with every task, tasks first."""
        return [(name, task) for name in {self.player: None, **self.spam()} for task in self.tasks]

    def policy(self, name: str) -> TextPolicy:
        """A policy for one episode.

        The gold one is asked of the environment that never plays: it cannot look at an episode.
        """
        return gold_of(self.env) if name == GOLD else self.spam()[name]

    def spam(self) -> dict[str, TextPolicy]:
        """Policies that know nothing, by name."""
        return {
            "empty text": lambda _: "",
            "random text": self._noise,
            "the observation repeated": lambda observation: observation,
            "a bare stop string": lambda _: "".join(self.env.stop),
            "many words": lambda _: "yes no 0 1 " * 100,
            "tags around nothing": lambda observation: self._tags(observation, ""),
            WITHOUT_GOLD: lambda observation: self._tags(observation, "word"),
            "tags fifty times": lambda observation: self._tags(observation, "") * 50,
        }

    def _noise(self, observation: str) -> str:
        """Printable characters, others for another observation."""
        rng = np.random.default_rng([self.seed, zlib.crc32(observation.encode())])
        return "".join(chr(letter) for letter in rng.integers(32, 127, size=200))

    def _tags(self, observation: str, inside: str) -> str:
        """Every tag that the environment names, and the usual ones, opened and closed."""
        named = " ".join([self.env.system_prompt or "", observation, *self.env.stop])
        pairs = {"think": ("<think>", "</think>"), "answer": ("<answer>", "</answer>")}
        for tag in _TAG.finditer(named):
            if tag[1]:
                pairs.setdefault(tag[1], (f"<{tag[1]}>", f"</{tag[1]}>"))
            else:
                pairs.setdefault(tag[2], (f"<|begin_of_{tag[2]}|>", f"<|end_of_{tag[2]}|>"))
        # The answer last, where it belongs.
        pairs["answer"] = pairs.pop("answer")
        filled = [f"{opens}\n{inside}\n{closes}" for opens, closes in pairs.values()]
        return "\n".join([*filled, f"\\boxed{{{inside}}}"]) + "\n"


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
