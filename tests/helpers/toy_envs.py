"""Environments that a model learns within seconds; child processes can import them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import envs
from envs.env import EnvOptions, TextEnv
from envs.episode import Action, EnvFailure, EnvToolCall, Reply, StopReason, cut, finish, go_on

CHOICES = 3
NUMBERS = {"numpy": np.float32(0.5), "nan": float("nan"), "huge": 1e308, "text": "good"}
SPLITS = {"train": 96, "validation": 24, "test": 24}


class Digits:
    """Task i shows the digits i % 3, then (i // 3) % 3."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index % CHOICES, index // CHOICES % CHOICES


class CopyEnv(TextEnv[tuple[int, int], list[int]]):
    """Repeat the shown digit, one digit per turn. A contextual bandit with ``max_turns=1``."""

    Options = EnvOptions
    success_score = "right"

    def __init__(self, options, services=None):
        super().__init__(options, Digits(SPLITS[options.split]), services)

    def begin(self, task):
        self.state = list(task)
        return f"{self.state[0]}"

    def turn(self, action: Action) -> Reply:
        shown = self.state.pop(0)
        right = float(action == str(shown))
        rewards = {"copy": right / self.options.max_turns}
        scores = {"right": right}
        if self.turns_left == 1:
            return finish(rewards, scores=scores)
        return go_on(f"{self.state[0]}", rewards, scores=scores)

    def difficulty(self, task_index: int) -> float:
        return self.tasks[task_index][0] / (CHOICES - 1)

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        def say(observation: str) -> str:
            return observation if rng.random() < 0.4 else str(rng.integers(CHOICES))

        return say


class ReturnsEnv(CopyEnv):
    """`CopyEnv` with a return from -3 to -2 and no success score."""

    success_score = ""
    reward_range = (-3.0, -2.0)

    def difficulty(self, task_index: int) -> float:
        raise NotImplementedError

    def turn(self, action: Action) -> Reply:
        return finish({"copy": float(action == str(self.state[0])) - 3})


@dataclass(frozen=True, kw_only=True)
class ChatterOptions(EnvOptions):
    """Options of `ChatterEnv`."""

    max_turns: int = 6
    mode: str = "random"
    """random, endless, tool, slow; a way to fail: unmade, unclosed, empty-stop, bug-in-begin,
    own-timeout, and, of task 0, infrastructure, flaky and those of ``_misbehave``; or numpy, nan,
    huge, text: what the numbers of task 0 are."""
    tool_s: float = 0.02


class ChatterEnv(TextEnv[int, int]):
    """Answers with random texts and ends at random, or misbehaves as its options say.

    ``calls`` counts what happened, over every episode of the process.
    """

    Options = ChatterOptions
    calls: list[tuple[str, int]] = []  # noqa: RUF012
    running = 0
    most_running = 0

    def __init__(self, options, services=None):
        super().__init__(options, range(100_000), services)
        if options.mode == "unmade":
            raise ValueError("not made")
        if options.mode == "empty-stop":
            self.stop = ("",)

    async def aclose(self) -> None:
        await super().aclose()
        if self.options.mode == "unclosed":
            raise RuntimeError("not closed")

    @classmethod
    def forget(cls) -> None:
        cls.calls.clear()
        cls.running = cls.most_running = 0

    def begin(self, task: int) -> str:
        self.state = task
        self.calls.append(("begin", int(self.np_random.integers(2**31))))
        if self.options.mode == "bug-in-begin":
            raise KeyError("a bug in begin")
        return f"task {task}: {self._text()}"

    async def turn(self, action: Action) -> Reply:
        mode = self.options.mode
        if self.state == 0 and (reply := self._misbehave()) is not None:
            return reply
        if mode == "infrastructure" and self.state == 0:
            self.calls.append(("failure", self.state))
            raise EnvFailure("the sandbox is gone", retryable=True)
        if mode == "flaky" and self.state == 0:
            self.calls.append(("failure", self.state))
            if len([c for c in self.calls if c[0] == "failure"]) < 3:
                raise EnvFailure("the sandbox is away", retryable=True)
        if mode in NUMBERS:
            return finish({"a": 1.0}, scores={"s": NUMBERS[mode] if self.state == 0 else 1.0})
        if mode == "own-timeout":
            raise TimeoutError("the author's own")
        if mode in ("slow", "tool"):
            await self._tool()
        if mode in ("endless", "slow"):
            return go_on(self._text())
        return self._random_reply()

    def _misbehave(self) -> Reply | None:
        match self.options.mode:
            case "bug":
                raise ValueError("a bug in turn")
            case "cancelled":
                raise asyncio.CancelledError("by its author")
            case "exit":
                raise SystemExit(3)
            case "no-observation":
                return go_on(None)
            case "no-call":
                return finish({"a": 1.0}, tool_calls=["look"])
            case "no-json":
                return finish({"a": 1.0}, tool_calls=[EnvToolCall("look", {"q": {1}}, "found")])
        return None

    async def _tool(self) -> None:
        cls = type(self)
        cls.running += 1
        cls.most_running = max(cls.most_running, cls.running)
        try:
            await asyncio.sleep(self.options.tool_s)
        finally:
            cls.running -= 1

    def _random_reply(self) -> Reply:
        kind = self.np_random.integers(6)
        rewards = {"a": float(self.np_random.normal()), "b": 0.25}
        calls = [EnvToolCall("look", {"q": self._text()}, "found", None, 0.5)]
        if kind == 0:
            return finish(rewards, scores={"s": 1.0}, tool_calls=calls)
        if kind == 1:
            return cut(StopReason.INVALID_ACTIONS, rewards)
        return go_on(self._text(), rewards, tool_calls=calls)

    def _text(self) -> str:
        letters = "ab c\n<|end|>ü€𝄞"
        count = int(self.np_random.integers(0, 12))
        return "".join(letters[i] for i in self.np_random.integers(0, len(letters), count))


TOYS = {
    "toy-copy-v0": CopyEnv,
    "toy-returns-v0": ReturnsEnv,
    "toy-chatter-v0": ChatterEnv,
}


def register() -> None:
    """Register the toy environments in this process."""
    for env_id, env_type in TOYS.items():
        envs.register(env_id, env_type)
