"""An environment under test, with its copies and episodes, and policies that know nothing."""

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
"""Name of the policy that replaces a missing gold policy. No other policy of :meth:`Probe.spam`
calls more tools."""
_TAG = re.compile(r"</?([A-Za-z][\w-]*)>|<\|(?:begin|end)_of_(\w+)\|>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strength:
    """How many episodes a check plays, and which time limits it applies."""

    gold_tasks: tuple[int, ...]
    """Indices of the tasks that the gold policy plays."""
    num_interleaved: int = 64
    """Number of concurrent episodes in one event loop."""
    num_threads: int = 16
    """Number of threads that play concurrently."""
    max_block_s: float = 0.02
    """Maximum seconds for which a turn is allowed to block the event loop."""


class Probe:
    """An environment under test, with a cache of its episodes."""

    def __init__(
        self, env: AnyEnv, tasks: tuple[int, ...], seed: int, strength: Strength | None = None
    ) -> None:
        self.env, self.tasks, self.seed = env, tasks, seed
        self.strength = strength or Strength(gold_tasks=tasks)
        self.longest_block_s = math.inf
        self._known: dict[tuple[str, int], Played] = {}

    @contextmanager
    def copies(self, count: int) -> Iterator[list[AnyEnv]]:
        """Yield ``count`` fresh copies, and close them afterwards."""
        made = self.env.group(count)
        try:
            yield made
        finally:
            for one in made:
                one.close()

    def build(self, split: str = "") -> AnyEnv:
        """Another instance with the same options, or with another split if one is named.

        The instance opens its own services, unless the caller injected them.
        """
        kind, options = cast(Any, type(self.env)), self.env.options
        if split:
            options = replace(options, split=split)
        made: AnyEnv = kind(options, services=self.env._lease.injected)
        made.env_id = self.env.env_id
        return made

    def play(self, name: str, task: int) -> Played:
        """Play an episode on a new copy with the asynchronous API."""
        with self.copies(1) as [env]:
            policy = self.policy(name)
            return loop_thread.run(aplay(env, policy, seed=self.seed, task=task))

    def alone(self, name: str, task: int) -> Played:
        """The episode of a policy, played while no other episode runs; cached."""
        if (name, task) not in self._known:
            self._known[name, task] = self.play(name, task)
        return self._known[name, task]

    @cached_property
    def player(self) -> str:
        """Name of the policy whose episodes the rules compare: the gold policy if there is one."""
        try:
            self.env.gold_policy()
        except NotImplementedError:
            return WITHOUT_GOLD
        return GOLD

    def reference(self, task: int) -> Played:
        """The episode of the policy :attr:`player` on a task, played alone."""
        return self.alone(self.player, task)

    def pairs(self) -> list[tuple[str, int]]:
        """Every combination of policy and task, grouped by task."""
        return [(name, task) for name in {self.player: None, **self.spam()} for task in self.tasks]

    def policy(self, name: str) -> TextPolicy:
        """A policy for one episode.

        The gold policy comes from an instance that never plays. Therefore the policy cannot read
        the state of an episode.
        """
        return gold_of(self.env) if name == GOLD else self.spam()[name]

    def spam(self) -> dict[str, TextPolicy]:
        """Policies that know nothing about the environment, by name."""
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
        """Random printable characters, determined by the observation."""
        rng = np.random.default_rng([self.seed, zlib.crc32(observation.encode())])
        return "".join(chr(letter) for letter in rng.integers(32, 127, size=200))

    def _tags(self, observation: str, inside: str) -> str:
        """A text with ``inside`` between the tags of each known pair, and in a box.

        The pairs are those in the system prompt, the observation and the stop strings, and the
        usual pairs for thoughts and answers.
        """
        named = " ".join([self.env.system_prompt or "", observation, *self.env.stop])
        pairs = {"think": ("<think>", "</think>"), "answer": ("<answer>", "</answer>")}
        for tag in _TAG.finditer(named):
            if tag[1]:
                pairs.setdefault(tag[1], (f"<{tag[1]}>", f"</{tag[1]}>"))
            else:
                pairs.setdefault(tag[2], (f"<|begin_of_{tag[2]}|>", f"<|end_of_{tag[2]}|>"))
        # The answer belongs at the end.
        pairs["answer"] = pairs.pop("answer")
        filled = [f"{opens}\n{inside}\n{closes}" for opens, closes in pairs.values()]
        return "\n".join([*filled, f"\\boxed{{{inside}}}"]) + "\n"


@contextmanager
def global_generators() -> Iterator[list[str]]:
    """Detect uses of the global random generators, and restore their states.

    The yielded list is filled when the context ends: it names the generators that were used.
    """
    changed: list[str] = []
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    yield changed
    if random.getstate() != python:
        changed.append("Python's global generator")
        random.setstate(python)
    if pickle.dumps(np.random.get_state(legacy=False)) != pickle.dumps(numpy):
        changed.append("NumPy's global generator")
        np.random.set_state(numpy)
