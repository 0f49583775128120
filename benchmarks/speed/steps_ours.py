"""Our side of ``benchmarks.speed.steps``: a training run whose steps wait for their turn."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

import rl
import tools
from agents.local.engine import Engine
from agents.local.processes.process import SamplingProcess
from agents.local.processes.server import serve
from agents.local.request import Request, Token
from benchmarks.speed.workloads import END, RESULT, TOOL_S, WORKLOADS, Turns, Workload
from envs.env import EnvOptions, TextEnv
from envs.episode import Action, Reply, finish, go_on
from envs.tool_env import ToolEnv, ToolOptions
from rl.rollout.trajectory import TrajectoryGroup
from tools.chat_calls import CHAT

MANY = 10_000
WORKLOAD, MODEL = "STEPS_WORKLOAD", "STEPS_MODEL"
"""Environment variables for the sampling processes: the workload, and the model's folder."""
PLAYED = itertools.count()
TEXTS = {name: workload.texts(MANY) for name, workload in WORKLOADS.items()}


@tools.tool
async def search(query: str) -> str:
    """Search a corpus.

    Args:
        query: What to look up.
    """
    await asyncio.sleep(TOOL_S)
    return RESULT


tools.register("search_wait", search)


class Letters(TextEnv[str, None]):
    """A message, rewarded by its letters."""

    def __init__(self, options: EnvOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, TEXTS["single"], services)

    def begin(self, task: str) -> str:
        """The user's message."""
        self.state = None
        return task

    def turn(self, action: Action) -> Reply:
        """The share of odd letters."""
        return finish({"odd": sum(ord(letter) % 2 for letter in action) / max(1, len(action))})


@dataclass(frozen=True, kw_only=True)
class SearchOptions(ToolOptions):
    """The tool and the turns."""

    tools: str = "search_wait"
    max_turns: int = 3


class Searches(ToolEnv[str, None]):
    """Calls of a tool, rewarded by no merit of theirs."""

    Options = SearchOptions

    def __init__(self, options: ToolOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, TEXTS["tools"], services, syntax=CHAT)

    def begin(self, task: str) -> str:
        """The user's message."""
        self.state = None
        return task

    async def turn(self, action: Action) -> Reply:
        """The results of the message's calls, or the end."""
        calls = self.syntax.calls(action)
        if not calls:
            return finish({"luck": next(PLAYED) % 7 / 7})
        results = [(call.tool, (await self.call(call))[0].text) for call in calls]
        return go_on(self.put_back(results))


class Waiting(rl.Callback):
    """Lets each step wait for its turn."""

    def __init__(self) -> None:
        self.turns = Turns()

    def on_start(self, run: object) -> None:
        """The first step."""
        self._wait()

    def on_step(
        self, step: int, metrics: Mapping[str, Any], groups: Sequence[TrajectoryGroup]
    ) -> None:
        """A step is over."""
        named = {
            key.removeprefix("time/"): value
            for key, value in metrics.items()
            if key.startswith("time/")
        }
        self.turns.report(int(metrics["num_sampled_tokens"]), named)
        self._wait()

    def _wait(self) -> None:
        try:
            self.turns.wait()
        except SystemExit:
            os._exit(0)


def follow_script(workload: Workload, tokenizer: PreTrainedTokenizerBase) -> None:
    """Replace the tokens that the engine sampled by the workload's, after sampling them."""
    sampled = Engine._sample
    texts = [workload.script(turn) for turn in range(workload.turns)]
    scripts = [None if text is None else tokenizer.encode(text) for text in texts]
    end, letter = tokenizer.convert_tokens_to_ids([END, "a"])
    specials = frozenset(tokenizer.all_special_ids)
    before = 1 if workload.turns == 1 else 2  # Messages before the first of the agent's.
    chosen: dict[Request, list[int] | None] = {}

    def replaced(request: Request, token: Token) -> Token:
        place = len(request.token_ids)
        if place == 0:
            chosen[request] = scripts[(request.prompt_ids.count(end) - before) // 2]
        if place == workload.new - 1:
            del chosen[request]
            return token._replace(id=end)
        script = chosen[request]
        if script is not None:
            return token._replace(id=script[place])
        return token._replace(id=letter) if token.id in specials else token

    def sample(self: Engine, logits: Any) -> list[Token]:
        drawn = sampled(self, logits)
        requests = [slot.request for slot in self._slots[: len(drawn)]]
        return [replaced(r, t) for r, t in zip(requests, drawn, strict=True) if r is not None]

    Engine._sample = sample


def main() -> None:
    """Train until the standard input ends."""
    name, model, threads, processes = sys.argv[1:]
    workload = WORKLOADS[name]
    os.environ |= {WORKLOAD: name, MODEL: model}
    SamplingProcess.module = "benchmarks.speed.steps_ours"
    follow_script(workload, AutoTokenizer.from_pretrained(model))
    env = Letters if workload.turns == 1 else Searches
    with tempfile.TemporaryDirectory() as folder:
        config: dict[str, Any] = {
            "env": {"name": env, "max_turns": workload.turns},
            "algo": "grpo",
            "model": model,
            "threads": int(threads),
            "policy": {"name": "local", "processes": int(processes)},
            "steps": MANY,
            "prompts": workload.prompts,
            "group_size": workload.group,
            "sampling": {"max_tokens": workload.new, "slots": workload.rows},
            "optimizer": {"lr": 1e-4, "warmup_steps": 0},
            "eval": {"every": MANY, "tasks": 0, "test_tasks": 0},
            "save_every": MANY,
            "out": folder + "/run",
        }
        rl.fit(rl.TrainConfig(**config), callbacks=[Waiting()])


def sample() -> None:
    """A sampling process, which follows the script as well."""
    name, model = os.environ[WORKLOAD], os.environ[MODEL]
    follow_script(WORKLOADS[name], AutoTokenizer.from_pretrained(model))
    serve(int(sys.argv[1]), int(sys.argv[2]))


if __name__ == "__main__":
    sample() if len(sys.argv) == 3 else main()
