"""``mix-v0``: episodes of several environments in one split, in proportion to their weights.

::

    python -m rl.train env=mix "env.of=2*search-qa(hops=2) + knights-knaves(people=4)"

The mixture does not change a part's episode, which keeps its own system message, stop strings,
turns and rewards. All parts share the score ``success``, from 0 to 1.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np

from envs.datasets.splits import ALL
from envs.env import Snapshot, TextEnv
from envs.episode import Action, Reply
from envs.mixture.parts import MixOptions, MixTask, MixTasks
from envs.options import Card, EnvOptions
from envs.record import EpisodeId
from envs.registration import env_type, make_from


@dataclass(slots=True)
class MixState:
    """The state of an episode. In a snapshot, it includes the state of the part."""

    part: int
    earned: float = 0.0
    inner: Snapshot | None = None


class MixEnv(TextEnv[MixTask, MixState]):
    """Episodes of several environments; see the module's docstring."""

    Options = MixOptions
    card = Card(
        agent="plays one of several environments per episode",
        turns="maximum of all",
        reward="as in each environment",
        needs="as in each environment",
    )
    success_score = "success"

    def __init__(self, options: MixOptions, services: Mapping[str, Any] | None = None) -> None:
        self._parts = options.parts()
        self._envs = [
            make_from(part.env_id, part.options, _own(services, part.name)) for part in self._parts
        ]
        tasks = MixTasks(
            [env.tasks for env in self._envs],
            [part.weight for part in self._parts],
            again=options.split == "train",
            whole=[part.options.split == ALL for part in self._parts],
        )
        super().__init__(options, tasks, services)
        # The part draws a budget and states it in its prompt.
        self._budget_rule = ""
        ranges = [env.reward_range for env in self._envs]
        self.reward_range = (min(low for low, _ in ranges), max(high for _, high in ranges))
        self.reward_floor = max(env.reward_floor for env in self._envs)
        self.floor_waiver = "parts are paid as they are alone, each in a range of its own"
        self.forkable = all(env.forkable for env in self._envs)
        self.roles = tuple(dict.fromkeys(role for env in self._envs for role in env.roles))

    @classmethod
    @asynccontextmanager
    async def open_services(cls, options: EnvOptions) -> AsyncIterator[Mapping[str, Any]]:
        """Open the services of all parts, named ``PART/SERVICE``."""
        opened: dict[str, Any] = {}
        async with AsyncExitStack() as stack:
            for part in cast(MixOptions, options).parts():
                context = env_type(part.env_id).open_services(part.options)
                own = await stack.enter_async_context(context)
                opened |= {f"{part.name}/{name}": service for name, service in own.items()}
            yield opened

    async def begin(self, task: MixTask) -> str:
        """Start the part's episode. The part's prompt settings hold until the episode ends."""
        self.state = MixState(task.part)
        env = self._playing
        env.tool_tap = self.tool_tap
        seed = int(self.np_random.integers(2**31))
        observation, _ = await env.areset(seed=seed, options={"task": task.index})
        self._speak_as(env)
        return observation

    async def turn(self, action: Action) -> Reply:
        """Return the part's reply, with the additional score ``success``."""
        env = self._playing
        observation, reward, terminated, _, info = await env.astep(action)
        self._speak_as(env)
        self.state.earned += reward
        scores = {**info["scores"], "success": self._success(info["scores"])}
        calls, stop_reason = info["tool_calls"], info["stop_reason"]
        return Reply(observation, info["rewards"], scores, calls, terminated, stop_reason)

    @property
    def episode_id(self) -> EpisodeId:
        """The id of the part's episode, which can be replayed without the mixture."""
        self._running()
        return replace(self._playing.episode_id, part=self._parts[self.state.part].name)

    def best_return(self, task_index: int) -> float:
        """The return of a correct episode of the part's task."""
        task = self.tasks[task_index]
        return self._envs[task.part].best_return(task.index)

    def difficulty(self, task_index: int) -> float:
        """The difficulty of the part's task."""
        task = self.tasks[task_index]
        return self._envs[task.part].difficulty(task.index)

    def gold_policy(self) -> Callable[[str], str]:
        """The gold policy of the first part whose policy accepts the first observation."""
        policies = [env.gold_policy() for env in self._envs]
        chosen: Callable[[str], str] | None = None

        def act(observation: str) -> str:
            nonlocal chosen
            if chosen is not None:
                return chosen(observation)
            refused = []
            for part, policy in zip(self._parts, policies, strict=True):
                # A policy may raise anything on an observation of another environment.
                try:
                    action = policy(observation)
                except Exception as error:
                    refused.append(f"{part.name}: {type(error).__name__}: {error}")
                else:
                    chosen = policy
                    return action
            raise ValueError(f"no part knows what to say to {observation!r} ({refused})")

        return act

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """The demonstrator of the current part."""
        self._running()
        return self._playing.demonstrator(rng)

    # ---- copies ----------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """A copy of the episode between two turns, including the episode of the part."""
        self._running()
        self.state.inner = self._playing.snapshot()
        return super().snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot, in this environment and in the part's environment."""
        super().restore(snapshot)
        self._playing.restore(self._inner())
        self._playing.tool_tap = self.tool_tap

    def fork(self, reseed: int | None = None) -> Self:
        """A copy of the environment in the same state.

        The part's environment is forked as well, which copies the state of the tools.
        """
        twin = super().fork(reseed)
        twin._playing.close()
        twin._envs[self.state.part] = self._playing.fork(reseed)
        twin.tool_tap = twin._playing.tool_tap
        return twin

    async def asnapshot(self) -> Snapshot:
        """Asynchronous form of :meth:`snapshot`."""
        self._running()
        self.state.inner = await self._playing.asnapshot()
        return super().snapshot()

    async def arestore(self, snapshot: Snapshot) -> None:
        """Asynchronous form of :meth:`restore`."""
        super().restore(snapshot)
        await self._playing.arestore(self._inner())
        self._playing.tool_tap = self.tool_tap

    async def afork(self, reseed: int | None = None) -> Self:
        """Asynchronous form of :meth:`fork`."""
        twin = await super().afork(reseed)
        await twin._playing.aclose()
        twin._envs[self.state.part] = await self._playing.afork(reseed)
        twin.tool_tap = twin._playing.tool_tap
        return twin

    def close(self) -> None:
        """Close the environments of all parts."""
        for env in self._envs:
            env.close()
        super().close()

    async def aclose(self) -> None:
        """Asynchronous form of :meth:`close`."""
        for env in self._envs:
            await env.aclose()
        await super().aclose()

    # ---- the parts -------------------------------------------------------------------------

    @property
    def _playing(self) -> TextEnv[Any, Any]:
        """The current part's environment."""
        return self._envs[self.state.part]

    def _speak_as(self, env: TextEnv[Any, Any]) -> None:
        """Use the part's prompt settings from now on."""
        self.role, self.system_prompt = env.role, env.system_prompt
        self.tool_schemas = env.tool_schemas
        self.stop, self.continues, self.prefill = env.stop, env.continues, env.prefill

    def _inner(self) -> Snapshot:
        assert self.state.inner is not None
        return self.state.inner

    def _success(self, scores: Mapping[str, float]) -> float:
        """The part's success score. Without one: the return as a share of the reward range."""
        env = self._playing
        if env.success_score:
            return scores.get(env.success_score, 0.0)
        low, high = env.reward_range
        return (self.state.earned - low) / (high - low) if high > low else 0.0

    def _twin(self) -> Self:
        twin = super()._twin()
        twin._envs = [env._twin() for env in self._envs]
        return twin


def _own(services: Mapping[str, Any] | None, part: str) -> Mapping[str, Any] | None:
    """The services of one part, or None if the mixture's caller passed no services."""
    if services is None:
        return None
    prefix = f"{part}/"
    mine = (name for name in services if name.startswith(prefix))
    return {name.removeprefix(prefix): services[name] for name in mine}
