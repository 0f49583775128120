"""Adapter for environments written for TRL's ``GRPOTrainer(environment_factory=...)``.

TRL's environment is a class without constructor arguments. ``reset(**row)`` starts an episode and
may return a text, every other public method is a tool, and ``get_reward()`` scores the episode.
Subclass :class:`TrlEnv`, name TRL's class and the rows, and register the subclass. An action either
holds a call in JSON, in the format of Hermes and Qwen, or ends the episode. Limits:

- TRL passes no seed to ``reset``, so only the row can determine an episode;
- the agent reads the exceptions of tools, as in TRL, except ``EnvFailure``;
- forks and snapshots need an instance that can be pickled; otherwise they raise ``NotForkable``;
- the subclass declares ``reward_range``, ``reward_floor`` and a gold policy.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from envs.adapters.foreign import ForeignOptions, read_messages
from envs.adapters.trl_rows import described, functions, load_tasks, prompt_of
from envs.datasets import Row
from envs.datasets.splits import Dataset
from envs.env import EnvOptions, TextEnv
from envs.episode import Action, EnvFailure, EnvToolCall, Reply, StopReason, cut, finish, go_on
from tools.function import FunctionTool
from tools.syntax import JSON_CALL, Call
from tools.tool import ToolContext, ToolFailure


class TrlEnv(TextEnv[Row, Any]):
    """An environment of TRL. Abstract: a subclass names TRL's class and its rows."""

    Options = ForeignOptions
    blocking = True
    stop, continues = JSON_CALL.stop, JSON_CALL.continues
    environment: ClassVar[Any]
    """The class that was written for TRL."""
    rows: ClassVar[Iterable[Mapping[str, Any]] | str]
    """The tasks, as rows or as a source of ``envs.datasets``. Each row holds the arguments of
    ``reset``. The column ``split`` selects a row's split; without this column, a hash selects it.
    The column ``prompt`` precedes the text that ``reset`` returns: its system message precedes the
    description of the tools, and several other messages are shown with their roles."""

    def __init__(self, options: EnvOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, self.dataset(options).split(options.split), services)
        self.system_prompt = described(self.environment)
        self._bound: tuple[Any, dict[str, FunctionTool]] = (None, {})

    @classmethod
    def dataset(cls, options: EnvOptions) -> Dataset[Row]:
        """The rows as tasks; ``reset`` receives the columns of the episode's row."""
        kind: Any = cls
        return load_tasks(kind)

    def begin(self, task: Row) -> str:
        """The row's prompt, followed by the text of ``reset``; its system message is ours."""
        self.state = self.environment()
        row = {key: value for key, value in task.columns.items() if key != "split"}
        system, prompt = read_messages(prompt_of(task))
        self.system_prompt = "\n\n".join(filter(None, [system, described(self.environment)]))
        return prompt + (self.state.reset(**row) or "")

    async def turn(self, action: Action) -> Reply:
        """Call a tool and reply with its result, or end the episode with its reward."""
        call = JSON_CALL.parse(action)
        if call is None:
            return finish(await self._reward())
        record = await self._answer(call)
        if self.turns_left == 1:
            return cut(StopReason.TURN_LIMIT, await self._reward(), JSON_CALL.wrap(record.text))
        return go_on(JSON_CALL.wrap(record.text), tool_calls=[record])

    async def _answer(self, call: Call) -> EnvToolCall:
        if self._bound[0] is not self.state:
            self._bound = self.state, functions(self.state)
        tools, error = self._bound[1], call.error
        if error is None and call.tool not in tools:
            error = f"there is no function {call.tool!r}; there are: {', '.join(tools)}"
        if error is not None:
            return EnvToolCall(call.tool, call.arguments, f"Error: {error}", error)
        context = ToolContext(timeout_s=self.options.step_timeout_s)
        start = time.perf_counter()
        try:
            result = await tools[call.tool](call.arguments, context)
        except ToolFailure as failure:
            raise EnvFailure(f"{self._name}: {failure}", retryable=failure.retryable) from failure
        seconds = time.perf_counter() - start
        return EnvToolCall.of(call.tool, call.arguments, result, seconds)

    async def _reward(self) -> dict[str, float]:
        reward = self.state.get_reward()
        reward = await reward if inspect.isawaitable(reward) else reward
        if reward is None:
            raise EnvFailure(f"{self._name}: get_reward gave no reward", retryable=False)
        return {"reward": float(reward)}
