"""Adapter for environments behind an OpenEnv server (``pip install 'turnwise[openenv]'``).

Subclass :class:`OpenEnv`, convert actions and observations to texts, and register the class. Each
environment has its own session. The policy reads what ``observe`` selects of each observation and,
as the system message, the metadata's ``system_prompt``, which ``openenv_app`` writes.
``EnvFailure`` is raised if the server is unreachable, full or late, responds with an error, or
loses the session. Limits:

- the server alone decides which episode a seed starts, see ``ask``;
- sessions cannot be copied, so environments cannot be forked;
- OpenEnv does not distinguish truncation from termination, except by ``truncated`` in an
  observation's metadata, as ``openenv_app`` writes it;
- the subclass declares ``reward_range``, ``reward_floor`` and a gold policy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

from envs.adapters.foreign import ForeignOptions, library, seeds
from envs.base.loop import loop_thread
from envs.env import EnvOptions, TextEnv
from envs.episode import Action, EnvFailure, Reply, StopReason, cut, finish, go_on


@dataclass(frozen=True, kw_only=True)
class OpenEnvOptions(ForeignOptions):
    """Options of an environment behind a server."""

    url: str = "http://localhost:8000"


class OpenEnv(TextEnv[int, Any]):
    """A session of an OpenEnv server.

    Without a subclass, the server must be one of ``openenv_app``.
    """

    Options = OpenEnvOptions
    forkable = False

    def __init__(self, options: EnvOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, seeds(options), services)
        self._client: Any = None
        self._url = cast(OpenEnvOptions, options).url

    def ask(self, task: int) -> dict[str, Any]:
        """The arguments of the server's ``reset`` that start a task. The task is a seed."""
        return {"seed": task}

    def act(self, text: str) -> dict[str, Any]:
        """The action for the server: the agent's text as a dict."""
        return {"text": text}

    def observe(self, observation: dict[str, Any]) -> str:
        """The text of the server's observation."""
        return str(observation["text"])

    async def begin(self, task: int) -> str:
        """Start an episode on the server and return its first observation."""
        if self._client is None:
            kind, limit_s = library("openenv.core", "openenv"), 0.8 * self.options.step_timeout_s
            self._client = kind.GenericEnvClient(self._url, min(10.0, limit_s), limit_s)
            await self._answer(self._client.connect())
        result = await self._answer(self._client.reset(**self.ask(task)))
        self.state = self._client._ws
        rules = _metadata(result).get("system_prompt")
        self.system_prompt = rules or type(self).system_prompt
        return self.observe(result.observation)

    async def turn(self, action: Action) -> Reply:
        """Send the action to the server and return its reply."""
        result = await self._answer(self._client.step(self.act(str(action))))
        if self._client._ws is not self.state:  # A reconnected client has another episode.
            raise EnvFailure(f"{self._name}: the server lost the session", retryable=True)
        rewards, text = {"reward": float(result.reward or 0)}, self.observe(result.observation)
        if not result.done:
            return go_on(text, rewards)
        metadata = _metadata(result)
        if not metadata.get("truncated"):
            return finish(rewards, text)
        reasons = {str(reason): reason for reason in StopReason}
        reason = reasons.get(str(metadata.get("stop_reason")), StopReason.TURN_LIMIT)
        return cut(reason, rewards, text)

    async def aclose(self) -> None:
        """Close the environment and end the server's session."""
        await self._hang_up()
        await super().aclose()

    def close(self) -> None:
        """Close the environment and end the server's session."""
        loop_thread.run(self.aclose())

    async def _answer(self, reply: Awaitable[Any]) -> Any:
        try:
            return await reply
        # A server can fail with any error of sockets, HTTP or the client.
        except Exception as error:
            await self._hang_up()
            said = f"{self._name}: {self._url}: {type(error).__name__}: {error}"
            raise EnvFailure(said, retryable=True) from error

    async def _hang_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _twin(self) -> Self:
        twin = super()._twin()
        twin._client = None
        return twin


def _metadata(result: Any) -> Mapping[str, Any]:
    """The metadata of a server's result; empty if it wrote none."""
    found = result.observation.get("metadata")
    return found if isinstance(found, dict) else {}
